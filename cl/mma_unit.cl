/* The matrix-unit engine: the unit in which a warp of a team has its 16 columns, where operands are
 * f16 (operand.cl). With u, a power of two, V, X, E and O of these columns are taken 1 / (8 u)
 * times, and S, which adds up what is written, 1 / u times: Kd and Qd are divided by 8
 * (STATE_GAIN) and Ke is multiplied by it, which costs nothing. No result depends on u but for what
 * f16 rounds to below 2^-14.
 *
 * Before each chunk u is the 2^(8 n) for which the largest |s| is from 2^-7 to 2: by S alone, not
 * by what it was before, so that a state that is stored and loaded continues with the same bits. If
 * S is zero the first write, |beta v| as V is taken, stands for it: what comes later has no say. If
 * V has 2^7 or more, u grows until it has not; this is the one case in which a later token of the
 * chunk can touch an earlier one's result, in the digits below 2^-14.
 *
 * Then nothing overflows if beta is from 0 to 2, when a token can't lengthen a column of S but by
 * its write, |beta v| < 2^8: after 64 it is below 2^14 + 3, and |E| below 2 (2^7 + 2^14 + 3), where
 * f16 ends at 65504.
 *
 * SPDX-License-Identifier: MIT */

#if OPERANDS_F16
#define STATE_GAIN 8.0f
#else
#define STATE_GAIN 1.0f
#endif
#define VALUES_LIMIT 128.0f

#define POWER_OF_TWO(n) as_float((uint)(127 + (n)) << 23)
/* u times STATE_GAIN, inverted. */
#define VALUE_FACTOR(u) as_float((254u << 23) - as_uint((u) * STATE_GAIN))

/* Finds u for a chunk that begins with s and has V in x, both by the last u; beta: of its tokens.
 */
static __attribute__((always_inline)) inline void
fit_unit(float *u, float *s, float *x, __local const float2 *beta, int t, __local float *scratch,
         int lid)
{
    float largest = 0.0f, value = 0.0f;
    UNROLL
    for (int i = 0; i < KDA_K / 2; i++)
        largest = fmax(largest, fabs(s[i]));
    UNROLL
    for (int i = 0; i < 32; i++)
        value = fmax(value, fabs(x[i]));
    largest = lanes_max(largest, scratch, lid);
    value = lanes_max(value, scratch, lid);
    if (RARELY(largest == 0.0f)) {
        float to_end = 0.0f, write = 0.0f; /* tokens from the first write on, and this write */
        UNROLL
        for (int i = 28; i >= 0; i -= 4) {
            const float2 b = beta[i + t];
            const float even = fabs(fmax(fabs(x[i]), fabs(x[i + 2])) * b.s0);
            const float odd = fabs(fmax(fabs(x[i + 1]), fabs(x[i + 3])) * b.s1);
            if (odd > 0.0f)
                to_end = (float)(63 - 2 * i), write = odd;
            if (even > 0.0f)
                to_end = (float)(64 - 2 * i), write = even;
        }
        to_end = fmax(to_end - (float)(2 * t), 0.0f);
        const float first = lanes_max(to_end, scratch, lid);
        write = lanes_max(to_end == first ? write : 0.0f, scratch, lid);
        if (largest == 0.0f)
            largest = write;
    }
    /* As f16 rounds it: what a chunk finds in its operands is the same. */
    int n = ((int)((as_uint(largest) + 0x1000u) >> 23) - 127 + 7) >> 3;
    const int over = (int)(as_uint(value) >> 23) - 127 - 8 * n;
    if (over >= 7)
        n += (over + 1) >> 3;
    const int last = ((int)(as_uint(*u) >> 23) - 127) / 8;
    n = clamp(n, -7 - last, 8 - last); /* so that factors are numbers */
    const float factor = POWER_OF_TWO(-8 * n);
    UNROLL
    for (int i = 0; i < KDA_K / 2; i++)
        s[i] *= factor;
    UNROLL
    for (int i = 0; i < 32; i++)
        x[i] *= factor;
    *u *= POWER_OF_TWO(8 * n);
}
