/* An encoder or cross-encoder of the BERT family, run on texts that stand beside each other without padding. */

#ifndef EMBEDKIT_NETWORK_H
#define EMBEDKIT_NETWORK_H

#include "attention.h"
#include "byte_product.h"
#include "words.h"

typedef struct {
    float *weight, *bias;
} Norm;

typedef struct {
    Product projection, context, wide, narrow;
    Norm context_norm, norm;
} Layer;

typedef struct {
    int hidden, heads, layers, intermediate, positions, token_types, dimension;
    float epsilon;
    Activation gelu;
    bool first_token, amx, has_head, unit; /* first_token: it stands for the text; else the mean of all does */
    Activation head_kind;
    WordTable words, memory;     /* of the same words; a memory of width 0 is none */
    const float *places, *types; /* (positions, hidden); (token_types, hidden), where those are more than 0 */
    Norm embedding_norm;
    Layer *layer;
    Product head;
} Net;

/* ---- memory ---- */

/* What one run at a time needs. */
typedef struct {
    float *states, *projected, *context; /* (tokens, hidden), (tokens, 3 hidden), (tokens, hidden) */
    float *wide, *narrow;                /* (ROWS, intermediate), (ROWS, hidden and memory's width) */
    float *keys, *scores;                /* of attend() */
    Rounded narrow_bytes, wide_bytes;
    int tokens, longest; /* that there is room for */
    void *memory;        /* that holds all of these */
} Workspace;

/* Width of what is pooled: the states, and behind them the memory's rows. */
static int pooled_width(const Net *n) { return n->hidden + n->memory.width; }

/* Share out the memory of a workspace, if it has any yet; the bytes that it takes. */
static size_t lay_out(const Net *n, Workspace *w, int tokens, int longest) {
    const size_t rows = (size_t)tokens, hidden = (size_t)n->hidden, intermediate = (size_t)n->intermediate;
    const size_t pooled = (size_t)pooled_width(n), padded = (size_t)whole_vectors(longest);
    const size_t floats[] = {rows * hidden,       rows * 3 * hidden, rows * hidden,
                             ROWS * intermediate, ROWS * pooled,     hidden / (size_t)n->heads * padded,
                             TILE_ROWS * padded,  ROWS * pooled / 4, ROWS * intermediate / 4};
    float *bytes[2], **parts[] = {&w->states, &w->projected, &w->context, &w->wide, &w->narrow,
                                  &w->keys,   &w->scores,    &bytes[0],   &bytes[1]};
    size_t used = 0;
    for (size_t part = 0; part < sizeof floats / sizeof *floats; part++) {
        *parts[part] = w->memory ? (float *)w->memory + used : NULL;
        used += floats[part];
    }
    w->narrow_bytes.bytes = (uint8_t *)bytes[0];
    w->wide_bytes.bytes = (uint8_t *)bytes[1];
    w->tokens = tokens;
    w->longest = longest;
    return used * sizeof(float);
}

/* ---- layers ---- */

/* to = activation(from w + bias) for at most ROWS rows. */
static void apply(const Net *n, const Product *p, const float *from, int rows, float *to, Activation kind,
                  Rounded *scratch) {
    if (p->floats) {
        multiply_floats(p, from, rows, to, kind);
        return;
    }
    round_rows(p, from, rows, scratch);
    if (n->amx)
        multiply_bytes_amx(p, scratch, rows, to, kind);
    else
        multiply_bytes_vnni(p, scratch, rows, to, kind);
}

static void add_and_normalise(const Net *n, const Norm *norm, float *rows, const float *added, int count) {
    for (int r = 0; r < count; r++)
        normalise_row(rows + (size_t)r * n->hidden, added + (size_t)r * n->hidden, n->hidden, norm->weight,
                      norm->bias, n->epsilon);
}

/* What follows attention, for at most ROWS rows. */
static void feed_forward(const Net *n, const Layer *l, float *states, const float *context, int count,
                         Workspace *w) {
    apply(n, &l->context, context, count, w->narrow, AS_IS, &w->narrow_bytes);
    add_and_normalise(n, &l->context_norm, states, w->narrow, count);
    apply(n, &l->wide, states, count, w->wide, n->gelu, &w->narrow_bytes);
    apply(n, &l->narrow, w->wide, count, w->narrow, AS_IS, &w->wide_bytes);
    add_and_normalise(n, &l->norm, states, w->narrow, count);
}

