/* An encoder or cross-encoder of the BERT family, run on texts stored consecutively without padding. A
 * target includes its operations and then this file, which ends with the function that the module calls. */

#ifndef EMBEDKIT_NETWORK_H
#define EMBEDKIT_NETWORK_H

#include <fenv.h>
#include <string.h>

#include "attention.h"
#include "byte_product.h"
#include "words.h"

/* ---- layers ---- */

/* to = activation(from w + bias) for at most ROWS rows. */
static void apply(const Product *p, const float *from, int rows, float *to, Activation kind, Rounded *scratch,
                  Workspace *w) {
    if (p->floats) {
        multiply_floats(p, from, rows, to, kind);
        return;
    }
    w->finite &= round_rows(p, from, rows, scratch);
    MULTIPLY_BYTES(p, scratch, rows, to, kind);
}

static void add_and_normalise(const Net *n, const Norm *norm, float *rows, const float *added, int count) {
    for (int r = 0; r < count; r++)
        normalise_row(rows + (size_t)r * n->hidden, added + (size_t)r * n->hidden, n->hidden, norm->weight,
                      norm->bias, n->epsilon);
}

/* The part after attention, for at most ROWS rows. */
static void feed_forward(const Net *n, const Layer *l, float *states, const float *context, int count,
                         Workspace *w) {
    apply(&l->context, context, count, w->narrow, AS_IS, &w->narrow_bytes, w);
    add_and_normalise(n, &l->context_norm, states, w->narrow, count);
    apply(&l->wide, states, count, w->wide, n->gelu, &w->narrow_bytes, w);
    apply(&l->narrow, w->wide, count, w->narrow, AS_IS, &w->wide_bytes, w);
    add_and_normalise(n, &l->norm, states, w->narrow, count);
}

/* The same for the first token of each text; the rows are first gathered in the buffer of the projections. */
static void feed_forward_first(const Net *n, const Layer *l, const int32_t *starts, int texts, Workspace *w) {
    const size_t hidden = (size_t)n->hidden, row = hidden * sizeof(float);
    int first[ROWS];
    for (int t = 0; t < texts;) {
        int count = 0;
        for (; t < texts && count < ROWS; t++)
            if (starts[t] < starts[t + 1]) first[count++] = starts[t];
        float *states = w->projected, *context = states + count * hidden;
        for (int r = 0; r < count; r++) {
            memcpy(states + r * hidden, w->states + first[r] * hidden, row);
            memcpy(context + r * hidden, w->context + first[r] * hidden, row);
        }
        feed_forward(n, l, states, context, count, w);
        for (int r = 0; r < count; r++) memcpy(w->states + first[r] * hidden, states + r * hidden, row);
    }
}

/* One layer over texts that start at starts[0] = 0 to starts[texts - 1]; the last computes only pooled rows. */
static void run_layer(const Net *n, const Layer *l, const int32_t *starts, int texts, Workspace *w) {
    const bool first_only = n->first_token && l == n->layer + n->layers - 1;
    const int tokens = starts[texts];
    const size_t hidden = (size_t)n->hidden;
    for (int r = 0; r < tokens; r += ROWS)
        apply(&l->projection, w->states + r * hidden, at_most(tokens - r, ROWS), w->projected + r * 3 * hidden,
              AS_IS, &w->narrow_bytes, w);
    for (int t = 0; t < texts; t++) {
        const int length = starts[t + 1] - starts[t], wanted = first_only ? at_most(length, 1) : length;
        attend(w->projected + starts[t] * 3 * hidden, length, wanted, n->hidden, n->heads,
               w->context + starts[t] * hidden, w->keys, w->scores);
    }
    if (first_only) {
        feed_forward_first(n, l, starts, texts, w);
        return;
    }
    for (int r = 0; r < tokens; r += ROWS)
        feed_forward(n, l, w->states + r * hidden, w->context + r * hidden, at_most(tokens - r, ROWS), w);
}

/* ---- from ids to rows ---- */

