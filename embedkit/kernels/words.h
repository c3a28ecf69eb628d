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

/* Sixteen stored values, 8 more than they mean, to floats. */
INLINE void add_stored(__m512i stored, float scale, const float *place, float *row) {
    const __m512 x = _mm512_cvtepi32_ps(_mm512_sub_epi32(stored, _mm512_set1_epi32(8)));
    const __m512 value = _mm512_mul_ps(x, _mm512_set1_ps(scale));
    _mm512_storeu_ps(row, _mm512_add_ps(value, _mm512_loadu_ps(place)));
}

/* The left half of a row stands in low bits, the right half in high bits. */
INLINE void add_int4(const uint8_t *word, const uint16_t *scales, int block, const float *place, int width,
                     float *row) {
    const int half = width / 2;
    for (int i = 0; i < half; i += LANES) {
        const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(word + i)));
        const __m512i left = _mm512_and_si512(both, _mm512_set1_epi32(15)), right = _mm512_srli_epi32(both, 4);
        add_stored(left, _cvtsh_ss(scales[i / block]), place + i, row + i);
        add_stored(right, _cvtsh_ss(scales[(half + i) / block]), place + half + i, row + half + i);
    }
}

/* The word of an id plus the row of its place in the text, which may be the row that is written. */
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
