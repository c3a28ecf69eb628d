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

/* Rearranges weights (inputs, outputs) of bytes. */
static inline void pack_bytes(const Product *p, const int8_t *weight) {
    const size_t inputs = (size_t)p->inputs, outputs = (size_t)p->outputs;
    for (size_t i = 0; i < inputs; i++)
        for (size_t o = 0; o < outputs; o++)
            p->bytes[(o / LANES * inputs + i / 4 * 4) * LANES + o % LANES * 4 + i % 4] =
                weight[i * outputs + o];
}

/* Sums the columns of weights (inputs, outputs) of bytes. Returns false if out of memory. */
static inline bool sum_bytes(Product *p, const int8_t *weight) {
    const size_t inputs = (size_t)p->inputs, outputs = (size_t)p->outputs;
    if (!(p->sums = (float *)aligned(sizeof(float) * outputs))) return false;
    p->narrow = true;
    for (size_t i = 0; i < inputs; i++)
        for (size_t o = 0; o < outputs; o++) {
            p->sums[o] += weight[i * outputs + o];
            if (i % 2) p->narrow &= fits_16_bits(weight[(i - 1) * outputs + o], weight[i * outputs + o]);
        }
    return true;
}

/* Floats of keys, and of scores, that one seat needs for texts of at most `longest` tokens. */
static inline size_t keys_of_seat(const Net *n, int longest) {
    return (size_t)(n->hidden / n->heads) * (size_t)whole_vectors(longest);
}

static inline size_t scores_of_seat(int longest) { return TILE_ROWS * (size_t)whole_vectors(longest); }

/* Divides the memory of a workspace among its arrays, if allocated; returns the number of bytes needed. */
static inline size_t lay_out(const Net *n, Workspace *w, int tokens, int longest, int seats) {
    const size_t rows = (size_t)tokens, hidden = (size_t)n->hidden, intermediate = (size_t)n->intermediate;
    const size_t pre_norm = n->pre_norm, gated = n->gated;
    const size_t pooled = (size_t)pooled_width(n), every = (size_t)seats;
    const size_t widest = (size_t)(n->dimension > n->hidden ? n->dimension : n->hidden);
    const size_t floats[] = {rows * hidden,
                             rows * 3 * hidden,
                             rows * hidden,
                             rows * hidden * pre_norm,
                             ROWS * intermediate * (1 + gated),
                             ROWS * intermediate * gated,
                             ROWS * widest,
                             ROWS * pooled,
                             every * keys_of_seat(n, longest),
                             every * scores_of_seat(longest),
                             ROWS * pooled / 4,
                             ROWS * intermediate / 4};
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
