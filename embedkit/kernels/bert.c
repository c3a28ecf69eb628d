/* embedkit.kernels.bert: encoders and cross-encoders of the BERT family, without padding.
 *
 * A Network stores weights in the order in which its products read them, and runs one batch of texts at a time
 * with one target, an instruction set. The result for a text does not depend, to the bit, on the other texts in
 * the batch, the number of threads, the compiler or the target. bert.pyi describes the interface;
 * runtime/native_network.py is its only caller. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "processor.h"
#include "targets.h"

/* ---- targets ---- */

typedef struct {
    const Target *target;
    bool (*is_there)(void);
} Candidate;

/* Fastest first. */
static const Candidate CANDIDATES[] = {
#ifdef WITH_AMX
    {&embedkit_amx, has_amx},
#endif
#ifdef WITH_AVX512
    {&embedkit_avx512, has_avx512},
#endif
#ifdef WITH_AVX_VNNI
    {&embedkit_avx_vnni, has_avx_vnni},
#endif
#ifdef WITH_AVX2
    {&embedkit_avx2, has_avx2},
#endif
#ifdef WITH_NEON_I8MM
    {&embedkit_neon_i8mm, has_neon_i8mm},
#endif
#ifdef WITH_NEON_DOTPROD
    {&embedkit_neon_dotprod, has_neon_dotprod},
#endif
    {&embedkit_portable, has_portable},
};
enum { CANDIDATE_COUNT = sizeof CANDIDATES / sizeof *CANDIDATES };

/* Returns the target of this name, or NULL with an error. */
static const Target *find_target(const char *name) {
    for (int i = 0; i < CANDIDATE_COUNT; i++) {
        const Candidate *c = CANDIDATES + i;
        if (strcmp(c->target->name, name) == 0 && c->is_there()) return c->target;
    }
    PyErr_Format(PyExc_ValueError, "the instructions %s are not there, on this processor or in this build",
                 name);
    return NULL;
}

static PyObject *instructions(PyObject *module, PyObject *unused) {
    PyObject *names = PyList_New(0);
    (void)module;
    (void)unused;
    for (int i = 0; names && i < CANDIDATE_COUNT; i++) {
        PyObject *name = CANDIDATES[i].is_there() ? PyUnicode_FromString(CANDIDATES[i].target->name) : NULL;
        if (name && PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    if (!names || PyErr_Occurred()) {
        Py_XDECREF(names);
        return NULL;
    }
    PyObject *tuple = PyList_AsTuple(names);
    Py_DECREF(names);
    return tuple;
}

/* ---- teams ---- */

static const char TEAM_NAME[] = "embedkit.kernels.bert team";

typedef struct {
    Team team;
    const Target *target;
    Atomic is_used; /* whether a run has had it */
} Crew;

static void free_crew(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, TEAM_NAME)); }

static PyObject *make_team(PyObject *module, PyObject *args) {
    const char *name;
    int threads;
    (void)module;
    if (!PyArg_ParseTuple(args, "si", &name, &threads)) return NULL;
    const Target *target = find_target(name);
    if (!target) return NULL;
    if (threads < 1 || threads > 1024) {
        PyErr_Format(PyExc_ValueError, "a team of %d threads, expected 1 to 1024", threads);
        return NULL;
    }
    Crew *crew = calloc(1, sizeof *crew);
    if (!crew) return PyErr_NoMemory();
    crew->team.seats = threads;
    crew->target = target;
    PyObject *capsule = PyCapsule_New(crew, TEAM_NAME, free_crew);
    if (!capsule) free(crew);
    return capsule;
}

