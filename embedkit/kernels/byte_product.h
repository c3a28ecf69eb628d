/* Products of bytes: inputs rounded row by row, integer sums by VNNI or AMX, which agree to the bit, and back
 * to floats. */

#ifndef EMBEDKIT_BYTE_PRODUCT_H
#define EMBEDKIT_BYTE_PRODUCT_H

#include "product.h"

enum { BLOCK = 32 }; /* rows and columns of four tiles of AMX, which have 16 rows of 64 bytes */

/* Rows of bytes: byte times step, plus least, is what was rounded. */
typedef struct {
    uint8_t *bytes; /* [ROWS][inputs] */
    float step[ROWS], least[ROWS];
} Rounded;

/* Sums of some rows and columns. */
typedef struct {
    const int32_t *sums;
    int ld, row, rows, column, columns;
} Block;

/* ---- rounding ---- */

/* The least value of a row, and a 255th of the way to the largest. */
INLINE void find_step(const float *row, int width, float *step, float *least) {
    __m512 low = _mm512_loadu_ps(row), high = low;
    for (int i = LANES; i < width; i += LANES) {
        const __m512 x = _mm512_loadu_ps(row + i);
        low = _mm512_min_ps(low, x);
        high = _mm512_max_ps(high, x);
    }
    *least = _mm512_reduce_min_ps(low);
    *step = (_mm512_reduce_max_ps(high) - *least) / 255.0f;
    if (!(*step > 0.0f)) *step = 1.0f; /* a row of one value, which is its least */
}

/* 64 floats, times by plus shift, to bytes; what is below 0 or above 255 is cut off. */
INLINE __m512i round_64(const float *row, const float *factors, __m512 by, __m512 shift) {
    __m512i whole[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        __m512 x = _mm512_loadu_ps(row + v * LANES);
        if (factors) x = _mm512_mul_ps(x, _mm512_loadu_ps(factors + v * LANES));
        x = _mm512_min_ps(_mm512_fmadd_ps(x, by, shift), _mm512_set1_ps(255.0f)); /* so that it fits an int */
        whole[v] = _mm512_cvtps_epi32(x);
    }
    /* Packing takes four integers of each operand in turn. */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i left = _mm512_packs_epi32(whole[0], whole[1]), right = _mm512_packs_epi32(whole[2], whole[3]);
    return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(left, right));
}

static void round_rows(const Product *p, const float *a, int rows, Rounded *to) {
    const int width = p->inputs;
    for (int r = 0; r < rows; r++) {
        const float *row = a + (size_t)r * width;
        float step = p->step, least = p->least;
        if (step == 0.0f) find_step(row, width, &step, &least);
        to->step[r] = step;
        to->least[r] = least;
        const __m512 by = _mm512_set1_ps(1.0f / step), shift = _mm512_set1_ps(-least / step);
        for (int i = 0; i < width; i += 64)
            _mm512_storeu_si512(to->bytes + (size_t)r * width + i,
                                round_64(row + i, p->factors ? p->factors + i : NULL, by, shift));
    }
}

/* ---- back to floats ---- */

INLINE void scale_block_as(const Product *p, const Rounded *a, Block b, float *c, const Activation kind) {
    for (int j = b.column; j < b.column + b.columns; j += LANES) {
        const __m512 scale = _mm512_loadu_ps(p->scales + j), bias = _mm512_loadu_ps(p->bias + j);
        const __m512 sum = _mm512_loadu_ps(p->sums + j);
        for (int r = 0; r < b.rows; r++) {
            const __m512 step = _mm512_set1_ps(a->step[b.row + r]), least = _mm512_set1_ps(a->least[b.row + r]);
            const __m512 whole = _mm512_cvtepi32_ps(_mm512_loadu_si512(b.sums + r * b.ld + j - b.column));
            const __m512 x = _mm512_fmadd_ps(sum, least, _mm512_mul_ps(whole, step));
            float *to = c + (size_t)(b.row + r) * p->outputs + j;
            _mm512_storeu_ps(to, activate(_mm512_fmadd_ps(x, scale, bias), kind));
        }
    }
}

