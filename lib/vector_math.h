/* Exponentials of vectors. Errors were measured over every float (test: vector_math): exp 1.1 ulp,
 * softplus and sigmoid 3 ulp. NaN stays NaN; infinities and numbers beyond the range of results
 * give the limit.
 *
 * SPDX-License-Identifier: MIT */
#ifndef KDA_VECTOR_MATH_H
#define KDA_VECTOR_MATH_H

#include "vector.h"

/* exp(x) = 2^n exp(r), |r| <= log(2) / 2, where exp(r) = 1 + r + r^2 P(r): the coefficients are a
 * Chebyshev fit, off by 8e-9. 2^n comes in two factors, so that results below the normal numbers
 * are rounded once, and at the end. */
INLINE vf vexp(vf x)
{
    x = pick(x < -110.0f, all(-110.0f), x); /* results are 0 before, and */
    x = pick(x > 90.0f, all(90.0f), x);     /* infinite after */
    const vf shifted = madd(x, all(0x1.715476p0f), all(0x1.8p23f)), n = shifted - 0x1.8p23f;
    /* log(2) in two parts, the first of so few bits that n times it is exact */
    vf r = madd(n, all(-0x1.62ep-1f), x);
    r = madd(n, all(-0x1.0bfbe8p-15f), r);
    vf p = all(0x1.6d119ap-10f);
    p = madd(p, r, all(0x1.120c00p-7f));
    p = madd(p, r, all(0x1.555518p-5f));
    p = madd(p, r, all(0x1.5554dcp-3f));
    p = madd(p, r, all(0.5f));
    p = madd(p * r, r, r) + 1.0f;
    const vi whole = (vi)((vu)shifted - 0x4b400000), half = whole >> 1;
    return p * (vf)((vu)(half + 127) << 23) * (vf)((vu)(whole - half + 127) << 23);
}

/* exp(-|x|) */
INLINE vf vexp_below(vf x)
{
    return vexp((vf)((vu)x | 0x80000000));
}

/* 1 / (1 + exp(-x)), without the infinity that this has on its way to the smallest results. */
INLINE vf vsigmoid(vf x)
{
    const vf e = vexp_below(x);
    return pick(x < 0.0f, e, all(1.0f)) / (1.0f + e);
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|), and log(1 + e) = 2 atanh(s), s = e / (2
 * + e) <= 1/3, where atanh(s) = s + s^3 P(s^2): again a Chebyshev fit, off by 4e-10. */
INLINE vf vsoftplus(vf x)
{
    const vf e = vexp_below(x), s = e / (2.0f + e), z = s * s;
    vf p = all(0x1.dba25ep-4f);
    p = madd(p, z, all(0x1.bc8cf8p-4f));
    p = madd(p, z, all(0x1.24c926p-3f));
    p = madd(p, z, all(0x1.9998d4p-3f));
    p = madd(p, z, all(0x1.555556p-2f));
    const vf log1p = 2.0f * madd(p * z, s, s);
    return pick(x > 0.0f, x + log1p, log1p);
}

#endif