static PyObject *help_team(PyObject *module, PyObject *capsule) {
    Crew *crew = PyCapsule_GetPointer(capsule, TEAM_NAME);
    (void)module;
    if (!crew) return NULL;
    Py_BEGIN_ALLOW_THREADS
    crew->target->help(&crew->team);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *close_team(PyObject *module, PyObject *capsule) {
    Crew *crew = PyCapsule_GetPointer(capsule, TEAM_NAME);
    (void)module;
    if (!crew) return NULL;
    write_atomic(&crew->team.is_closed, true);
    Py_RETURN_NONE;
}

/* ---- the network ---- */

typedef struct Room {
    struct Room *next;
    Workspace room;
} Room;

typedef struct {
    PyObject_HEAD
    Net net;
    const Target *target;
    Py_buffer words, word_scales, memory, memory_scales, positions, types; /* not copied */
    PyThread_type_lock lock;
    Room *idle; /* unused workspaces, guarded by the lock */
} Network;

/* ---- reading arguments ---- */

/* Returns zeroed memory, or NULL with an error. */
static void *zeros(size_t bytes) {
    void *memory = aligned(bytes);
    if (!memory) PyErr_NoMemory();
    return memory;
}

/* Fails unless all numbers of a buffer, which need not be aligned, are finite: their exponents are not all
 * ones. */
#define CHECK_FINITE(NAME, BITS, EXPONENT)                                                                     \
    static int NAME(const char *bytes, Py_ssize_t count, const char *name) {                                   \
        bool finite = true;                                                                                    \
        for (Py_ssize_t i = 0; i < count; i++) {                                                               \
            BITS bits;                                                                                         \
            memcpy(&bits, bytes + i * (Py_ssize_t)sizeof bits, sizeof bits);                                   \
            finite &= (bits & (EXPONENT)) != (EXPONENT);                                                       \
        }                                                                                                      \
        if (!finite) PyErr_Format(PyExc_ValueError, "%s: a value is NaN or infinite", name);                   \
        return finite ? 0 : -1;                                                                                \
    }
CHECK_FINITE(check_finite, uint32_t, 0x7f800000)
CHECK_FINITE(check_finite_halves, uint16_t, 0x7c00)

/* Returns a copy of `count` floats of a buffer. */
static float *read_floats(PyObject *source, Py_ssize_t count, const char *name) {
    Py_buffer view;
    float *floats = NULL;
    if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) < 0) return NULL;
    if (view.len != count * (Py_ssize_t)sizeof(float))
        PyErr_Format(PyExc_ValueError, "%s has %zd bytes, expected %zd floats", name, view.len, count);
    else if (check_finite(view.buf, count, name) == 0 && (floats = zeros((size_t)view.len)) != NULL)
        memcpy(floats, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return floats;
}

static int read_norm(Norm *n, PyObject *weight, PyObject *bias, int width) {
    n->weight = read_floats(weight, width, "a norm's weight");
    n->bias = n->weight ? read_floats(bias, width, "a norm's bias") : NULL;
    return n->bias ? 0 : -1;
}

/* Rearranges a product's weights. */
static int read_weight(Network *self, Product *p, const char *weight) {
    const size_t count = (size_t)p->inputs * (size_t)p->outputs;
    void *memory = zeros(p->scales ? count : count * sizeof(float));
    if (!memory) return -1;
    if (p->scales) {
        p->bytes = memory;
        if (!sum_bytes(p, (const int8_t *)weight) ||
            (self->target->saturates && !find_excess(p, (const int8_t *)weight))) {
            PyErr_NoMemory();
            return -1;
        }
    } else {
        p->floats = memory;
        if (check_finite(weight, (Py_ssize_t)count, "a weight") < 0) return -1;
    }
    if (p->scales)
        pack_bytes(p, (const int8_t *)weight);
    else
        pack_floats(p, weight, self->target->panel);
    return 0;
}

/* Parses (weight, scales or None, bias, factors or None, step, least) of a product of given size. */
static int read_product(Network *self, Product *p, PyObject *source, int inputs, int outputs) {
    PyObject *weight, *scales, *bias, *factors;
    Py_buffer view;
    int status = -1;
    if (!PyArg_ParseTuple(source, "OOOOff", &weight, &scales, &bias, &factors, &p->step, &p->least)) return -1;
    p->inputs = inputs;
    p->outputs = outputs;
    if (inputs <= 0 || outputs <= 0 || inputs % DEPTH || outputs % DEPTH ||
        (scales != Py_None && inputs > MOST_INPUTS)) {
        PyErr_Format(PyExc_ValueError,
                     "a product of %d by %d, expected multiples of %d, and of bytes at most %d inputs", inputs,
                     outputs, DEPTH, MOST_INPUTS);
        return -1;
    }
    if (!(p->bias = read_floats(bias, outputs, "a bias"))) return -1;
    if (scales != Py_None && !(p->scales = read_floats(scales, outputs, "scales"))) return -1;
    if (factors != Py_None && !(p->factors = read_floats(factors, inputs, "factors"))) return -1;
    if (PyObject_GetBuffer(weight, &view, PyBUF_SIMPLE) < 0) return -1;
    if (view.len != (Py_ssize_t)inputs * outputs * (scales == Py_None ? 4 : 1))
        PyErr_Format(PyExc_ValueError, "a weight of %d by %d has %zd bytes", inputs, outputs, view.len);
    else
        status = read_weight(self, p, view.buf);
    PyBuffer_Release(&view);
    return status;
}

