/* The AMX tile instructions in software, so that kernels/cpu/linear_amx.c runs on any machine: tiles of at most 16 rows
 * of 64 bytes, shapes checked as the processor checks them, TDPBF16PS step by step as Intel's manual writes it down
 * (Software Developer's Manual, volume 2). One set of tiles a thread. */
#ifndef TV_TILES_H
#define TV_TILES_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

typedef struct {
    int rows, row_bytes;
    unsigned char at[16][64];
} emulated_tile;

static _Thread_local struct {
    int configured;
    emulated_tile tile[8];
} tiles;

static void _tile_loadconfig(const void *shapes) {
    const unsigned char *s = shapes;
    TV_ASSERT(s[0] == 1 && s[1] == 0);
    for (int i = 2; i < 16; i++) TV_ASSERT(s[i] == 0);
    memset(&tiles, 0, sizeof tiles);
    tiles.configured = 1;
    for (int t = 0; t < 8; t++) {
        tiles.tile[t].row_bytes = s[16 + 2 * t] | s[17 + 2 * t] << 8;
        tiles.tile[t].rows = s[48 + t];
        TV_ASSERT(tiles.tile[t].rows <= 16 && tiles.tile[t].row_bytes <= 64);
    }
    for (int i = 8; i < 16; i++) TV_ASSERT(!s[16 + 2 * i] && !s[17 + 2 * i] && !s[48 + i]);
}

static void _tile_release(void) { memset(&tiles, 0, sizeof tiles); }

static emulated_tile *tile_at(int t) {
    TV_ASSERT(tiles.configured && t >= 0 && t < 8 && tiles.tile[t].rows && tiles.tile[t].row_bytes);
    return &tiles.tile[t];
}

static void _tile_zero(int t) { memset(tile_at(t)->at, 0, sizeof tiles.tile[t].at); }

static void _tile_loadd(int t, const void *from, size_t stride) {
    emulated_tile *to = tile_at(t);
    memset(to->at, 0, sizeof to->at);
    for (int r = 0; r < to->rows; r++) memcpy(to->at[r], (const char *)from + r * stride, (size_t)to->row_bytes);
}

static void _tile_stored(int t, void *to, size_t stride) {
    const emulated_tile *from = tile_at(t);
    for (int r = 0; r < from->rows; r++) memcpy((char *)to + r * stride, from->at[r], (size_t)from->row_bytes);
}

/* Values below the normal range are zeros, on the way in and on the way out. */
static float tile_flush(float v) { return fabsf(v) < FLT_MIN ? copysignf(0, v) : v; }
static float tile_operand(const emulated_tile *t, int row, int element) {
    uint16_t half;
    memcpy(&half, &t->at[row][2 * element], sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return tile_flush(v);
}

static void _tile_dpbf16ps(int sum, int x, int w) {
    emulated_tile *c = tile_at(sum);
    const emulated_tile *a = tile_at(x), *b = tile_at(w);
    TV_ASSERT(a->rows == c->rows && b->row_bytes == c->row_bytes && a->row_bytes / 4 == b->rows);
    for (int m = 0; m < c->rows; m++)
        for (int n = 0; n < c->row_bytes / 4; n++) {
            float part[2] = {0, 0}, out;
            for (int k = 0; k < a->row_bytes / 4; k++)
                for (int i = 0; i < 2; i++)
                    part[i] = tile_flush(fmaf(tile_operand(a, m, 2 * k + i), tile_operand(b, k, 2 * n + i), part[i]));
            memcpy(&out, &c->at[m][4 * n], sizeof out);
            out = tile_flush(tile_flush(out) + tile_flush(part[0] + part[1]));
            memcpy(&c->at[m][4 * n], &out, sizeof out);
        }
}

#endif
