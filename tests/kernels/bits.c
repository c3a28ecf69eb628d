/* Runs networks with random weights on every compiled target that this processor supports, alone and shared by
 * several threads, and prints a digest of the resulting bits: one line for each network. Fails if two differ.
 *
 * It needs neither Python nor a model, so it also runs under sanitizers, on other processors and in an
 * emulator. */

#include <pthread.h>
#include <stdio.h>

#include "../../embedkit/kernels/layout.h"
#include "../../embedkit/kernels/processor.h"
#include "../../embedkit/kernels/targets.h"

typedef struct {
    const Target *target;
    bool (*is_there)(void);
} Candidate;

static const Candidate CANDIDATES[] = {
    {&embedkit_portable, has_portable},
#ifdef WITH_AVX2
    {&embedkit_avx2, has_avx2},
#endif
#ifdef WITH_AVX_VNNI
    {&embedkit_avx_vnni, has_avx_vnni},
#endif
#ifdef WITH_AVX512
    {&embedkit_avx512, has_avx512},
#endif
#ifdef WITH_AMX
    {&embedkit_amx, has_amx},
#endif
#ifdef WITH_NEON_DOTPROD
    {&embedkit_neon_dotprod, has_neon_dotprod},
#endif
#ifdef WITH_NEON_I8MM
    {&embedkit_neon_i8mm, has_neon_i8mm},
#endif
};
enum { CANDIDATE_COUNT = sizeof CANDIDATES / sizeof *CANDIDATES, WORDS = 50, PLACES = 40, TEXTS = 9, HELPERS = 3 };

/* ---- random weights ---- */

static uint64_t state;

static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* A uniform number from -size to size. */
static float draw_float(float size) { return ((float)(draw() % 20001) / 10000.0f - 1.0f) * size; }

static float *draw_floats(size_t count, float size, float around) {
    float *floats = aligned(count * sizeof *floats);
    for (size_t i = 0; i < count; i++) floats[i] = around + draw_float(size);
    return floats;
}

static int8_t *draw_bytes(size_t count, int levels) {
    int8_t *bytes = aligned(count);
    for (size_t i = 0; i < count; i++) bytes[i] = (int8_t)((int)(draw() % (uint32_t)(2 * levels + 1)) - levels);
    return bytes;
}

typedef struct {
    int hidden, heads, intermediate, memory, dimension; /* dimension 0: no head */
    int levels;                                         /* largest byte of a weight; 0: floats */
    bool is_static;
    WordKind words;
    Activation gelu, head;
    bool first_token, score, biased;
    bool pre_norm, gated;
    int rotations, window; /* 0: none; the window is that of the second layer */
    bool head_normed;
    bool is_smoothed; /* with factors of inputs, which static products always have */
} Shape;

static void draw_product(Product *p, const Shape *s, int inputs, int outputs, const Target *target) {
    *p = (Product){.inputs = inputs, .outputs = outputs, .bias = draw_floats((size_t)outputs, 0.2f, 0.0f)};
    if (s->levels == 0) {
        float *weight = draw_floats((size_t)inputs * (size_t)outputs, 0.2f, 0.0f);
        p->floats = aligned(sizeof(float) * (size_t)inputs * (size_t)outputs);
        pack_floats(p, (const char *)weight, target->panel);
        release(weight);
        return;
    }
    int8_t *weight = draw_bytes((size_t)inputs * (size_t)outputs, s->levels);
    p->bytes = aligned((size_t)inputs * (size_t)outputs);
    sum_bytes(p, weight);
    if (target->saturates) find_excess(p, weight);
    pack_bytes(p, weight);
    release(weight);
    p->scales = draw_floats((size_t)outputs, 5e-4f, 2e-3f);
    if (s->is_static) {
        p->step = 0.03f;
        p->least = -128 * p->step;
    }
    if (s->is_static || s->is_smoothed) p->factors = draw_floats((size_t)inputs, 0.3f, 1.0f);
}

static void draw_norm(Norm *n, int width) {
    *n = (Norm){draw_floats((size_t)width, 0.3f, 1.0f), draw_floats((size_t)width, 0.2f, 0.0f)};
}