static int read_layer(Network *self, Layer *l, PyObject *source) {
    PyObject *projection, *context, *context_weight, *context_bias, *wide, *narrow, *weight, *bias;
    int rotation = -1;
    l->window = -1;
    if (!PyArg_ParseTuple(source, "OO(OO)OO(OO)|ii", &projection, &context, &context_weight, &context_bias,
                          &wide, &narrow, &weight, &bias, &rotation, &l->window))
        return -1;
    if (rotation >= MOST_ROTATIONS || (rotation >= 0 && !self->net.rotation[rotation])) {
        PyErr_Format(PyExc_ValueError, "a layer uses the rotation %d, which does not exist", rotation);
        return -1;
    }
    l->rotation = rotation < 0 ? NULL : self->net.rotation[rotation];
    const int hidden = self->net.hidden, intermediate = self->net.intermediate;
    if (read_product(self, &l->qkv, projection, hidden, 3 * hidden) < 0) return -1;
    if (read_product(self, &l->attention_output, context, hidden, hidden) < 0) return -1;
    if (read_norm(&l->attention_norm, context_weight, context_bias, hidden) < 0) return -1;
    if (read_product(self, &l->ffn_in, wide, hidden, intermediate * (1 + self->net.gated)) < 0) return -1;
    if (read_product(self, &l->ffn_out, narrow, intermediate, hidden) < 0) return -1;
    return read_norm(&l->norm, weight, bias, hidden);
}

static int read_layers(Network *self, PyObject *source) {
    Net *n = &self->net;
    const Py_ssize_t count = PySequence_Size(source);
    if (count < 0) return -1;
    if (!(n->layer = zeros(sizeof(Layer) * (size_t)count))) return -1;
    n->layers = (int)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(source, i);
        const int status = item ? read_layer(self, n->layer + i, item) : -1;
        Py_XDECREF(item);
        if (status < 0) return -1;
    }
    return 0;
}

/* The size of a row determines how words are stored: `width` floats, as many bytes with one scale, or half as
 * many with blocks. */
static int read_words(WordTable *table, PyObject *words, Py_buffer *values, PyObject *word_scales,
                      Py_buffer *scales, int vocabulary, int width) {
    table->count = vocabulary;
    if (width == 0 && words == Py_None) return 0;
    if (PyObject_GetBuffer(words, values, PyBUF_SIMPLE) < 0) return -1;
    if (word_scales != Py_None && PyObject_GetBuffer(word_scales, scales, PyBUF_SIMPLE) < 0) return -1;
    const Py_ssize_t row = vocabulary > 0 ? values->len / vocabulary : 0, rest = scales->len;
    const Py_ssize_t of_row = vocabulary > 0 ? rest / vocabulary : 0, blocks = of_row / 2;
    const WordKind kind = row == (Py_ssize_t)width * 4 ? WORDS_FLOAT : row == width ? WORDS_INT8 : WORDS_INT4;
    *table = (WordTable){kind, vocabulary, width, values->buf, scales->buf, (int)blocks};
    if (row > 0 && values->len == row * vocabulary && rest == of_row * vocabulary &&
        ((kind == WORDS_FLOAT && of_row == 0) || (kind == WORDS_INT8 && of_row == 4) ||
         (kind == WORDS_INT4 && row * 2 == width && of_row == blocks * 2 && blocks > 0 &&
          width % (blocks * LANES) == 0)))
        return kind == WORDS_INT4   ? check_finite_halves(scales->buf, rest / 2, "scales of words")
               : kind == WORDS_INT8 ? check_finite(scales->buf, rest / 4, "scales of words")
                                    : 0;
    PyErr_Format(PyExc_ValueError, "%d words of %zd bytes with %zd bytes of scales are no table of %d columns",
                 vocabulary, row, rest, width);
    return -1;
}

