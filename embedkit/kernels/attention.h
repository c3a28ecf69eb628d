/* Attention between the tokens of one text, in floats. */

#ifndef EMBEDKIT_ATTENTION_H
#define EMBEDKIT_ATTENTION_H

#include "float_product.h"

/* Softmax of the scores from `first` to `end`, to which biases are added first if there are any; sets the others, up
   to the multiple of 16 that is next to `length`, to 0. */
INLINE void softmax_row(float *scores, const float *bias, int first, int end, int length) {
    const Floats lowest = splat(-INFINITY);
    Floats largest = lowest;
    for (int i = 0; i < length; i += LANES) {
        Floats x = load(scores + i);
        const int before = first - i, within = end - i;
        if (bias) x = add(x, load(bias + i));
        if (before > 0) x = first_of(lowest, at_most(before, LANES), x);
        if (within < LANES) x = first_of(x, within > 0 ? within : 0, lowest);
        if (bias || before > 0 || within < LANES) store(scores + i, x);
        largest = max_of(largest, x);
    }
    largest = splat(largest_of(largest));
    Floats sum = splat(0.0f);
    for (int i = 0; i < length; i += LANES) {
        const Floats x = exp_of(sub(load(scores + i), largest));
        sum = add(sum, x);
        store(scores + i, x);
    }
    const Floats share = splat(1.0f / sum_of(sum));
    for (int i = 0; i < length; i += LANES) store(scores + i, mul(load(scores + i), share));
}

/* Keys of one head, (length, head), as columns (head, padded). */
INLINE void turn_keys(const float *key, ptrdiff_t ld, int length, int head, float *columns, int padded) {
    for (int i = 0; i < length; i += LANES)
        for (int j = 0; j < head; j += LANES)
            transpose_16(key + i * ld + j, ld, at_most(length - i, LANES),
                         columns + (ptrdiff_t)j * padded + i, padded);
}

/* Rotates the pairs that the halves of each row form, by the cosines and sines of its position in the text. */
static void rotate_rows(float *rows, ptrdiff_t ld, int count, int head, const float *rotation) {
    const int half = head / 2;
    for (int r = 0; r < count; r++) {
        float *row = rows + r * ld;
        const float *cosines = rotation + (ptrdiff_t)r * head, *sines = cosines + half;
        for (int i = 0; i < half; i += LANES) {
            const Floats a = load(row + i), b = load(row + half + i);
            const Floats cosine = load(cosines + i), sine = load(sines + i);
            store(row + i, fnma_of(b, sine, mul(a, cosine)));
            store(row + half + i, fma_of(a, sine, mul(b, cosine)));
        }
    }
}

/* One head of one text: queries, keys and values side by side in rows of 3 hidden floats, to rows of hidden
   floats, of which only the first `wanted` are computed; `head` is the width of a head, at which rows and
   context point. bias: what is added to scores, at the distance of the key from the query, or NULL. window: the
   largest of those distances, or -1. keys: capacity for head * padded floats, scores: for TILE_ROWS * padded; padded
   is length as whole vectors. */
static void attend(const float *query, int length, int wanted, int hidden, int head, const float *bias,
                   int window, float *context, float *keys, float *scores) {
    const int padded = whole_vectors(length);
    const ptrdiff_t ld = (ptrdiff_t)3 * hidden;
    const float *key = query + hidden, *value = key + hidden;
    turn_keys(key, ld, length, head, keys, padded);
    if (window < 0 || window > length) window = length;
    for (int i = 0; i < wanted; i += TILE_ROWS) {
        const int count = at_most(wanted - i, TILE_ROWS);
        /* Keys within the window of one of the queries, from a whole vector. */
        const int first = i > window ? (i - window) / LANES * LANES : 0;
        const int span = at_most(length - i, window + count) + i - first;
        multiply_few(query + i * ld, ld, count, keys + first, padded, head, scores, padded, whole_vectors(span));
        for (int q = i; q < i + count; q++)
            softmax_row(scores + (ptrdiff_t)(q - i) * padded, bias ? bias - q + first : NULL,
                        q - window - first, at_most(length - q, window + 1) + q - first, span);
        multiply_few(scores, padded, count, value + first * ld, ld, span, context + (ptrdiff_t)i * hidden,
                     hidden, head);
    }
}

#endif
