/* The chunkwise schedule, part one: everything about a chunk that does not need the state. Here the
 * derivation, the split of the work and the work-group's memory; slab.cl sums A_kk and A_qk,
 * triangle.cl inverts and multiplies, prepare.cl is the kernel.
 *
 * THE DERIVATION, once. Take C tokens of one head, S the state before them, a_t = exp(g_t) the
 * decay of token t (one number a key channel, all in [0, 1]), D(i..j) = a_i * ... * a_j. A token's
 * error is its provisional error against the decayed S, less what the errors of earlier tokens
 * wrote:
 *
 *     e_i = beta_i (v_i - S^T D(0..i) k_i) - sum over j < i of R_ij e_j
 *     R_ij = beta_i  k_j . D(j+1..i) k_i                       (A_kk, strictly lower triangular)
 *
 * so with T = (I + R)^-1, which is unit lower triangular, all errors of the chunk are
 *
 *     E = U - W S      W = T (beta_i D(0..i) k_i)_i     U = T (beta_i v_i)_i
 *
 * and output and next state are
 *
 *     O = Qd S + A_qk E                Qd_i = scale D(0..i) q_i
 *     S' = D(0..C-1) S + Ke^T E        Ke_j = D(j+1..C-1) k_j
 *     A_qk,ij = scale  k_j . D(j+1..i) q_i  for j <= i
 *
 * NO EXPONENT IS EVER POSITIVE. Nothing here exponentiates a sum or a difference of gates: every
 * factor is a product of decays, each exp(g) with g <= 0. So any gate is exact to rounding, -inf
 * and -1000 next to 0 included, and a factor that underflows belongs to a term that does. The
 * factor D(j+1..i) of a pair (i, j) is split at a boundary between the two:
 *
 *     different 16-token blocks I > J:  D(j+1..i) = c_j * m_J..I * r_i
 *         r_i = D(start of I..i)   m = blocks strictly between   c_j = D(j+1..end of J)
 *     the boundary is the start of I, which is no future of i: a later token cannot change the
 *     pair. c_j * m is kept up to date: when the walk passes block I, the keys before it are
 *     multiplied by I's total decay. After the last block they are Ke.
 *
 *     the same block: no boundary serves all pairs, so products are carried from j to i one token
 *     at a time, as the recurrence does: 120 pairs of K channels, a few per cent of the work.
 *
 * (I + R) is inverted by substitution within 16 x 16 blocks and merged block by block,
 *     T_IJ = -T_II sum over J <= M < I of R_IM T_MJ,
 * which for beta <= 1 and unit keys keeps every entry of order one, however alike the keys are; a
 * power series would not (its terms grow like binomials before they cancel).
 *
 * WORK SPLIT. One work-group for each chunk and value head. Key channels come in slabs of KDA_SLAB,
 * all of them where local memory has room, else 32. The work-items sum A_kk and A_qk in registers,
 * each role a part of one of the two matrices:
 *     same block:        key j and a share of the slab's channels, 16 sums
 *     different blocks:  row i of a block and key j of another, one sum for each pair of blocks
 * A work-group that has fewer items than there are roles takes them in passes. Then the slabs'
 * memory holds T and R, as rows of whole blocks up to the diagonal, and after that T and COLUMNS
 * columns at a time of what T is multiplied with. At K = 128 that is, for C = 32 and 64,
 *     three slabs of C x 128   50, 99 KiB, or of C x 32   14, 27 KiB
 *     T and R                  8, 24 KiB
 *     T, and C x COLUMNS       19, 42 KiB, or C x 64      11, 26 KiB
 *
 * BARRIERS. Every one stands in the kernel itself, none in a branch: see step.cl. The functions are
 * what happens between two of them.
 *
 * The token grid starts at each sequence's own start, so a sequence gives the same bits alone and
 * packed. Rows past a sequence's end have k = q = v = beta = 0 and decay 1: they change nothing.
 *
 * SPDX-License-Identifier: MIT */

#ifndef KDA_PREPARE_WG
#define KDA_PREPARE_WG 512 /* a power of two up to 8 C, with vectors up to 2 C */
#endif
#ifndef KDA_SLAB
#define KDA_SLAB 32 /* or PADDED_K */
#endif

#define C KDA_CHUNK
#define BLOCKS (C / 16)
#define PAIRS (BLOCKS * (BLOCKS - 1) / 2)
#define PAIR(I, J) ((I) * ((I)-1) / 2 + (J))
#define SLAB KDA_SLAB
#define COLUMNS (SLAB > 32 ? 128 : 64)
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#if KDA_VECTORS
#define SHARES 1 /* of a slab's channels */
#define ROW SLAB
#define NORM_PARTS 1
#else
#define SHARES 4
#define ROW (SLAB + 4) /* eight neighbouring rows in different banks */
#define NORM_PARTS 8
#endif
#define SHARE (SLAB / SHARES)
#define NEAR_ROLES (2 * SHARES * C)
#define FAR_ROLES (2 * 256)
#define PASSES(roles) ((roles) / KDA_PREPARE_WG)

/* Local memory: three slabs; later T, then R and a product, or columns. */
#define SLAB_K(memory) (memory)
#define SLAB_Q(memory) ((memory) + C * ROW)
#define SLAB_C(memory) ((memory) + 2 * C * ROW)
#define ROWS_SIZE (128 * BLOCKS * (BLOCKS + 1))
#define ROWS_T(memory) (memory)
#define ROWS_R(memory) ((memory) + ROWS_SIZE)
#define PRODUCT(memory) ((memory) + 2 * ROWS_SIZE)
#define SLAB_X(memory) ((memory) + ROWS_SIZE)
#define MEMORY MAX(3 * C * ROW, ROWS_SIZE + MAX(ROWS_SIZE + 16 * C, C * COLUMNS))
/* Where row i of T or R starts. Its length is that of all rows of its block. */
#define ROW_LENGTH(i) (16 * ((i) / 16 + 1))
#define ROW_AT(i) (ROW_LENGTH(i) * ((i) / 16 * 8 + (i) % 16))

/* NVIDIA's compiler begins no load before a branch that stands before it, so there have to be many
 * between two branches; others begin all that they see at once, and spill. */
#define EAGER (KDA_PATH == KDA_PATH_PTX)
#if EAGER
#define UNROLL_LOADS UNROLL_BY(8)
#else
#define UNROLL_LOADS UNROLL_BY(4)
#endif

/* PoCL 3.1's inliner crashes on these functions unless told what to do. */
#define INLINE static inline __attribute__((always_inline))

/* A chunk of a head: its inputs, at the first token, and its factors. */
struct chunk {
    __global const data_t *q, *k, *v;
    __global const gate_t *g;
    __global const beta_t *beta;
    __global float *w, *qd, *ke, *a_qk, *d, *u;
    int rows; /* tokens of the sequence; the others are neutral */
};
