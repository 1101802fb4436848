/* Defines CPU_OPS_TABLE: included once by each isa_*.c, after the names are set. */
#include "kernels/cpu/isa_attention.h"
#include "kernels/cpu/isa_columns.h"
#include "kernels/cpu/isa_logprobs.h"
#include "kernels/cpu/isa_rows.h"

const cpu_ops_isa CPU_OPS_TABLE = {
    .name = CPU_OPS_NAME,
    .add = add_row,
    .norm_scale = norm_scale,
    .norm = norm_row,
    .rope = rope_head,
    .swiglu = swiglu_row,
    .scan = scan_logits,
    .sum_exp = sum_exp,
    .widen = widen_row,
    .scores = attn_scores,
    .values = attn_values,
    .columns_turn = columns_turn,
    .columns_scores = columns_scores,
    .columns_values = columns_values,
    .columns_softmax_tile = columns_softmax_tile,
    .columns_softmax_math = columns_softmax_math,
    .columns_softmax_eager = columns_softmax_eager,
    .softmax_math = softmax_math,
    .softmax_eager = softmax_eager,
    .softmax_tile = softmax_tile,
    .merge = merge_splits,
    .finish = finish_row,
};
