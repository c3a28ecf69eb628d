/* Word tables, and what a token is before the first layer. */

#ifndef EMBEDKIT_WORDS_H
#define EMBEDKIT_WORDS_H

#include "vectors.h"

typedef enum { WORDS_FLOAT, WORDS_INT8, WORDS_INT4 } WordKind;

typedef struct {
    WordKind kind;
    int count, width;
    const void *values; /* (count, width) float or int8, or (count, width / 2) uint8 of two values each */
    const void *scales; /* (count, 1) float of int8, (count, blocks) float16 of int4 */
    int blocks;
} WordTable;

INLINE void add_int8(const int8_t *word, float scale, const float *place, int width, float *row) {
    for (int i = 0; i < width; i += LANES) {
        const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(word + i))));
        const __m512 value = _mm512_mul_ps(x, _mm512_set1_ps(scale));
        _mm512_storeu_ps(row + i, _mm512_add_ps(value, _mm512_loadu_ps(place + i)));
    }
}

/* The left half of a row stands in low bits, the right half in high bits, 8 more than they mean. */
INLINE void add_int4(const uint8_t *word, const uint16_t *scales, int block, const float *place, int width,
                     float *row) {
    const int half = width / 2;
    for (int i = 0; i < width; i++) {
        const int stored = i < half ? word[i] & 15 : word[i - half] >> 4;
        row[i] = (float)(stored - 8) * _cvtsh_ss(scales[i / block]) + place[i];
    }
}

/* The word of an id plus the row of its place in the text. */
static void place_word(const WordTable *words, int32_t id, const float *place, float *row) {
    const size_t first = (size_t)id * words->width;
    if (words->kind == WORDS_FLOAT) {
        const float *word = (const float *)words->values + first;
        for (int i = 0; i < words->width; i += LANES)
            _mm512_storeu_ps(row + i, _mm512_add_ps(_mm512_loadu_ps(word + i), _mm512_loadu_ps(place + i)));
    } else if (words->kind == WORDS_INT8) {
        add_int8((const int8_t *)words->values + first, ((const float *)words->scales)[id], place, words->width,
                 row);
    } else {
        const uint16_t *scales = (const uint16_t *)words->scales + (size_t)id * words->blocks;
        add_int4((const uint8_t *)words->values + first / 2, scales, words->width / words->blocks, place,
                 words->width, row);
    }
}

#endif
