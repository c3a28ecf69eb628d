/* An encoder or cross-encoder of the BERT family, run on texts stored consecutively without padding. A
 * target includes its operations and then this file, which ends with the function that the module calls. */

#ifndef EMBEDKIT_NETWORK_H
#define EMBEDKIT_NETWORK_H

#include <fenv.h>
#include <string.h>

#include "attention.h"
#include "byte_product.h"
#include "layout.h"
#include "words.h"

/* ---- layers ---- */

/* Each step has a structure of its arguments, and a function of type Work for some of its units. */

typedef struct {
    const Product *p;
    const float *from;
    int rows, column; /* the first one that is computed */
    float *to;
    Activation kind;
    Rounded *scratch;
    Workspace *w;
} Application;

/* Units: rows. */
static void round_some(const void *step, int first, int end, int seat) {
    const Application *a = step;
    (void)seat;
    if (!round_rows(a->p, a->from, first, end, a->scratch)) write_atomic(&a->w->broken, true);
}

/* Units: DEPTH columns. */
static void multiply_some(const void *step, int first, int end, int seat) {
    const Application *a = step;
    const int from = a->column + first * DEPTH, to = a->column + end * DEPTH;
    (void)seat;
    if (a->p->floats)
        multiply_floats(a->p, a->from, a->rows, from, to, a->to, a->kind);
    else
        MULTIPLY_BYTES(a->p, a->scratch, a->rows, from, to, a->to, a->kind);
}

/* Columns from `first` to `end`, multiples of DEPTH, of to = activation(from w + bias), for at most the rows of one
   call; rows of `to` have all columns. */
static void apply_columns(const Product *p, int first, int end, const float *from, int rows, float *to,
                          Activation kind, Rounded *scratch, Workspace *w) {
    const Application step = {p, from, rows, first, to, kind, scratch, w};
    if (!p->floats) share(w->team, rows, round_some, &step);
    share(w->team, (end - first) / DEPTH, multiply_some, &step);
}

/* All columns. */
static void apply(const Product *p, const float *from, int rows, float *to, Activation kind, Rounded *scratch,
                  Workspace *w) {
    apply_columns(p, 0, p->outputs, from, rows, to, kind, scratch, w);
}

typedef struct {
    const Net *n;
    const Norm *norm;
    float *rows;
    const float *added;
    float *to;
} Normalisation;

/* Units: rows. */
static void normalise_some(const void *step, int first, int end, int seat) {
    const Normalisation *s = step;
    const size_t hidden = (size_t)s->n->hidden;
    (void)seat;
    for (int r = first; r < end; r++)
        normalise_row(s->rows + r * hidden, s->added + r * hidden, s->to + r * hidden, s->n->hidden,
                      s->norm->weight, s->norm->bias, s->n->epsilon);
}

static void add_and_normalise(const Net *n, const Norm *norm, float *rows, const float *added, float *to,
                              int count, Workspace *w) {
    const Normalisation step = {n, norm, rows, added, to};
    share(w->team, count, normalise_some, &step);
}

typedef struct {
    const Net *n;
    const Workspace *w;
} Gate;

/* Units: rows. */
static void gate_some(const void *step, int first, int end, int seat) {
    const Workspace *w = ((const Gate *)step)->w;
    const Net *n = ((const Gate *)step)->n;
    const size_t width = (size_t)n->intermediate;
    (void)seat;
    for (size_t r = (size_t)first; r < (size_t)end; r++) {
        const float *opened = w->wide + 2 * r * width, *gate = opened + width;
        float *to = w->opened + r * width;
        for (size_t i = 0; i < width; i += LANES)
            store(to + i, mul(activate(load(opened + i), n->gelu), load(gate + i)));
    }
}

typedef struct {
    const Net *n;
    const Layer *l;
    const int32_t *starts;
    bool first_only;
    Workspace *w;
} Attention;