static void draw_words(WordTable *t, WordKind kind, int width) {
    const size_t count = (size_t)WORDS * (size_t)width;
    *t = (WordTable){.kind = kind, .count = WORDS, .width = width};
    if (kind == WORDS_FLOAT)
        t->values = draw_floats(count, 1.0f, 0.0f);
    else
        t->values = draw_bytes(kind == WORDS_INT8 ? count : count / 2, 127);
    if (kind == WORDS_INT8) t->scales = draw_floats(WORDS, 2e-3f, 6e-3f);
    if (kind == WORDS_INT4) {
        uint16_t *halves = aligned(WORDS * 2 * sizeof *halves);
        for (int i = 0; i < WORDS * 2; i++)
            halves[i] = (uint16_t)(draw() % 0x3800); /* up to 0.5, tiny ones too */
        t->scales = halves;
        t->blocks = 2;
    }
}

static void draw_net(Net *n, const Shape *s, const Target *target) {
    const int pooled = s->hidden + s->memory;
    state = 5;
    *n = (Net){.hidden = s->hidden,
               .heads = s->heads,
               .layers = 2,
               .intermediate = s->intermediate,
               .positions = PLACES,
               .token_types = 2,
               .padding_id = -1,
               .dimension = s->dimension ? s->dimension : pooled,
               .epsilon = 1e-12f,
               .pre_norm = s->pre_norm,
               .gated = s->gated,
               .gelu = s->gelu,
               .first_token = s->first_token,
               .has_head = s->dimension > 0,
               .unit = !s->score,
               .head_kind = s->head,
               .places = s->rotations ? NULL : draw_floats((size_t)PLACES * (size_t)s->hidden, 0.3f, 0.0f),
               .types = draw_floats(2 * (size_t)s->hidden, 0.3f, 0.0f),
               .layer = aligned(2 * sizeof(Layer))};
    draw_words(&n->words, s->words, s->hidden);
    if (s->memory) draw_words(&n->memory, s->words, s->memory);
    draw_norm(&n->embedding_norm, s->hidden);
    for (int l = 0; l < n->layers; l++) {
        draw_product(&n->layer[l].qkv, s, s->hidden, 3 * s->hidden, target);
        draw_product(&n->layer[l].attention_output, s, s->hidden, s->hidden, target);
        draw_norm(&n->layer[l].attention_norm, s->hidden);
        draw_product(&n->layer[l].ffn_in, s, s->hidden, s->intermediate * (1 + s->gated), target);
        draw_product(&n->layer[l].ffn_out, s, s->intermediate, s->hidden, target);
        draw_norm(&n->layer[l].norm, s->hidden);
        n->layer[l].window = l && s->window ? s->window : -1;
        if (l < s->rotations) {
            n->rotation[l] = draw_floats((size_t)PLACES * (size_t)(s->hidden / s->heads), 1.0f, 0.0f);
            n->layer[l].rotation = n->rotation[l];
        }
    }
    if (n->has_head) draw_product(&n->head, s, pooled, s->dimension, target);
    if (s->head_normed) draw_norm(&n->head_norm, s->dimension);
    if (s->biased) n->bias = draw_floats((size_t)n->heads * biases_of_head(n), 3.0f, 0.0f);
    if (s->score) n->score = draw_floats((size_t)n->dimension + 1, 0.3f, 0.0f);
}

static void free_product(Product *p) {
    void *parts[] = {p->floats, p->bytes, p->scales, p->sums, p->bias, p->factors, p->excess, p->excess_end};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) release(parts[i]);
}

static void free_norm(Norm *n) {
    release(n->weight);
    release(n->bias);
}

static void free_net(Net *n) {
    void *parts[] = {(void *)n->places,
                     (void *)n->types,
                     (void *)n->words.values,
                     (void *)n->words.scales,
                     (void *)n->memory.values,
                     (void *)n->memory.scales,
                     n->score,
                     n->bias,
                     n->rotation[0],
                     n->rotation[1]};
    for (int l = 0; l < n->layers; l++) {
        free_product(&n->layer[l].qkv);
        free_product(&n->layer[l].attention_output);
        free_product(&n->layer[l].ffn_in);
        free_product(&n->layer[l].ffn_out);
        free_norm(&n->layer[l].attention_norm);
        free_norm(&n->layer[l].norm);
    }
    free_product(&n->head);
    free_norm(&n->head_norm);
    free_norm(&n->embedding_norm);
    release(n->layer);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) release(parts[i]);
}

/* ---- running ---- */

typedef struct {
    const Target *target;
    Team team;
} Crew;

static void *help(void *argument) {
    Crew *crew = argument;
    crew->target->help(&crew->team);
    return NULL;
}

/* FNV-1a of the bits that a target computes for texts of several lengths, 0 if a value was not finite. With
 * `is_shared`, several threads compute them. */
