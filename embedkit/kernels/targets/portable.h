/* The operations of a target, in plain C: the reference for all other targets.
 *
 * Floats are 16 floats and Sums 16 integers. Each operation is that of IEEE 754 in every lane, rounded to
 * nearest, without contraction or approximation, so all targets that implement them give the same bits,
 * whatever their vector size. A min or max with one NaN operand is its second operand. */

#ifndef EMBEDKIT_PORTABLE_H
#define EMBEDKIT_PORTABLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../model.h"
#include "compiler.h"

#define PANEL_VECTORS 1  /* vectors of columns that a product processes at a time */
#define BYTE_TILE_ROWS 4 /* rows of bytes whose sums fit in registers */

typedef struct {
    float lane[LANES];
} Floats;

typedef struct {
    int32_t lane[LANES];
} Sums;

#define EACH for (int l = 0; l < LANES; l++)

/* ---- floats ---- */

INLINE Floats load(const float *from) {
    Floats x;
    memcpy(x.lane, from, sizeof x.lane);
    return x;
}

INLINE void store(float *to, Floats x) { memcpy(to, x.lane, sizeof x.lane); }

INLINE Floats splat(float value) {
    Floats x;
    EACH
        x.lane[l] = value;
    return x;
}

INLINE Floats add(Floats a, Floats b) {
    EACH
        a.lane[l] += b.lane[l];
    return a;
}

INLINE Floats sub(Floats a, Floats b) {
    EACH
        a.lane[l] -= b.lane[l];
    return a;
}

INLINE Floats mul(Floats a, Floats b) {
    EACH
        a.lane[l] *= b.lane[l];
    return a;
}

INLINE Floats divide(Floats a, Floats b) {
    EACH
        a.lane[l] /= b.lane[l];
    return a;
}

/* a b + c, rounded once */
INLINE Floats fma_of(Floats a, Floats b, Floats c) {
    EACH
        a.lane[l] = fmaf(a.lane[l], b.lane[l], c.lane[l]);
    return a;
}

/* c - a b, rounded once */
INLINE Floats fnma_of(Floats a, Floats b, Floats c) {
    EACH
        a.lane[l] = fmaf(-a.lane[l], b.lane[l], c.lane[l]);
    return a;
}

INLINE Floats min_of(Floats a, Floats b) {
    EACH
        a.lane[l] = a.lane[l] < b.lane[l] ? a.lane[l] : b.lane[l];
    return a;
}

INLINE Floats max_of(Floats a, Floats b) {
    EACH
        a.lane[l] = a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l];
    return a;
}

INLINE Floats absolute(Floats x) {
    EACH
        x.lane[l] = fabsf(x.lane[l]);
    return x;
}

/* Rounds to the nearest integer, ties to even. */
INLINE Floats round_even(Floats x) {
    EACH
        x.lane[l] = rintf(x.lane[l]);
    return x;
}

/* x times 2 to the power n, for integers n from -126 to 0; unspecified for any other n. */
INLINE Floats times_power_of_2(Floats x, Floats n) {
    EACH {
        const int32_t exponent = n.lane[l] >= -126.0f ? (int32_t)n.lane[l] : -126;
        const uint32_t bits = (uint32_t)(exponent + 127) << 23;
        float power;
        memcpy(&power, &bits, sizeof power);
        x.lane[l] *= power;
    }
    return x;
}

/* then where a < b, else otherwise */
INLINE Floats where_less(Floats a, Floats b, Floats then, Floats otherwise) {
    EACH
        a.lane[l] = a.lane[l] < b.lane[l] ? then.lane[l] : otherwise.lane[l];
    return a;
}

/* The first `count` lanes of x, followed by those of `rest`. */
INLINE Floats first_of(Floats x, int count, Floats rest) {
    EACH
        x.lane[l] = l < count ? x.lane[l] : rest.lane[l];
    return x;
}

/* Reductions halve the vector: first lanes 8 apart, then 4, 2 and 1. */
INLINE float sum_of(Floats x) {
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) x.lane[l] += x.lane[l + half];
    return x.lane[0];
}

INLINE float least_of(Floats x) {
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) x.lane[l] = x.lane[l] < x.lane[l + half] ? x.lane[l] : x.lane[l + half];
    return x.lane[0];
}

INLINE float largest_of(Floats x) {
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) x.lane[l] = x.lane[l] > x.lane[l + half] ? x.lane[l] : x.lane[l + half];
    return x.lane[0];
}

/* Transposes 16 by 16 floats: rows of `from`, zeros after the last, to columns of `to`. */
INLINE void transpose_16(const float *from, ptrdiff_t ld, int rows, float *to, ptrdiff_t ldt) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) to[j * ldt + i] = i < rows ? from[i * ld + j] : 0.0f;
}

/* ---- stored words ---- */

INLINE Floats load_int8(const int8_t *from) {
    Floats x;
    EACH
        x.lane[l] = from[l];
    return x;
}

/* 16 values, stored as 8 more, from low and from high halves of bytes. */
INLINE void load_int4(const uint8_t *from, Floats *low, Floats *high) {
    EACH {
        low->lane[l] = (float)((from[l] & 15) - 8);
        high->lane[l] = (float)((from[l] >> 4) - 8);
    }
}

/* ---- bytes ---- */

/* 64 floats, clipped to 0 and 255 and rounded to nearest even; NaN becomes 0. */
INLINE void store_bytes(const Floats *x, uint8_t *to) {
    for (int v = 0; v < 4; v++) {
        const Floats clipped = min_of(max_of(x[v], splat(0.0f)), splat(255.0f));
        EACH
            to[v * LANES + l] = (uint8_t)rintf(clipped.lane[l]);
    }
}

/* Initial sums, for columns whose bytes add up to `sums`. */
INLINE Sums no_sums(const float *sums) {
    Sums none;
    (void)sums;
    EACH
        none.lane[l] = 0;
    return none;
}

typedef const uint8_t *Inputs;
typedef const int8_t *Columns;

/* Four inputs, for all columns. */
INLINE Inputs load_inputs(const uint8_t *from) { return from; }

/* Four bytes of each of 16 columns. */
INLINE Columns load_columns(const int8_t *from) { return from; }

/* Sums plus products of four inputs by four bytes of each column; together as in Product. */
INLINE Sums add_products(Sums sums, Inputs inputs, Columns columns, const int together) {
    (void)together;
    EACH
        for (int i = 0; i < 4; i++) sums.lane[l] += inputs[i] * columns[4 * l + i];
    return sums;
}

INLINE void store_sums(int32_t *to, Sums sums) { memcpy(to, sums.lane, sizeof sums.lane); }

INLINE Floats load_sums(const int32_t *from) {
    Floats x;
    EACH
        x.lane[l] = (float)from[l];
    return x;
}

#endif