static int read_memory(Network *self, PyObject *memory, PyObject *scales, int vocabulary, int width) {
    if (width % DEPTH || width < 0 || (width == 0) != (memory == Py_None) ||
        width > INT32_MAX - self->net.hidden) {
        PyErr_Format(PyExc_ValueError, "a memory of width %d, expected a multiple of %d, or 0 and None", width,
                     DEPTH);
        return -1;
    }
    if (width == 0) return 0;
    return read_words(&self->net.memory, memory, &self->memory, scales, &self->memory_scales, vocabulary,
                      width);
}

/* Parses a table of rows with a given number of floats, at least one row; returns the number of rows. */
static int read_table(Py_buffer *view, PyObject *source, int width, const char *name, const float **table,
                      int *count) {
    const Py_ssize_t row = (Py_ssize_t)width * 4;
    if (PyObject_GetBuffer(source, view, PyBUF_SIMPLE) < 0) return -1;
    *table = view->buf;
    *count = (int)(view->len / row);
    if (view->len > 0 && view->len % row == 0) return 0;
    PyErr_Format(PyExc_ValueError, "%s are no rows of the hidden size", name);
    return -1;
}

static int read_places(Network *self, PyObject *positions, PyObject *types) {
    Net *n = &self->net;
    n->positions = INT32_MAX;
    if (n->hidden == 0 && positions == Py_None && types == Py_None) return 0;
    if (n->hidden == 0) {
        PyErr_SetString(PyExc_ValueError, "positions or token types without states");
        return -1;
    }
    if (positions != Py_None &&
        read_table(&self->positions, positions, n->hidden, "positions", &n->places, &n->positions) < 0)
        return -1;
    if (types == Py_None) return 0;
    return read_table(&self->types, types, n->hidden, "token types", &n->types, &n->token_types);
}

/* Copies a table of rotations. The first sets the number of positions where there are no rows of positions. */
static float *read_rotation(Net *n, PyObject *source, int width) {
    Py_buffer view;
    if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) < 0) return NULL;
    const Py_ssize_t rows = view.len / width / 4;
    PyBuffer_Release(&view);
    if (n->positions == INT32_MAX && rows > 0 && rows < INT32_MAX / 8) n->positions = (int)rows;
    if (rows == longest_text(n)) return read_floats(source, rows * width, "a rotation");
    PyErr_Format(PyExc_ValueError, "a rotation has %zd positions, expected %d", rows, longest_text(n));
    return NULL;
}

static int read_rotations(Net *n, PyObject *source) {
    const Py_ssize_t count = source == Py_None ? 0 : PySequence_Size(source);
    const int width = n->hidden / n->heads;
    if (count < 0) return -1;
    if (count > MOST_ROTATIONS || (count > 0 && (width == 0 || width % (2 * LANES)))) {
        PyErr_Format(PyExc_ValueError, "%zd rotations of heads of width %d, expected %d of multiples of %d", count,
                     width, MOST_ROTATIONS, 2 * LANES);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(source, i);
        if (item) n->rotation[i] = read_rotation(n, item, width);
        Py_XDECREF(item);
        if (!n->rotation[i]) return -1;
    }
    if (n->hidden == 0 || n->places || (count > 0 && n->padding_id < 0)) return 0;
    PyErr_SetString(PyExc_ValueError, "no positions, neither as rows nor as rotations");
    return -1;
}

/* Copies (heads, 2 longest - 1) biases, so that whole vectors can be read at the end of a row. */
static int read_bias(Net *n, PyObject *source) {
    if (source == Py_None) return 0;
    const size_t longest = (size_t)longest_text(n), heads = (size_t)n->heads;
    if (n->hidden == 0 || longest == 0 || heads > INT32_MAX / 8 / (longest + LANES)) {
        PyErr_Format(PyExc_ValueError, "no biases of %d heads for texts of %d tokens", n->heads, longest_text(n));
        return -1;
    }
    const size_t row = 2 * longest - 1;
    float *floats = read_floats(source, (Py_ssize_t)(heads * row), "biases");
    if (!floats || !(n->bias = zeros(heads * biases_of_head(n) * sizeof *n->bias))) {
        release(floats);
        return -1;
    }
    for (size_t h = 0; h < heads; h++)
        memcpy(n->bias + h * biases_of_head(n), floats + h * row, row * sizeof *floats);
    release(floats);
    return 0;
}

/* ---- the type ---- */