/* Embeddings of one text; types is NULL if the network has none. */
static void embed(const Net *n, const int32_t *ids, const int32_t *types, int length, float *states) {
    for (int i = 0; i < length; i++) {
        float *row = states + (size_t)i * n->hidden;
        const float *type = types ? n->types + (size_t)types[i] * n->hidden : NULL;
        place_word(&n->words, ids[i], n->places + (size_t)i * n->hidden, row);
        normalise_row(row, type, n->hidden, n->embedding_norm.weight, n->embedding_norm.bias, n->epsilon);
    }
}

/* The first state or the mean of all; zeros for a text without tokens. */
static void pool(const Net *n, const float *states, int length, float *pooled) {
    const int count = n->first_token ? at_most(length, 1) : length;
    const Floats divisor = splat((float)(count ? count : 1));
    for (int i = 0; i < n->hidden; i += LANES) {
        Floats sum = splat(0.0f);
        for (int t = 0; t < count; t++) sum = add(sum, load(states + (size_t)t * n->hidden + i));
        store(pooled + i, divide(sum, divisor));
    }
}

/* The mean of a text's rows in the memory; zeros for a text without tokens. */
static void remember(const Net *n, const int32_t *ids, int length, float *mean) {
    const Floats divisor = splat((float)(length ? length : 1));
    memset(mean, 0, sizeof(float) * (size_t)n->memory.width);
    for (int i = 0; i < length; i++) place_word(&n->memory, ids[i], mean, mean);
    for (int i = 0; i < n->memory.width; i += LANES) store(mean + i, divide(load(mean + i), divisor));
}

/* The sigmoid of a row's product with the last column. */
static float score_of(const Net *n, const float *row) {
    Floats sum = splat(0.0f);
    for (int i = 0; i < n->dimension; i += LANES) sum = fma_of(load(row + i), load(n->score + i), sum);
    const float logit = sum_of(sum) + n->score[n->dimension];
    float small[LANES];
    store(small, exp_of(splat(logit < 0.0f ? logit : -logit)));
    return (logit < 0.0f ? *small : 1.0f) / (1.0f + *small);
}

/* Pool states and write rows or scores, for at most ROWS texts. */
static void finish(const Net *n, const int32_t *ids, const int32_t *starts, int texts, float *out,
                   Workspace *w) {
    float *rows = n->score ? w->narrow : out;
    for (int t = 0; t < texts; t++) {
        const int start = starts[t], length = starts[t + 1] - start;
        float *pooled = (n->has_head ? w->pooled : rows) + (size_t)t * pooled_width(n);
        pool(n, w->states + (size_t)start * n->hidden, length, pooled);
        if (n->memory.width) remember(n, ids + start, length, pooled + n->hidden);
    }
    if (n->has_head) apply(&n->head, w->pooled, texts, rows, n->head_kind, &w->narrow_bytes, w);
    for (int t = 0; t < texts; t++) {
        float *row = rows + (size_t)t * n->dimension;
        w->finite &= is_finite(row, n->dimension);
        if (n->score) out[t] = score_of(n, row);
        if (n->unit) w->finite &= scale_to_unit(row, n->dimension);
    }
}

#ifndef PREPARE /* code of a target before and after a run */
#define PREPARE
#define LEAVE
#endif

/* Target.run. Uses the standard rounding mode and treatment of numbers close to zero, whatever the thread has
 * set. */
static bool run(const Net *n, const int32_t *ids, const int32_t *types, const int32_t *starts, int texts,
                float *rows, Workspace *w) {
    const size_t width = n->score ? 1 : (size_t)n->dimension;
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    PREPARE;
    w->finite = true;
    for (int t = 0; t < texts; t++)
        embed(n, ids + starts[t], types ? types + starts[t] : NULL, starts[t + 1] - starts[t],
              w->states + (size_t)starts[t] * n->hidden);
    for (int l = 0; l < n->layers; l++) run_layer(n, n->layer + l, starts, texts, w);
    for (int t = 0; t < texts; t += ROWS)
        finish(n, ids, starts + t, at_most(texts - t, ROWS), rows + (size_t)t * width, w);
    LEAVE;
    fesetenv(&environment);
    return w->finite;
}

#endif
