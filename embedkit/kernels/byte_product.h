/* Products of bytes: inputs quantized row by row, exact integer sums, and conversion back to floats. */

#ifndef EMBEDKIT_BYTE_PRODUCT_H
#define EMBEDKIT_BYTE_PRODUCT_H

#include "float_product.h"

/* Sums of a tile of rows and columns. */
typedef struct {
    const int32_t *sums;
    int ld, row, rows, column, columns;
} Block;

/* ---- rounding ---- */

/* Inputs from `i`, times their factors, if there are any. */
INLINE Floats load_inputs_of(const float *row, const float *factors, int i) {
    const Floats x = load(row + i);
    return factors ? mul(x, load(factors + i)) : x;
}

/* The minimum of a row, and 1 / 255 of its range. False if a value is not finite. Processes four parts of a row
   at a time, so that none waits for the previous one. */
INLINE bool find_step(const float *row, const float *factors, int width, float *step, float *least) {
    Floats low[4], high[4], check[4];
    UNROLL(4)
    for (int v = 0; v < 4; v++) {
        low[v] = high[v] = load_inputs_of(row, factors, v * LANES);
        check[v] = mul(low[v], splat(0.0f));
    }
    for (int i = DEPTH; i < width; i += DEPTH) {
        UNROLL(4)
        for (int v = 0; v < 4; v++) {
            const Floats x = load_inputs_of(row, factors, i + v * LANES);
            low[v] = min_of(low[v], x);
            high[v] = max_of(high[v], x);
            check[v] = fma_of(x, splat(0.0f), check[v]);
        }
    }
    *least = least_of(min_of(min_of(low[0], low[1]), min_of(low[2], low[3])));
    *step = (largest_of(max_of(max_of(high[0], high[1]), max_of(high[2], high[3]))) - *least) / 255.0f;
    if (!(*step > 0.0f)) *step = 1.0f; /* all values of the row are equal */
    return sum_of(sum_of_four(check)) == 0.0f && *step <= FLT_MAX;
}

/* Converts 64 inputs from `i`, times `by` plus `shift`, to bytes, clipped to 0 and 255. */
INLINE void round_64(const float *row, const float *factors, int i, Floats by, Floats shift, uint8_t *to) {
    Floats x[4];
    UNROLL(4)
    for (int v = 0; v < 4; v++) x[v] = fma_of(load_inputs_of(row, factors, i + v * LANES), by, shift);
    store_bytes(x, to + i);
}

/* Rounds rows from `first` to `end`. Returns false if a value is not finite. */
static bool round_rows(const Product *p, const float *a, int first, int end, Rounded *to) {
    const int width = p->inputs;
    bool finite = true;
    for (int r = first; r < end; r++) {
        const float *row = a + (size_t)r * width;
        float step = p->step, least = p->least;
        finite &= step == 0.0f ? find_step(row, p->factors, width, &step, &least) : is_finite(row, width);
        to->step[r] = step;
        to->least[r] = least;
        const Floats by = splat(1.0f / step), shift = splat(-least / step);
        for (int i = 0; i < width; i += 64)
            round_64(row, p->factors, i, by, shift, to->bytes + (size_t)r * width);
    }
    return finite;
}

/* ---- back to floats ---- */

INLINE void scale_block_as(const Product *p, const Rounded *a, Block b, float *c, const Activation kind) {
    for (int j = b.column; j < b.column + b.columns; j += LANES) {
        const Floats scale = load(p->scales + j), bias = load(p->bias + j), sum = load(p->sums + j);
        for (int r = 0; r < b.rows; r++) {
            const Floats step = splat(a->step[b.row + r]), least = splat(a->least[b.row + r]);
            const Floats whole = load_sums(b.sums + r * b.ld + j - b.column);
            const Floats x = fma_of(sum, least, mul(whole, step));
            float *to = c + (size_t)(b.row + r) * p->outputs + j;
            store(to, activate(fma_of(x, scale, bias), kind));
        }
    }
}

static void scale_block(const Product *p, const Rounded *a, Block b, float *c, Activation kind) {
    switch (kind) { /* so that the kind is constant in the loops */
    case AS_IS: scale_block_as(p, a, b, c, AS_IS); break;
    case GELU_ERF: scale_block_as(p, a, b, c, GELU_ERF); break;
    case GELU_TANH: scale_block_as(p, a, b, c, GELU_TANH); break;
    case TANH: scale_block_as(p, a, b, c, TANH); break;
    }
}