static int check_sizes(const Net *n) {
    if (n->hidden >= 0 && n->hidden <= INT32_MAX / 3 && n->hidden % DEPTH == 0 && n->heads > 0 &&
        n->hidden % n->heads == 0 && n->hidden / n->heads % LANES == 0 && n->intermediate >= 0 &&
        n->intermediate % DEPTH == 0 && n->intermediate <= INT32_MAX / 2 && n->dimension > 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "no network of %d hidden, %d heads and %d intermediate can be run here",
                 n->hidden, n->heads, n->intermediate);
    return -1;
}

static int read_activation(Net *n, const char *name) {
    n->head_kind = strcmp(name, "tanh") == 0 ? TANH : strcmp(name, "gelu") == 0 ? n->gelu : AS_IS;
    if (n->head_kind != AS_IS || strcmp(name, "linear") == 0) return 0;
    PyErr_Format(PyExc_ValueError, "the head's activation is %s, expected linear, tanh or gelu", name);
    return -1;
}

static int read_head_norm(Net *n, PyObject *norm) {
    PyObject *weight, *bias;
    if (norm == Py_None) return 0;
    if (!n->has_head) {
        PyErr_SetString(PyExc_ValueError, "a norm after a head, which does not exist");
        return -1;
    }
    if (!PyArg_ParseTuple(norm, "OO", &weight, &bias)) return -1;
    return read_norm(&n->head_norm, weight, bias, n->dimension);
}

/* The column of a cross-encoder followed by its bias. */
static int read_score(Net *n, PyObject *score) {
    if (score == Py_None) return 0;
    n->score = read_floats(score, (Py_ssize_t)n->dimension + 1, "a score's column and bias");
    return n->score ? 0 : -1;
}

static PyObject *network_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {
        "hidden",       "heads",       "intermediate", "memory_width",  "dimension", "vocabulary",
        "epsilon",      "tanh",        "first_token",  "unit",          "instructions", "words",
        "word_scales",  "memory",      "memory_scales", "positions",    "types",     "norm",
        "layers",       "head",        "head_activation", "score",      "padding_id", "bias",
        "rotations",    "pre_norm",    "gated",        "head_norm",     NULL};
    Network *self = (Network *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    Net *n = &self->net;
    int tanh_gelu, first_token, unit, vocabulary, width, pre_norm = 0, gated = 0;
    const char *name, *activation;
    PyObject *words, *scales, *memory, *memory_scales, *positions, *types, *weight, *bias, *layers, *head,
        *score, *biases = Py_None, *rotations = Py_None, *head_norm = Py_None;
    n->padding_id = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iiiiiifpppsOOOOOO(OO)OOsO|iOOppO", names, &n->hidden,
                                     &n->heads, &n->intermediate, &width, &n->dimension, &vocabulary,
                                     &n->epsilon, &tanh_gelu, &first_token, &unit, &name, &words, &scales,
                                     &memory, &memory_scales, &positions, &types, &weight, &bias, &layers,
                                     &head, &activation, &score, &n->padding_id, &biases, &rotations,
                                     &pre_norm, &gated, &head_norm))
        goto failed;
    if (!(self->target = find_target(name))) goto failed;
    if (!(self->lock = PyThread_allocate_lock())) {
        PyErr_NoMemory();
        goto failed;
    }
    n->gelu = tanh_gelu ? GELU_TANH : GELU_ERF;
    n->first_token = first_token;
    n->unit = unit;
    n->pre_norm = pre_norm;
    n->gated = gated;
    n->has_head = head != Py_None;
    if (check_sizes(n) < 0 || read_activation(n, activation) < 0 ||
        read_words(&n->words, words, &self->words, scales, &self->word_scales, vocabulary, n->hidden) < 0 ||
        read_memory(self, memory, memory_scales, vocabulary, width) < 0 ||
        read_places(self, positions, types) < 0 || read_rotations(n, rotations) < 0 || read_bias(n, biases) < 0)
        goto failed;
    if (read_norm(&n->embedding_norm, weight, bias, n->hidden) < 0 || read_layers(self, layers) < 0)
        goto failed;
    if (n->has_head && read_product(self, &n->head, head, pooled_width(n), n->dimension) < 0) goto failed;
    if (!n->has_head && n->dimension != pooled_width(n)) {
        PyErr_SetString(PyExc_ValueError,
                        "without a head, the dimension is the hidden size and the memory's width");
        goto failed;
    }
    if (read_head_norm(n, head_norm) < 0 || read_score(n, score) < 0) goto failed;
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void free_product(Product *p) {
    release(p->floats);
    release(p->bytes);
    release(p->scales);
    release(p->sums);
    release(p->excess);
    release(p->excess_end);
    release(p->bias);
    release(p->factors);
}

