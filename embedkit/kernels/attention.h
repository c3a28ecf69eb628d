/* Attention of the tokens of one text to each other, in floats. */

#ifndef EMBEDKIT_ATTENTION_H
#define EMBEDKIT_ATTENTION_H

#include "float_product.h"

/* 16 x 16 floats, rows of `from` to columns of `to`. */
INLINE void transpose_16(const float *from, long ld, int rows, float *to, long ldt) {
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = i < rows ? _mm512_loadu_ps(from + i * ld) : _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b[i]), _mm512_castps_pd(b[i + 2])));
        a[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b[i]), _mm512_castps_pd(b[i + 2])));
        a[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b[i + 1]), _mm512_castps_pd(b[i + 3])));
        a[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b[i + 1]), _mm512_castps_pd(b[i + 3])));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_ps(to + i * ldt, _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88));
        _mm512_storeu_ps(to + (i + 4) * ldt, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88));
        _mm512_storeu_ps(to + (i + 8) * ldt, _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd));
        _mm512_storeu_ps(to + (i + 12) * ldt, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xdd));
    }
}

/* Softmax of `length` scores; those up to the next multiple of 16 are 0 after it. */
INLINE void softmax_row(float *scores, int length) {
    const int whole = length & ~(LANES - 1);
    const __mmask16 rest = (__mmask16)((1u << (length - whole)) - 1);
    __m512 largest = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < whole; i += LANES) largest = _mm512_max_ps(largest, _mm512_loadu_ps(scores + i));
    if (rest) largest = _mm512_mask_max_ps(largest, rest, largest, _mm512_loadu_ps(scores + whole));
    largest = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < whole; i += LANES) {
        const __m512 x = exp_of(_mm512_sub_ps(_mm512_loadu_ps(scores + i), largest));
        sum = _mm512_add_ps(sum, x);
        _mm512_storeu_ps(scores + i, x);
    }
    if (rest) {
        const __m512 x =
            _mm512_maskz_mov_ps(rest, exp_of(_mm512_sub_ps(_mm512_loadu_ps(scores + whole), largest)));
        sum = _mm512_add_ps(sum, x);
        _mm512_storeu_ps(scores + whole, x);
    }
    const __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(sum));
    for (int i = 0; i < length; i += LANES)
        _mm512_storeu_ps(scores + i, _mm512_mul_ps(_mm512_loadu_ps(scores + i), share));
}

/* Keys of one head, (length, head), as columns (head, padded). */
INLINE void turn_keys(const float *key, long ld, int length, int head, float *columns, int padded) {
    for (int i = 0; i < length; i += LANES)
        for (int j = 0; j < head; j += LANES)
            transpose_16(key + i * ld + j, ld, at_most(length - i, LANES), columns + (long)j * padded + i,
                         padded);
}

/* One text: queries, keys and values beside each other in rows of 3 hidden floats, to rows of hidden floats, of
   which only the first so many are wanted.
   keys: room for head * padded floats, scores: for TILE_ROWS * padded; padded is length as whole vectors. */
static void attend(const float *rows, int length, int wanted, int hidden, int heads, float *context,
                   float *keys, float *scores) {
    const int head = hidden / heads, padded = whole_vectors(length);
    const long ld = 3L * hidden;
    for (int h = 0; h < heads; h++) {
        const float *query = rows + h * head, *key = query + hidden, *value = key + hidden;
        turn_keys(key, ld, length, head, keys, padded);
        for (int i = 0; i < wanted; i += TILE_ROWS) {
            const int count = at_most(wanted - i, TILE_ROWS);
            float *to = context + (long)i * hidden + h * head;
            multiply_few(query + i * ld, ld, count, keys, padded, head, scores, padded, padded);
            for (int r = 0; r < count; r++) softmax_row(scores + (long)r * padded, length);
            multiply_few(scores, padded, count, value, ld, length, to, hidden, head);
        }
    }
}

#endif