/* The same for the first token of each text. They stand side by side for it, where projections stood. */
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

/* One layer over texts that start at starts[0] = 0 to starts[texts - 1]; of the last, only what is pooled. */
static void run_layer(const Net *n, const Layer *l, const int32_t *starts, int texts, Workspace *w) {
    const bool first_only = n->first_token && l == n->layer + n->layers - 1;
    const int tokens = starts[texts];
    const size_t hidden = (size_t)n->hidden;
    for (int r = 0; r < tokens; r += ROWS)
        apply(n, &l->projection, w->states + r * hidden, at_most(tokens - r, ROWS),
              w->projected + r * 3 * hidden, AS_IS, &w->narrow_bytes);
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

/* One text; types is NULL where the network has none. */
static void embed(const Net *n, const int32_t *ids, const int32_t *types, int length, float *states) {
    for (int i = 0; i < length; i++) {
        float *row = states + (size_t)i * n->hidden;
        const float *type = types ? n->types + (size_t)types[i] * n->hidden : NULL;
        place_word(&n->words, ids[i], n->places + (size_t)i * n->hidden, row);
        normalise_row(row, type, n->hidden, n->embedding_norm.weight, n->embedding_norm.bias, n->epsilon);
    }
}

/* The first state or the mean of all; zeros of a text without tokens. */
static void pool(const Net *n, const float *states, int length, float *pooled) {
    const int count = n->first_token ? at_most(length, 1) : length;
    const __m512 divisor = _mm512_set1_ps((float)(count ? count : 1));
    for (int i = 0; i < n->hidden; i += LANES) {
        __m512 sum = _mm512_setzero_ps();
        for (int t = 0; t < count; t++)
            sum = _mm512_add_ps(sum, _mm512_loadu_ps(states + (size_t)t * n->hidden + i));
        _mm512_storeu_ps(pooled + i, _mm512_div_ps(sum, divisor));
    }
}

/* The mean of a text's rows in the memory, if there is one; zeros of a text without tokens. */
static void remember(const Net *n, const int32_t *ids, int length, float *mean) {
    const __m512 divisor = _mm512_set1_ps((float)(length ? length : 1));
    memset(mean, 0, sizeof(float) * (size_t)n->memory.width);
    for (int i = 0; i < length; i++) place_word(&n->memory, ids[i], mean, mean);
    for (int i = 0; i < n->memory.width; i += LANES)
        _mm512_storeu_ps(mean + i, _mm512_div_ps(_mm512_loadu_ps(mean + i), divisor));
}

/* Texts to rows, for at most ROWS texts. */
static void finish(const Net *n, const int32_t *ids, const int32_t *starts, int texts, float *rows,
                   Workspace *w) {
    for (int t = 0; t < texts; t++) {
        const int start = starts[t], length = starts[t + 1] - start;
        float *pooled = (n->has_head ? w->narrow : rows) + (size_t)t * pooled_width(n);
        pool(n, w->states + (size_t)start * n->hidden, length, pooled);
        remember(n, ids + start, length, pooled + n->hidden);
    }
    if (n->has_head) apply(n, &n->head, w->narrow, texts, rows, n->head_kind, &w->narrow_bytes);
    for (int t = 0; n->unit && t < texts; t++) scale_to_unit(rows + (size_t)t * n->dimension, n->dimension);
}

/* Rows (texts, dimension) of texts whose ids are ids[starts[t]] to ids[starts[t + 1] - 1]; starts[0] is 0. */
static void run_batch(const Net *n, const int32_t *ids, const int32_t *types, const int32_t *starts, int texts,
                      float *rows, Workspace *w) {
    if (n->amx) configure_tiles();
    for (int t = 0; t < texts; t++)
        embed(n, ids + starts[t], types ? types + starts[t] : NULL, starts[t + 1] - starts[t],
              w->states + (size_t)starts[t] * n->hidden);
    for (int l = 0; l < n->layers; l++) run_layer(n, n->layer + l, starts, texts, w);
    for (int t = 0; t < texts; t += ROWS)
        finish(n, ids, starts + t, at_most(texts - t, ROWS), rows + (size_t)t * n->dimension, w);
    if (n->amx) _tile_release();
}

#endif
