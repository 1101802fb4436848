/* The plan of attention, and a description of all plans. */
#include "kernels/plan.h"

#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum {
    MIN_SPLIT_KEYS = 16, /* shortest split of keys: one tensor-core tile of keys */
    KEY_TILE = 64,       /* keys of one step of the online softmax, as in the flash kernels in use */
    FIXED_SPLIT_KEYS = 256
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x > high ? (high < low ? low : high) : x < low ? low : x;
}

tv_attn_plan tv_plan_attention(const tv_plan *plan, int n_seqs, int G, int max_len) {
    if (plan->reduction == TV_REDUCE_FIXED) return (tv_attn_plan){KEY_TILE, FIXED_SPLIT_KEYS};
    int64_t splits = clamp(plan->units / ((int64_t)n_seqs * G), 1, max_len / MIN_SPLIT_KEYS);
    int64_t keys = ceil_div(ceil_div(max_len, splits), MIN_SPLIT_KEYS) * MIN_SPLIT_KEYS;
    /* A short split is one tile; a longer one is whole tiles. */
    if (keys <= KEY_TILE) return (tv_attn_plan){(int)keys, (int)keys};
    keys = ceil_div(keys, KEY_TILE) * KEY_TILE;
    return (tv_attn_plan){KEY_TILE, keys > INT_MAX ? INT_MAX / KEY_TILE * KEY_TILE : (int)keys};
}

/* snprintf to what is left of buf; *used counts what a larger buffer would hold. */
static void append(char *buf, size_t size, size_t *used, const char *fmt, ...) TV_PRINTF(4, 5);
static void append(char *buf, size_t size, size_t *used, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    size_t at = *used < size ? *used : size;
    int n = vsnprintf(buf + at, size - at, fmt, ap);
    va_end(ap);
    if (n > 0) *used += (size_t)n;
}

void tv_plan_describe(const tv_plan *plan, int D, int H, int G, int HS, int F, int V, char *buf, size_t size) {
    static const int rows[] = {1, 8, 32, 64, 128, 512}, lengths[] = {64, 256, 512, 2048};
    enum { N_ROWS = sizeof rows / sizeof *rows, N_LENGTHS = sizeof lengths / sizeof *lengths };
    const struct {
        const char *name;
        int N, K;
    } products[] = {
        {"qkv", (H + 2 * G) * HS, D}, {"o", D, H * HS}, {"gate_up", 2 * F, D}, {"down", D, F}, {"logits", V, D}};
    size_t used = 0;
    if (size) *buf = 0;
    if (plan->reduction == TV_REDUCE_FIXED)
        append(buf, size, &used, "reduction fixed: from sizes alone; a row's bits depend on nothing else\n");
    else
        append(buf, size, &used, "reduction serving: from the running batch, to fill %d units\n", plan->units);
    append(buf, size, &used, "\nslices x length of the summed dimension, by rows in the step\n  %-8s %7s %6s",
           "product", "outputs", "sum");
    for (int i = 0; i < N_ROWS; i++) append(buf, size, &used, " %*d", 9, rows[i]);
    for (size_t p = 0; p < sizeof products / sizeof *products; p++) {
        append(buf, size, &used, "\n  %-8s %7d %6d", products[p].name, products[p].N, products[p].K);
        for (int i = 0; i < N_ROWS; i++) {
            tv_linear_plan l = tv_plan_linear(plan, rows[i], products[p].N, products[p].K);
            char cell[32];
            snprintf(cell, sizeof cell, "%dx%d", l.slices, l.slice);
            append(buf, size, &used, " %9s", cell);
        }
    }
    append(buf, size, &used, "\n\nflash attention: splits x keys (keys of a tile), by sequences in the step\n  %-23s",
           "longest");
    for (int i = 0; i < N_ROWS; i++) append(buf, size, &used, " %11d", rows[i]);
    for (int j = 0; j < N_LENGTHS; j++) {
        append(buf, size, &used, "\n  %-23d", lengths[j]);
        for (int i = 0; i < N_ROWS; i++) {
            tv_attn_plan t = tv_plan_attention(plan, rows[i], G, lengths[j]);
            char cell[48];
            snprintf(cell, sizeof cell, "%dx%d(%d)", (int)ceil_div(lengths[j], t.split_keys), t.split_keys, t.key_tile);
            append(buf, size, &used, " %11s", cell);
        }
    }
    append(buf, size, &used, "\n");
}