static void free_norm(Norm *n) {
    release(n->weight);
    release(n->bias);
}

static void network_dealloc(PyObject *object) {
    Network *self = (Network *)object;
    PyTypeObject *type = Py_TYPE(object);
    Net *n = &self->net;
    for (int i = 0; i < n->layers; i++) {
        Layer *l = n->layer + i;
        free_product(&l->qkv);
        free_product(&l->attention_output);
        free_product(&l->ffn_in);
        free_product(&l->ffn_out);
        free_norm(&l->attention_norm);
        free_norm(&l->norm);
    }
    release(n->layer);
    free_product(&n->head);
    free_norm(&n->head_norm);
    free_norm(&n->embedding_norm);
    release(n->score);
    release(n->bias);
    for (int i = 0; i < MOST_ROTATIONS; i++) release(n->rotation[i]);
    PyBuffer_Release(&self->words);
    PyBuffer_Release(&self->word_scales);
    PyBuffer_Release(&self->memory);
    PyBuffer_Release(&self->memory_scales);
    PyBuffer_Release(&self->positions);
    PyBuffer_Release(&self->types);
    for (Room *room = self->idle; room;) {
        Room *next = room->next;
        release(room->room.memory);
        release(room);
        room = next;
    }
    if (self->lock) PyThread_free_lock(self->lock);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- running ---- */

/* Returns an idle workspace, else a new one. */
static Room *take_idle(Network *self) {
    PyThread_acquire_lock(self->lock, WAIT_LOCK);
    Room *room = self->idle;
    if (room) self->idle = room->next;
    PyThread_release_lock(self->lock);
    return room ? room : zeros(sizeof(Room));
}

static int larger(int one, int other) { return one > other ? one : other; }

/* Returns a workspace for a number of tokens, in texts of at most `longest`, and for that many threads;
 * replaces one that is too small. */
static Room *take_room(Network *self, int tokens, int longest, int seats) {
    Room *room = take_idle(self);
    if (room && (!room->room.memory || room->room.tokens < tokens || room->room.longest < longest ||
                 room->room.seats < seats)) {
        tokens = larger(tokens, room->room.tokens);
        longest = larger(longest, room->room.longest);
        seats = larger(seats, room->room.seats);
        release(room->room.memory);
        room->room.memory = NULL;
        room->room.memory = zeros(lay_out(&self->net, &room->room, tokens, longest, seats));
        if (!room->room.memory) {
            release(room);
            return NULL;
        }
        lay_out(&self->net, &room->room, tokens, longest, seats);
    }
    return room;
}

static void give_room(Network *self, Room *room) {
    PyThread_acquire_lock(self->lock, WAIT_LOCK);
    room->next = self->idle;
    self->idle = room;
    PyThread_release_lock(self->lock);
}

static int check_rows(const int32_t *rows, Py_ssize_t tokens, int count, const char *name) {
    for (Py_ssize_t i = 0; i < tokens; i++)
        if (rows[i] < 0 || rows[i] >= count) {
            PyErr_Format(PyExc_ValueError, "%s %d, expected 0 to %d", name, rows[i], count - 1);
            return -1;
        }
    return 0;
}

/* Returns the number of tokens in the longest text, or -1 with an error if the texts are invalid. */
static int check_texts(const Net *n, Py_ssize_t tokens, const int32_t *starts, int texts) {
    int longest = 0;
    if (starts[0] != 0 || starts[texts] != tokens) {
        PyErr_Format(PyExc_ValueError, "texts run from %d to %d, of %zd tokens", starts[0], starts[texts],
                     tokens);
        return -1;
    }
    const int most = longest_text(n);
    for (int t = 0; t < texts; t++) {
        const int64_t length = (int64_t)starts[t + 1] - starts[t];
        if (length < 0 || length > most) {
            PyErr_Format(PyExc_ValueError, "text %d has %lld tokens, expected 0 to %d", t, (long long)length,
                         most);
            return -1;
        }
        longest = length > longest ? (int)length : longest;
    }
    return longest;
}

static int run_checked(Network *self, const Py_buffer *ids, const Py_buffer *types, const Py_buffer *starts,
                       const Py_buffer *out, bool logits, Team *team) {
    const Net *n = &self->net;
    const Py_ssize_t tokens = ids->len / 4, typed = n->token_types ? tokens : 0, texts = starts->len / 4 - 1;
    const Py_ssize_t width = n->score ? 1 : n->dimension;
    if (ids->len % 4 || starts->len % 4 || texts < 0 || tokens > INT32_MAX / 2 ||
        texts > INT32_MAX / n->heads || types->len != typed * 4 || out->len != texts * width * 4) {
        PyErr_Format(PyExc_ValueError,
                     "%zd bytes of ids, %zd of types, %zd of starts and %zd of rows do not fit", ids->len,
                     types->len, starts->len, out->len);
        return -1;
    }
    const int longest = check_texts(n, tokens, starts->buf, (int)texts);
    if (longest < 0 || check_rows(ids->buf, tokens, n->words.count, "token id") < 0 ||
        check_rows(types->buf, typed, n->token_types, "token type") < 0)
        return -1;
    Room *room = take_room(self, (int)tokens, longest, team ? team->seats : 1);
    if (!room) return -1;
    room->room.team = team;
    room->room.logits = logits;
    bool finite;
    Py_BEGIN_ALLOW_THREADS
    finite = self->target->run(n, ids->buf, typed ? types->buf : NULL, starts->buf, (int)texts, out->buf,
                               &room->room);
    Py_END_ALLOW_THREADS
    give_room(self, room);
    if (!finite) PyErr_SetString(PyExc_ArithmeticError, "a value became NaN or infinite");
    return finite ? 0 : -1;
}

/* run_checked() by a team, or alone without a crew. */
static int run_with(Network *self, const Py_buffer *ids, const Py_buffer *types, const Py_buffer *starts,
                    const Py_buffer *out, bool logits, Crew *crew) {
    if (!crew) return run_checked(self, ids, types, starts, out, logits, NULL);
    if (crew->target != self->target || !replace_atomic(&crew->is_used, false, true)) {
        PyErr_SetString(PyExc_ValueError, "the team is of other instructions, or was in a run before");
        return -1;
    }
    const int status = run_checked(self, ids, types, starts, out, logits, &crew->team);
    write_atomic(&crew->team.is_closed, true);
    return status;
}

static PyObject *network_run(PyObject *object, PyObject *args) {
    Py_buffer ids, types, starts, out;
    PyObject *capsule = Py_None;
    Crew *crew = NULL;
    int logits = 0;
    if (!PyArg_ParseTuple(args, "y*z*y*w*|Op", &ids, &types, &starts, &out, &capsule, &logits)) return NULL;
    if (capsule != Py_None) crew = PyCapsule_GetPointer(capsule, TEAM_NAME);
    const int status = capsule != Py_None && !crew
                           ? -1
                           : run_with((Network *)object, &ids, &types, &starts, &out, logits, crew);
    PyBuffer_Release(&ids);
    PyBuffer_Release(&types);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&out);
    if (status < 0) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef network_methods[] = {
    {"run", network_run, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot network_slots[] = {
    {Py_tp_new, network_new},
    {Py_tp_dealloc, network_dealloc},
    {Py_tp_methods, network_methods},
    {0, NULL},
};

static PyType_Spec network_spec = {
    .name = "embedkit.kernels.bert.Network",
    .basicsize = sizeof(Network),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = network_slots,
};

/* ---- the module ---- */

static PyMethodDef module_methods[] = {
    {"instructions", instructions, METH_NOARGS, NULL},
    {"make_team", make_team, METH_VARARGS, NULL},
    {"help_team", help_team, METH_O, NULL},
    {"close_team", close_team, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int fill_module(PyObject *module) {
    PyObject *type = PyType_FromSpec(&network_spec);
    const int status = type ? PyModule_AddObjectRef(module, "Network", type) : -1;
    Py_XDECREF(type);
    return status;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "embedkit.kernels.bert",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit_bert(void);
PyMODINIT_FUNC PyInit_bert(void) { return PyModuleDef_Init(&module); }
