/* The chunkwise schedule with somebody else's matrix products: what surrounds the GEMMs of the
 * clblast engine. Names and formulas are those of chunk.cl. For the chunks of a piece, in turn:
 *
 *     kda_enter    in_i = the sequence's initial state, or out_(i-1);   out_i = D_i in_i
 *     GEMM         E_i = U_i - W_i in_i            in place of U
 *     GEMM         out_i += Ke_i^T E_i
 *
 * then for all of them at once:
 *
 *     GEMM         P_i = Qd_i in_i
 *     GEMM         P_i += A_qk,i E_i
 *     kda_emit     P to out; states that are final or checkpoints to where they belong
 *
 * SPDX-License-Identifier: MIT */

#ifndef KDA_GEMM_WG
#define KDA_GEMM_WG 64
#endif

#define C KDA_CHUNK

/* One work-item a state element of chunk a.first_chunk + a.step, one row of groups a head. */
__kernel void kda_enter(const struct kda_call_args a, __global const int *state_index,
                        __global const int *accepted, __global const uchar *fresh,
                        __global const state_t *initial_state, __global float *workspace)
{
    const int chunk = a.first_chunk + a.step;
    const int cells = PADDED_K * a.padded_v;
    const int x = (int)get_global_id(0), head = (int)get_global_id(2);
    if (chunk >= chunk_start(&a, workspace, a.sequences) || x >= cells)
        return;
    const long n = sequence_of(&a, workspace, chunk);
    const long slot = sequence_slot(&a, state_index, accepted, n);
    const int r = x / a.padded_v, c = x % a.padded_v;
    /* The out of the chunk before; of a piece's first chunk, the last one of the piece before. */
    const long before = a.step ? a.step - 1 : a.piece - 1;
    float value = 0.0f;
    if (chunk_start(&a, workspace, n) < chunk)
        value = workspace[a.states_out + (before * a.value_heads + head) * cells + x];
    else if (!is_fresh(&a, fresh, n) && slot >= 0 && r < KDA_K && c < a.value_dim)
        value = load_state(initial_state + a.initial_state.offset +
                               slot * a.initial_state.token_stride +
                               head * a.initial_state.head_stride,
                           STATE_AT(r, c, a.value_dim));
    const long place = (long)a.step * a.value_heads + head;
    workspace[a.states_in + place * cells + x] = value;
    workspace[a.states_out + place * cells + x] =
        value * workspace[a.factors + place * a.factor_stride + FACTOR_D + r];
}

/* One work-item a cell, of C x V outputs or of K x V state, whichever is more; one row of groups a
 * chunk and head. */
__kernel void kda_emit(const struct kda_call_args a, __global const int *cu_seqlens,
                       __global const int *state_index, __global const int *write_index,
                       __global const int *accepted, __global state_t *final_state,
                       __global out_t *out, __global state_t *checkpoints,
                       __global float *workspace)
{
    const long place = (long)get_global_id(2);
    const int head = (int)(place % a.value_heads);
    const int chunk = a.first_chunk + (int)(place / a.value_heads);
    const int x = (int)get_global_id(0), r = x / a.padded_v, c = x % a.padded_v;
    if (chunk >= chunk_start(&a, workspace, a.sequences) || c >= a.value_dim)
        return;
    const long n = sequence_of(&a, workspace, chunk);
    if (sequence_slot(&a, state_index, accepted, n) < 0)
        return;
    const long start = sequence_start(&a, cu_seqlens, n);
    const long length = sequence_start(&a, cu_seqlens, n + 1) - start;
    const long first = (long)(chunk - chunk_start(&a, workspace, n)) * C; /* its first token */
    if (r < C && first + r < length)
        store_out(out,
                  a.out.offset + head * a.out.head_stride +
                      (start + first + r) * a.out.token_stride + c,
                  workspace[a.products + place * C * a.padded_v + x]);
    if (r >= KDA_K)
        return;
    const float value = workspace[a.states_out + place * PADDED_K * a.padded_v + x];
    const long done = first + C, at = STATE_AT(r, c, a.value_dim);
    const long to = chunk == chunk_start(&a, workspace, n + 1) - 1
                        ? write_slot(&a, write_index, n, 0)
                        : -1;
    if (to >= 0)
        store_state(final_state + a.final_state.offset + to * a.final_state.token_stride +
                        head * a.final_state.head_stride,
                    at, value);
    if (HAS_CHECKPOINTS(&a) && done <= length && done % a.checkpoint_every == 0)
        store_state(checkpoints + a.checkpoints.offset +
                        (start / a.checkpoint_every + done / a.checkpoint_every - 1) *
                            a.checkpoints.token_stride +
                        head * a.checkpoints.head_stride,
                    at, value);
}