/* ---- sums ---- */

#ifndef MULTIPLY_BYTES /* a target may define its own */
#define MULTIPLY_BYTES multiply_bytes

#ifndef BYTE_STEP /* inputs that add_products() takes */
#define BYTE_STEP 4
#endif

/* Sums of `rows` rows and PANEL columns; rows and together are constants where this is inlined. */
INLINE void sum_panel_of(const int rows, const int together, const Product *p, const uint8_t *a, int column,
                         int32_t *to) {
    const int inputs = p->inputs;
    const int8_t *b = p->bytes + (size_t)column * inputs;
    Sums sums[BYTE_TILE_ROWS][PANEL_VECTORS];
    UNROLL(6)
    for (int r = 0; r < rows; r++) {
        UNROLL(4)
        for (int v = 0; v < PANEL_VECTORS; v++) sums[r][v] = no_sums(p->sums + column + v * LANES);
    }
    for (int k = 0; k < inputs; k += BYTE_STEP) {
        Columns columns[PANEL_VECTORS];
        UNROLL(4)
        for (int v = 0; v < PANEL_VECTORS; v++) columns[v] = load_columns(b + ((size_t)v * inputs + k) * LANES);
        UNROLL(6)
        for (int r = 0; r < rows; r++) {
            const Inputs four = load_inputs(a + (size_t)r * inputs + k);
            UNROLL(4)
            for (int v = 0; v < PANEL_VECTORS; v++)
                sums[r][v] = add_products(sums[r][v], four, columns[v], together);
        }
    }
    UNROLL(6)
    for (int r = 0; r < rows; r++) {
        UNROLL(4)
        for (int v = 0; v < PANEL_VECTORS; v++) store_sums(to + r * PANEL + v * LANES, sums[r][v]);
    }
}

INLINE void sum_panel_as(int rows, const int together, const Product *p, const uint8_t *a, int column,
                         int32_t *to) {
    switch (rows) {
    case 1: sum_panel_of(1, together, p, a, column, to); break;
    case 2: sum_panel_of(2, together, p, a, column, to); break;
    case 3: sum_panel_of(3, together, p, a, column, to); break;
#if BYTE_TILE_ROWS == 6
    case 4: sum_panel_of(4, together, p, a, column, to); break;
    case 5: sum_panel_of(5, together, p, a, column, to); break;
#endif
    default: sum_panel_of(BYTE_TILE_ROWS, together, p, a, column, to); break;
    }
}

#ifdef SATURATES
static void sum_panel(int rows, const Product *p, const uint8_t *a, int column, int32_t *to) {
    if (p->together == 1)
        sum_panel_as(rows, 1, p, a, column, to);
    else if (p->together == 2)
        sum_panel_as(rows, 2, p, a, column, to);
    else {
        const int block = column / LANES;
        sum_panel_as(rows, 4, p, a, column, to);
        for (int e = block ? p->excess_end[block - 1] : 0; e < p->excess_end[block]; e++) {
            const Excess *excess = p->excess + e;
            for (int r = 0; r < rows; r++)
                to[r * PANEL + excess->column] += a[(size_t)r * p->inputs + excess->input] * excess->value;
        }
    }
}
#else
static void sum_panel(int rows, const Product *p, const uint8_t *a, int column, int32_t *to) {
    sum_panel_as(rows, 4, p, a, column, to);
}
#endif

/* Columns from `first` to `end`, multiples of DEPTH. */
static void multiply_bytes(const Product *p, const Rounded *a, int rows, int first, int end, float *c,
                           Activation kind) {
    ALIGNED_64 int32_t sums[BYTE_TILE_ROWS * PANEL];
    for (int column = first; column < end; column += PANEL)
        for (int r = 0; r < rows; r += BYTE_TILE_ROWS) {
            const Block b = {sums, PANEL, r, at_most(rows - r, BYTE_TILE_ROWS), column, PANEL};
            sum_panel(b.rows, p, a->bytes + (size_t)r * p->inputs, column, sums);
            scale_block(p, a, b, c, kind);
        }
}

#else
static void MULTIPLY_BYTES(const Product *p, const Rounded *a, int rows, int first, int end, float *c,
                           Activation kind);
#endif

#endif