static void scale_block(const Product *p, const Rounded *a, Block b, float *c, Activation kind) {
    switch (kind) { /* so that the loops within know which */
    case AS_IS: scale_block_as(p, a, b, c, AS_IS); break;
    case GELU_ERF: scale_block_as(p, a, b, c, GELU_ERF); break;
    case GELU_TANH: scale_block_as(p, a, b, c, GELU_TANH); break;
    case TANH: scale_block_as(p, a, b, c, TANH); break;
    }
}

/* ---- VNNI ---- */

/* Sums of so many rows and PANEL columns; the number of rows is a constant where this is inlined. */
INLINE void sum_panel_of(const int rows, const uint8_t *a, const int8_t *b, int inputs, int32_t *to) {
    __m512i sums[TILE_ROWS][4];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) sums[r][v] = _mm512_setzero_si512();
    for (int k = 0; k < inputs; k += 4) {
        __m512i columns[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) columns[v] = _mm512_loadu_si512(b + ((long)v * inputs + k) * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, a + (long)r * inputs + k, sizeof four);
            const __m512i input = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], input, columns[v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) _mm512_storeu_si512(to + r * PANEL + v * LANES, sums[r][v]);
}

static void sum_panel(int rows, const uint8_t *a, const int8_t *b, int inputs, int32_t *to) {
    switch (rows) {
    case 1: sum_panel_of(1, a, b, inputs, to); break;
    case 2: sum_panel_of(2, a, b, inputs, to); break;
    case 3: sum_panel_of(3, a, b, inputs, to); break;
    case 4: sum_panel_of(4, a, b, inputs, to); break;
    case 5: sum_panel_of(5, a, b, inputs, to); break;
    default: sum_panel_of(TILE_ROWS, a, b, inputs, to); break;
    }
}

static void multiply_bytes_vnni(const Product *p, const Rounded *a, int rows, float *c, Activation kind) {
    int32_t sums[TILE_ROWS * PANEL] __attribute__((aligned(64)));
    for (int column = 0; column < p->outputs; column += PANEL)
        for (int r = 0; r < rows; r += TILE_ROWS) {
            const Block b = {sums, PANEL, r, at_most(rows - r, TILE_ROWS), column, PANEL};
            sum_panel(b.rows, a->bytes + (size_t)r * p->inputs, p->bytes + (size_t)column * p->inputs,
                      p->inputs, sums);
            scale_block(p, a, b, c, kind);
        }
}

/* ---- AMX ---- */

/* Tiles 0 to 3 hold sums, 4 and 5 inputs, 6 and 7 weights. */
static void configure_tiles(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64))) = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
}

/* Sums of 16 rows, or of 32 if `both`, and BLOCK columns. */
INLINE void sum_block(bool both, const uint8_t *upper, const int8_t *left, int inputs, int32_t *to) {
    const uint8_t *lower = upper + 16L * inputs;
    const int8_t *right = left + (long)LANES * inputs;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < inputs; k += DEPTH) {
        _tile_loadd(4, upper + k, inputs);
        _tile_loadd(6, left + (long)k * LANES, 64);
        _tile_loadd(7, right + (long)k * LANES, 64);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (both) {
            _tile_loadd(5, lower + k, inputs);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
    }
    _tile_stored(0, to, BLOCK * 4);
    _tile_stored(1, to + 16, BLOCK * 4);
    if (both) {
        _tile_stored(2, to + 16 * BLOCK, BLOCK * 4);
        _tile_stored(3, to + 16 * BLOCK + 16, BLOCK * 4);
    }
}

/* Tiles are read whole: rows behind the last are those of an earlier product, and their sums are left. */
static void multiply_bytes_amx(const Product *p, const Rounded *a, int rows, float *c, Activation kind) {
    int32_t sums[BLOCK * BLOCK] __attribute__((aligned(64)));
    for (int column = 0; column < p->outputs; column += BLOCK)
        for (int r = 0; r < rows; r += BLOCK) {
            const Block b = {sums, BLOCK, r, at_most(rows - r, BLOCK), column, BLOCK};
            sum_block(b.rows > 16, a->bytes + (size_t)r * p->inputs, p->bytes + (size_t)column * p->inputs,
                      p->inputs, sums);
            scale_block(p, a, b, c, kind);
        }
}

#endif