/* Units: heads of texts. */
static void attend_some(const void *step, int first, int end, int seat) {
    const Attention *a = step;
    const Workspace *w = a->w;
    const Net *n = a->n;
    const size_t hidden = (size_t)n->hidden, head = hidden / (size_t)n->heads;
    for (int unit = first; unit < end; unit++) {
        const int32_t *start = a->starts + unit / n->heads;
        const int length = start[1] - start[0], wanted = a->first_only ? at_most(length, 1) : length;
        const int which = unit % n->heads;
        const size_t column = (size_t)which * head, row = (size_t)start[0];
        float *query = w->projected + row * 3 * hidden + column;
        if (a->l->rotation) {
            rotate_rows(query, (ptrdiff_t)(3 * hidden), wanted, (int)head, a->l->rotation);
            rotate_rows(query + hidden, (ptrdiff_t)(3 * hidden), length, (int)head, a->l->rotation);
        }
        attend(query, length, wanted, n->hidden, (int)head, bias_of(n, which), a->l->window,
               w->context + row * hidden + column, w->keys + (size_t)seat * keys_of_seat(n, w->longest),
               w->scores + (size_t)seat * scores_of_seat(w->longest));
    }
}

/* The part after attention, for at most the rows of one call. */
static void feed_forward(const Net *n, const Layer *l, float *states, float *residual, const float *context,
                         int count, Workspace *w) {
    apply(&l->attention_output, context, count, w->narrow, AS_IS, &w->narrow_bytes, w);
    add_and_normalise(n, &l->attention_norm, residual, w->narrow, states, count, w);
    apply(&l->ffn_in, states, count, w->wide, n->gated ? AS_IS : n->gelu, &w->narrow_bytes, w);
    if (n->gated) share(w->team, count, gate_some, &(Gate){n, w});
    apply(&l->ffn_out, w->opened, count, w->narrow, AS_IS, &w->wide_bytes, w);
    add_and_normalise(n, &l->norm, residual, w->narrow, states, count, w);
}

/* Finds the first tokens of the next texts that have tokens, at most `most`, and returns their number; `text` is the
   text to continue with. */
static int next_first_tokens(const int32_t *starts, int texts, int most, int *text, int *first) {
    int count = 0;
    for (; *text < texts && count < most; ++*text)
        if (starts[*text] < starts[*text + 1]) first[count++] = starts[*text];
    return count;
}

/* The same for the first token of each text; the rows are first gathered in the buffer of the projections. */
static void feed_forward_first(const Net *n, const Layer *l, const int32_t *starts, int texts, Workspace *w) {
    const size_t hidden = (size_t)n->hidden, row = hidden * sizeof(float);
    int first[MOST_ROWS];
    for (int text = 0, count; (count = next_first_tokens(starts, texts, rows_of_call(n), &text, first));) {
        float *residual = w->projected, *context = residual + count * hidden;
        float *states = n->pre_norm ? context + count * hidden : residual;
        for (int r = 0; r < count; r++) {
            memcpy(residual + r * hidden, w->residual + first[r] * hidden, row);
            memcpy(context + r * hidden, w->context + first[r] * hidden, row);
        }
        feed_forward(n, l, states, residual, context, count, w);
        for (int r = 0; r < count; r++) memcpy(w->states + first[r] * hidden, states + r * hidden, row);
    }
}

/* Queries of the first token of each text. */
static void query_first(const Net *n, const Layer *l, const int32_t *starts, int texts, Workspace *w) {
    const size_t hidden = (size_t)n->hidden, row = hidden * sizeof(float);
    int first[MOST_ROWS];
    for (int text = 0, count; (count = next_first_tokens(starts, texts, rows_of_call(n), &text, first));) {
        for (int r = 0; r < count; r++) memcpy(w->narrow + r * hidden, w->states + first[r] * hidden, row);
        apply_columns(&l->qkv, 0, n->hidden, w->narrow, count, w->wide, AS_IS, &w->narrow_bytes, w);
        for (int r = 0; r < count; r++)
            memcpy(w->projected + first[r] * 3 * hidden, w->wide + r * 3 * hidden, row);
    }
}

