/* Word tables, and the rows of tokens before the first layer. */

#ifndef EMBEDKIT_WORDS_H
#define EMBEDKIT_WORDS_H

#include "vectors.h"

/* Reads a finite float16 of a table that need not be aligned. */
INLINE float read_half(const char *table, size_t index) {
    uint16_t half;
    memcpy(&half, table + index * sizeof half, sizeof half);
    const uint32_t bits = (uint32_t)(half & 0x7fff) << 13, two_to_112 = (uint32_t)(127 + 112) << 23;
    float value, power;
    memcpy(&value, &bits, sizeof value);
    memcpy(&power, &two_to_112, sizeof power);
    return half >> 15 ? -value * power : value * power;
}

/* row = values scale + place */
INLINE void place_values(Floats values, float scale, const float *place, float *row) {
    store(row, add(mul(values, splat(scale)), load(place)));
}

/* The left half of a row is in low bits, the right half in high bits. */
INLINE void place_int4(const uint8_t *word, const char *scales, int block, const float *place, int width,
                       float *row) {
    const int half = width / 2;
    for (int i = 0; i < half; i += LANES) {
        Floats left, right;
        load_int4(word + i, &left, &right);
        place_values(left, read_half(scales, (size_t)(i / block)), place + i, row + i);
        place_values(right, read_half(scales, (size_t)((half + i) / block)), place + half + i, row + half + i);
    }
}

/* The row of an id plus that of its position in the text, which may be the output row. */
static void place_word(const WordTable *words, int32_t id, const float *place, float *row) {
    const size_t first = (size_t)id * words->width;
    if (words->kind == WORDS_FLOAT) {
        const float *word = (const float *)words->values + first;
        for (int i = 0; i < words->width; i += LANES) store(row + i, add(load(word + i), load(place + i)));
    } else if (words->kind == WORDS_INT8) {
        const int8_t *word = (const int8_t *)words->values + first;
        float scale;
        memcpy(&scale, (const char *)words->scales + (size_t)id * sizeof scale, sizeof scale);
        for (int i = 0; i < words->width; i += LANES)
            place_values(load_int8(word + i), scale, place + i, row + i);
    } else {
        const char *scales = (const char *)words->scales + (size_t)id * words->blocks * sizeof(uint16_t);
        place_int4((const uint8_t *)words->values + first / 2, scales, words->width / words->blocks, place,
                   words->width, row);
    }
}

#endif
