/* Products of floats. */

#ifndef EMBEDKIT_FLOAT_PRODUCT_H
#define EMBEDKIT_FLOAT_PRODUCT_H

#include "vectors.h"

enum { PANEL = PANEL_VECTORS * LANES };

INLINE int at_most(int count, int most) { return count < most ? count : most; }

/* c = a b + start, for numbers of rows and of vectors of columns that are constants where this is inlined. Each
   sum starts with `start` and adds one product after the other, so a row has the same bits regardless of the
   other rows. */
INLINE void tile(const int rows, const int vectors, const float *a, ptrdiff_t lda, const float *b,
                 ptrdiff_t ldb, int depth, float *c, ptrdiff_t ldc, const float *start) {
    Floats sums[TILE_ROWS][PANEL_VECTORS];
    UNROLL(6)
    for (int r = 0; r < rows; r++) {
        UNROLL(4)
        for (int v = 0; v < vectors; v++) sums[r][v] = start ? load(start + v * LANES) : splat(0.0f);
    }
    for (int k = 0; k < depth; k++) {
        Floats columns[PANEL_VECTORS];
        UNROLL(4)
        for (int v = 0; v < vectors; v++) columns[v] = load(b + k * ldb + v * LANES);
        UNROLL(6)
        for (int r = 0; r < rows; r++) {
            const Floats input = splat(a[r * lda + k]);
            UNROLL(4)
            for (int v = 0; v < vectors; v++) sums[r][v] = fma_of(input, columns[v], sums[r][v]);
        }
    }
    UNROLL(6)
    for (int r = 0; r < rows; r++) {
        UNROLL(4)
        for (int v = 0; v < vectors; v++) store(c + r * ldc + v * LANES, sums[r][v]);
    }
}

typedef void TileFunction(const float *, ptrdiff_t, const float *, ptrdiff_t, int, float *, ptrdiff_t,
                          const float *);

/* clang-format off */
#define TILE(R, V)                                                                                          \
    static void tile_##R##_##V(const float *a, ptrdiff_t lda, const float *b, ptrdiff_t ldb, int depth,     \
                               float *c, ptrdiff_t ldc, const float *start) {                               \
        tile(R, V, a, lda, b, ldb, depth, c, ldc, start);                                                   \
    }
#if PANEL_VECTORS == 4
#define TILES(R) TILE(R, 1) TILE(R, 2) TILE(R, 3) TILE(R, 4)
#define NAMES(R) {tile_##R##_1, tile_##R##_2, tile_##R##_3, tile_##R##_4}
#else
#define TILES(R) TILE(R, 1)
#define NAMES(R) {tile_##R##_1}
#endif
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
static TileFunction *const TILE_FUNCTIONS[TILE_ROWS][PANEL_VECTORS] = {
    NAMES(1), NAMES(2), NAMES(3), NAMES(4), NAMES(5), NAMES(6)};
/* clang-format on */

/* c = a b for at most TILE_ROWS rows and any multiple of 16 columns. */
INLINE void multiply_few(const float *a, ptrdiff_t lda, int rows, const float *b, ptrdiff_t ldb, int depth,
                         float *c, ptrdiff_t ldc, int columns) {
    for (int j = 0; j < columns; j += PANEL) {
        const int vectors = at_most(columns - j, PANEL) / LANES;
        TILE_FUNCTIONS[rows - 1][vectors - 1](a, lda, b + j, ldb, depth, c + j, ldc, NULL);
    }
}

static void activate_panel(float *rows, ptrdiff_t ld, int count, Activation kind) {
    for (int r = 0; r < count; r++)
        for (int j = 0; j < PANEL; j += LANES) {
            float *at = rows + r * ld + j;
            store(at, activate(load(at), kind));
        }
}

/* Columns from `first` to `end`, multiples of DEPTH. */
static void multiply_floats(const Product *p, const float *a, int rows, int first, int end, float *c,
                            Activation kind) {
    for (int column = first; column < end; column += PANEL) {
        const float *weights = p->floats + (size_t)column * p->inputs;
        for (int r = 0; r < rows; r += TILE_ROWS) {
            const int count = at_most(rows - r, TILE_ROWS);
            float *to = c + (size_t)r * p->outputs + column;
            TILE_FUNCTIONS[count - 1][PANEL_VECTORS - 1](a + (size_t)r * p->inputs, p->inputs, weights, PANEL,
                                                         p->inputs, to, p->outputs, p->bias + column);
            if (kind != AS_IS) activate_panel(to, p->outputs, count, kind);
        }
    }
}

#endif