/* One layer over texts that start at starts[0] = 0 to starts[texts - 1]; the last computes only pooled rows. */
static void run_layer(const Net *n, const Layer *l, const int32_t *starts, int texts, Workspace *w) {
    const bool first_only = n->first_token && l == n->layer + n->layers - 1;
    const int tokens = starts[texts], most = rows_of_call(n);
    const size_t hidden = (size_t)n->hidden;
    for (int r = 0; r < tokens; r += most)
        apply_columns(&l->qkv, first_only ? n->hidden : 0, 3 * n->hidden, w->states + r * hidden,
                      at_most(tokens - r, most), w->projected + r * 3 * hidden, AS_IS, &w->narrow_bytes, w);
    if (first_only) query_first(n, l, starts, texts, w);
    const Attention attention = {n, l, starts, first_only, w};
    share(w->team, texts * n->heads, attend_some, &attention);
    if (first_only) {
        feed_forward_first(n, l, starts, texts, w);
        return;
    }
    for (int r = 0; r < tokens; r += most)
        feed_forward(n, l, w->states + r * hidden, w->residual + r * hidden, w->context + r * hidden,
                     at_most(tokens - r, most), w);
}

/* ---- from ids to rows ---- */

/* Embeddings of one text; types is NULL if the network has none. */
static void embed(const Net *n, const int32_t *ids, const int32_t *types, int length, float *states) {
    int counted = 0;
    for (int i = 0; i < length; i++) {
        const int place = n->padding_id < 0 ? i : ids[i] == n->padding_id ? 0 : ++counted;
        float *row = states + (size_t)i * n->hidden;
        const float *type = types ? n->types + (size_t)types[i] * n->hidden : NULL;
        if (!n->places) memset(row, 0, sizeof *row * (size_t)n->hidden);
        place_word(&n->words, ids[i], n->places ? n->places + (size_t)place * n->hidden : row, row);
        normalise_row(row, type, row, n->hidden, n->embedding_norm.weight, n->embedding_norm.bias, n->epsilon);
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

/* A row's product with the last column. */
static float logit_of(const Net *n, const float *row) {
    Floats sum = splat(0.0f);
    for (int i = 0; i < n->dimension; i += LANES) sum = fma_of(load(row + i), load(n->score + i), sum);
    return sum_of(sum) + n->score[n->dimension];
}

static float sigmoid(float logit) {
    float small[LANES];
    store(small, exp_of(splat(logit < 0.0f ? logit : -logit)));
    return (logit < 0.0f ? *small : 1.0f) / (1.0f + *small);
}

/* Pool states and write rows or scores, for at most as many texts as a call has rows. */
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
        const Norm *norm = &n->head_norm;
        if (norm->weight) normalise_row(row, NULL, row, n->dimension, norm->weight, norm->bias, n->epsilon);
        bool finite = is_finite(row, n->dimension);
        if (n->score) {
            const float logit = logit_of(n, row);
            finite &= fabsf(logit) <= FLT_MAX;
            out[t] = w->logits ? logit : sigmoid(logit);
        }
        if (n->unit) finite &= scale_to_unit(row, n->dimension);
        if (!finite) write_atomic(&w->broken, true);
    }
}

#ifndef PREPARE /* code of a target before and after a run */
#define PREPARE
#define LEAVE
#endif

/* Target.run and Target.help use the standard rounding mode and treatment of numbers close to zero, whatever
 * the thread has set. */
static bool run(const Net *n, const int32_t *ids, const int32_t *types, const int32_t *starts, int texts,
                float *rows, Workspace *w) {
    const size_t width = n->score ? 1 : (size_t)n->dimension;
    const int most = rows_of_call(n);
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    PREPARE;
    write_atomic(&w->broken, false);
    for (int t = 0; n->hidden && t < texts; t++)
        embed(n, ids + starts[t], types ? types + starts[t] : NULL, starts[t + 1] - starts[t],
              w->states + (size_t)starts[t] * n->hidden);
    if (n->pre_norm) memcpy(w->residual, w->states, sizeof(float) * (size_t)starts[texts] * (size_t)n->hidden);
    for (int l = 0; l < n->layers; l++) run_layer(n, n->layer + l, starts, texts, w);
    for (int t = 0; t < texts; t += most)
        finish(n, ids, starts + t, at_most(texts - t, most), rows + (size_t)t * width, w);
    LEAVE;
    fesetenv(&environment);
    return !read_atomic(&w->broken);
}

static void help(Team *team) {
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    PREPARE;
    assist(team);
    LEAVE;
    fesetenv(&environment);
}

#endif
