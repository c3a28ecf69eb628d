/* Memory layout of weights and of a run's workspace. Plain C, like model.h. */

#ifndef EMBEDKIT_LAYOUT_H
#define EMBEDKIT_LAYOUT_H

#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { LINE = 64 }; /* bytes to which weights are aligned */

/* Zeroed memory aligned to a line, or NULL; the address of the allocation is stored before it. */
static inline void *aligned(size_t bytes) {
    char *memory = bytes < SIZE_MAX - 2 * LINE ? calloc(bytes + 2 * LINE, 1) : NULL;
    if (!memory) return NULL;
    char *begin = memory + LINE + (LINE - (uintptr_t)memory % LINE) % LINE;
    memcpy(begin - sizeof memory, &memory, sizeof memory);
    return begin;
}

static inline void release(void *begin) {
    void *memory;
    if (!begin) return;
    memcpy(&memory, (char *)begin - sizeof memory, sizeof memory);
    free(memory);
}

/* Rearranges weights (inputs, outputs) of floats, which need not be aligned, for a target. */
static inline void pack_floats(const Product *p, const char *weight, int panel) {
    const size_t inputs = (size_t)p->inputs, outputs = (size_t)p->outputs, columns = (size_t)panel;
    for (size_t i = 0; i < inputs; i++)
        for (size_t o = 0; o < outputs; o += columns)
            memcpy(p->floats + o * inputs + i * columns, weight + (i * outputs + o) * sizeof(float),
                   columns * sizeof(float));
}

/* Whether the sum of 255 times each of two bytes fits 16 bits. */
static inline bool fits_16_bits(int first, int second) {
    const int sum = 255 * first + 255 * second;
    return sum >= INT16_MIN && sum <= INT16_MAX;
}

/* The place of a weight of bytes among rearranged ones. */
static inline size_t place_of_byte(const Product *p, size_t input, size_t output) {
    return (output / LANES * (size_t)p->inputs + input / 4 * 4) * LANES + output % LANES * 4 + input % 4;
}

/* Rearranges weights (inputs, outputs) of bytes, without what exceeds 16 bits. */
static inline void pack_bytes(const Product *p, const int8_t *weight) {
    const size_t inputs = (size_t)p->inputs, outputs = (size_t)p->outputs;
    for (size_t i = 0; i < inputs; i++)
        for (size_t o = 0; o < outputs; o++) p->bytes[place_of_byte(p, i, o)] = weight[i * outputs + o];
    if (!p->excess) return;
    const Excess *e = p->excess;
    for (size_t b = 0; b < outputs / LANES; b++)
        for (; e < p->excess + p->excess_end[b]; e++)
            p->bytes[place_of_byte(p, (size_t)e->input, b * LANES + (size_t)e->column)] -= (int8_t)e->value;
}

/* Sums the columns of weights (inputs, outputs) of bytes. Returns false if out of memory. */
static inline bool sum_bytes(Product *p, const int8_t *weight) {
    const size_t inputs = (size_t)p->inputs, outputs = (size_t)p->outputs;
    if (!(p->sums = (float *)aligned(sizeof(float) * outputs))) return false;
    p->together = 2;
    for (size_t i = 0; i < inputs; i++)
        for (size_t o = 0; o < outputs; o++) {
            p->sums[o] += weight[i * outputs + o];
            if (i % 2 && !fits_16_bits(weight[(i - 1) * outputs + o], weight[i * outputs + o])) p->together = 1;
        }
    return true;
}

enum { MOST_OF_FOUR = 128 }; /* 255 times it fits 16 bits */

/* Sums the bytes of a sign among the four of a column whose products are added: two neighbours, and the two
   that are four inputs further. */
static inline int sum_of_sign(const int8_t *weight, size_t outputs, int sign) {
    int sum = 0;
    for (size_t q = 0; q < 4; q++) {
        const int value = sign * weight[(q / 2 * 4 + q % 2) * outputs];
        sum += value > 0 ? value : 0;
    }
    return sum;
}

/* Writes what must be taken from the bytes of a sign, the largest first; returns the number of entries, up
 * to 4. */
