/* A product of rows by a weight matrix, and what may follow it. */

#ifndef EMBEDKIT_PRODUCT_H
#define EMBEDKIT_PRODUCT_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

enum {
    ROWS = 96,     /* that a product gets at a time: its weights come from afar once for all of them */
    PANEL = 64,    /* columns that a product works on at a time */
    TILE_ROWS = 6, /* and rows: 24 vectors of sums, 4 of weights and one of inputs are 29 of 32 registers */
    DEPTH = 64,    /* bytes of a row that one tile of AMX holds */
};

typedef enum { AS_IS, GELU_ERF, GELU_TANH, TANH } Activation;

typedef struct {
    int inputs, outputs; /* both multiples of 64 */
    float *floats;       /* [outputs / 64][inputs][64], or NULL */
    int8_t *bytes;       /* [outputs / 16][inputs / 4][16][4], or NULL */
    float *scales;       /* [outputs]: what a byte of a column stands for */
    float *sums;         /* [outputs]: sum of a column's bytes */
    float *bias;         /* [outputs] */
    float *factors;      /* [inputs] that inputs are multiplied by before they are rounded, or NULL */
    float step, least;   /* what a rounded input's unit stands for, and input 0; step 0: each row has its own */
} Product;

INLINE int at_most(int count, int most) { return count < most ? count : most; }

INLINE __m512 activate(__m512 x, const Activation kind) {
    return kind == GELU_ERF ? gelu_erf(x) : kind == GELU_TANH ? gelu_tanh(x) : kind == TANH ? tanh_of(x) : x;
}

#endif