static uint64_t run_on(const Target *target, const Shape *shape, bool is_shared) {
    static const int lengths[TEXTS] = {3, 0, 1, 16, 17, 33, PLACES, 7, 15};
    int32_t starts[TEXTS + 1] = {0}, ids[TEXTS * PLACES], types[TEXTS * PLACES];
    Net net;
    draw_net(&net, shape, target);
    for (int t = 0; t < TEXTS; t++) starts[t + 1] = starts[t] + lengths[t];
    for (int i = 0; i < starts[TEXTS]; i++) {
        ids[i] = (int32_t)(draw() % WORDS);
        types[i] = (int32_t)(draw() % 2);
    }
    Workspace room = {0};
    room.memory = aligned(lay_out(&net, &room, starts[TEXTS], PLACES, HELPERS + 1));
    lay_out(&net, &room, starts[TEXTS], PLACES, HELPERS + 1);
    Crew crew = {target, {.seats = HELPERS + 1}};
    pthread_t helpers[HELPERS + 1]; /* one more than there are seats */
    if (is_shared) {
        room.team = &crew.team;
        for (int i = 0; i <= HELPERS; i++) pthread_create(helpers + i, NULL, help, &crew);
    }
    const size_t count = (size_t)TEXTS * (size_t)(net.score ? 1 : net.dimension);
    float *rows = aligned(count * sizeof *rows);
    uint64_t digest = 14695981039346656037u;
    const bool finite = target->run(&net, ids, types, starts, TEXTS, rows, &room);
    write_atomic(&crew.team.is_closed, true);
    for (int i = 0; is_shared && i <= HELPERS; i++) pthread_join(helpers[i], NULL);
    for (size_t i = 0; i < count * sizeof *rows; i++)
        digest = (digest ^ ((unsigned char *)rows)[i]) * 1099511628211u;
    release(rows);
    release(room.memory);
    free_net(&net);
    return finite ? digest : 0;
}

int main(void) {
    static const Shape shapes[] = {
        {64, 2, 192, 0, 0, 0, false, WORDS_FLOAT, GELU_ERF, AS_IS, false, false},
        {128, 2, 64, 64, 192, 0, false, WORDS_INT8, GELU_TANH, TANH, true, false},
        {64, 4, 128, 128, 64, 63, false, WORDS_INT4, GELU_ERF, AS_IS, false, false},
        {128, 4, 192, 0, 128, 127, false, WORDS_INT8, GELU_TANH, TANH, true, true},
        {64, 1, 64, 64, 128, 127, true, WORDS_INT4, GELU_ERF, TANH, false, false},
        {192, 12, 320, 0, 0, 63, true, WORDS_FLOAT, GELU_ERF, AS_IS, true, false},
        {64, 2, 192, 0, 0, 0, false, WORDS_FLOAT, GELU_ERF, AS_IS, false, false, .biased = true},
        {128, 4, 64, 64, 64, 127, false, WORDS_INT8, GELU_ERF, TANH, true, true, .biased = true},
        {64, 2, 192, 0, 0, 0, false, WORDS_FLOAT, GELU_ERF, AS_IS, true, false, false, true, true, 2, 5},
        {128, 4, 64, 0, 0, 127, false, WORDS_INT8, GELU_TANH, AS_IS, false, false, false, true, true, 1, 12},
        {128, 1, 64, 0, 64, 63, true, WORDS_INT4, GELU_ERF, TANH, true, false, true, false, true, 0, 1},
        {128, 4, 192, 0, 128, 40, false, WORDS_INT8, GELU_ERF, AS_IS, false, false}, /* with excess */
        {64, 2, 192, 0, 128, 0, false, WORDS_FLOAT, GELU_ERF, GELU_ERF, true, true, false, true, true, 2, 5, true},
        {128, 2, 64, 0, 64, 127, false, WORDS_INT8, GELU_TANH, GELU_TANH, false, true, false, true, true, 1, 12, true},
        {128, 4, 192, 0, 64, 63, false, WORDS_INT4, GELU_ERF, AS_IS, false, false, .is_smoothed = true},
    };
    int differing = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint64_t expected = run_on(&embedkit_portable, shapes + i, false);
        printf("%016llx", (unsigned long long)expected);
        for (int c = 0; c < CANDIDATE_COUNT; c++) {
            const Candidate *candidate = CANDIDATES + c;
            if (!candidate->is_there()) continue;
            const bool same = run_on(candidate->target, shapes + i, false) == expected &&
                              run_on(candidate->target, shapes + i, true) == expected && expected;
            differing += !same;
            printf(" %s%s", candidate->target->name, same ? "" : " DIFFERS");
        }
        printf("\n");
    }
    return differing ? EXIT_FAILURE : EXIT_SUCCESS;
}