static inline int find_excess_of_four(const int8_t *weight, size_t outputs, int sign, Excess first,
                                      Excess *to) {
    int count = 0, rest[4], over = sum_of_sign(weight, outputs, sign) - MOST_OF_FOUR;
    for (size_t q = 0; q < 4; q++) rest[q] = sign * weight[(q / 2 * 4 + q % 2) * outputs];
    while (over > 0) {
        int q = 0;
        for (int other = 1; other < 4; other++) q = rest[other] > rest[q] ? other : q;
        const int part = rest[q] < over ? rest[q] : over;
        to[count++] = (Excess){first.input + q / 2 * 4 + q % 2, first.column, (int16_t)(sign * part)};
        rest[q] = 0;
        over -= part;
    }
    return count;
}

/* Finds what bytes have beyond those of which four products fit 16 bits. If those are more than a 512th, adding
   them would take longer than it saves, and the product stays as it is. Returns false if out of memory. */
static inline bool find_excess(Product *p, const int8_t *weight) {
    const size_t outputs = (size_t)p->outputs, blocks = outputs / LANES;
    const size_t most = (size_t)p->inputs * outputs / 512;
    size_t count = 0;
    p->excess = (Excess *)aligned(sizeof(Excess) * (most + 8));
    p->excess_end = (int32_t *)aligned(sizeof(int32_t) * blocks);
    if (!p->excess || !p->excess_end) return false;
    for (size_t b = 0; b < blocks; b++) {
        for (int i = 0; i < p->inputs; i += i % 8 ? 6 : 2)
            for (int l = 0; l < LANES && count <= most; l++) {
                const int8_t *four = weight + (size_t)i * outputs + b * LANES + (size_t)l;
                const Excess first = {i, (int16_t)l, 0};
                count += (size_t)find_excess_of_four(four, outputs, 1, first, p->excess + count);
                count += (size_t)find_excess_of_four(four, outputs, -1, first, p->excess + count);
            }
        p->excess_end[b] = (int32_t)count;
    }
    if (count <= most) {
        p->together = 4;
        return true;
    }
    release(p->excess);
    release(p->excess_end);
    p->excess = NULL;
    p->excess_end = NULL;
    return true;
}

/* Floats of keys, and of scores, that one seat needs for texts of at most `longest` tokens. */
static inline size_t keys_of_seat(const Net *n, int longest) {
    return (size_t)(n->hidden / n->heads) * (size_t)whole_vectors(longest);
}

static inline size_t scores_of_seat(int longest) { return TILE_ROWS * (size_t)whole_vectors(longest); }

/* Divides the memory of a workspace among its arrays, if allocated; returns the number of bytes needed. */
static inline size_t lay_out(const Net *n, Workspace *w, int tokens, int longest, int seats) {
    const size_t rows = (size_t)tokens, of_call = (size_t)rows_of_call(n);
    const size_t hidden = (size_t)n->hidden, intermediate = (size_t)n->intermediate;
    const size_t pre_norm = n->pre_norm, gated = n->gated;
    const size_t pooled = (size_t)pooled_width(n), every = (size_t)seats;
    const size_t widest = (size_t)(n->dimension > n->hidden ? n->dimension : n->hidden);
    const size_t opened = intermediate * (1 + gated), projected = n->first_token ? 3 * hidden : 0;
    const size_t floats[] = {rows * hidden,
                             rows * 3 * hidden,
                             rows * hidden,
                             rows * hidden * pre_norm,
                             of_call * (opened > projected ? opened : projected),
                             of_call * intermediate * gated,
                             of_call * widest,
                             of_call * pooled,
                             every * keys_of_seat(n, longest),
                             every * scores_of_seat(longest),
                             of_call * pooled / 4,
                             of_call * intermediate / 4};
    float *bytes[2], **parts[] = {&w->states, &w->projected, &w->context, &w->residual, &w->wide,  &w->opened,
                                  &w->narrow, &w->pooled,    &w->keys,    &w->scores,   &bytes[0], &bytes[1]};
    size_t used = 0;
    for (size_t part = 0; part < sizeof floats / sizeof *floats; part++) {
        *parts[part] = w->memory ? (float *)w->memory + used : NULL;
        used += floats[part];
    }
    if (!n->pre_norm) w->residual = w->states;
    if (!n->gated) w->opened = w->wide;
    w->narrow_bytes.bytes = (uint8_t *)bytes[0];
    w->wide_bytes.bytes = (uint8_t *)bytes[1];
    w->tokens = tokens;
    w->longest = longest;
    w->seats = seats;
    return used * sizeof(float);
}

#endif
