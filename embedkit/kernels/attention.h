/* Attention between the tokens of one text, in floats. */

#ifndef EMBEDKIT_ATTENTION_H
#define EMBEDKIT_ATTENTION_H

#include "float_product.h"

/* Softmax of `length` scores, to which biases are added first if there are any; sets those up to the next multiple of
   16 to 0. */
INLINE void softmax_row(float *scores, const float *bias, int length) {
    const Floats lowest = splat(-INFINITY);
    Floats largest = lowest;
    for (int i = 0; i < length; i += LANES) {
        Floats x = load(scores + i);
        if (bias) x = add(x, load(bias + i));
        if (length - i < LANES) x = first_of(x, length - i, lowest);
        if (bias || length - i < LANES) store(scores + i, x);
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
INLINE void turn_keys(const float *key, long ld, int length, int head, float *columns, int padded) {
    for (int i = 0; i < length; i += LANES)
        for (int j = 0; j < head; j += LANES)
            transpose_16(key + i * ld + j, ld, at_most(length - i, LANES), columns + (long)j * padded + i,
                         padded);
}

/* One head of one text: queries, keys and values side by side in rows of 3 hidden floats, to rows of hidden
   floats, of which only the first `wanted` are computed; `head` is the width of a head, at which rows and
   context point. bias: what is added to scores, at the distance of the key from the query, or NULL. keys: capacity
   for head * padded floats, scores: for TILE_ROWS * padded; padded is length as whole vectors. */
static void attend(const float *query, int length, int wanted, int hidden, int head, const float *bias,
                   float *context, float *keys, float *scores) {
    const int padded = whole_vectors(length);
    const long ld = 3L * hidden;
    const float *key = query + hidden, *value = key + hidden;
    turn_keys(key, ld, length, head, keys, padded);
    for (int i = 0; i < wanted; i += TILE_ROWS) {
        const int count = at_most(wanted - i, TILE_ROWS);
        multiply_few(query + i * ld, ld, count, keys, padded, head, scores, padded, padded);
        for (int r = 0; r < count; r++)
            softmax_row(scores + (long)r * padded, bias ? bias - i - r : NULL, length);
        multiply_few(scores, padded, count, value, ld, length, context + (long)i * hidden, hidden, head);
    }
}

#endif
