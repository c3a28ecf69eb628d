/* embedkit.kernels.bert: encoders and cross-encoders of the BERT family on processors with AVX-512 and VNNI,
 * quicker with AMX.
 *
 * A Network holds weights in the order in which its products read them, and runs one batch of texts at a time,
 * without padding. What becomes of a text does not depend, to the bit, on the texts beside it, on the number of
 * threads or on AMX. bert.pyi describes the interface; runtime/native_graph.py is the only one who calls it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "target.h"

#if HAS_KERNELS

#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "network.h"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

typedef struct Room {
    struct Room *next;
    Workspace room;
} Room;

typedef struct {
    PyObject_HEAD
    Net net;
    Py_buffer words, word_scales, memory, memory_scales, positions, types; /* read where they are */
    Room *idle; /* workspaces of no run, guarded by the GIL */
} Network;

/* ---- reading arguments ---- */

static void *aligned(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes ? bytes : 64) != 0) {
        PyErr_NoMemory();
        return NULL;
    }
    memset(memory, 0, bytes);
    return memory;
}

/* A copy of `count` floats of a buffer. */
static float *read_floats(PyObject *source, Py_ssize_t count, const char *name) {
    Py_buffer view;
    float *floats = NULL;
    if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) < 0) return NULL;
    if (view.len != count * (Py_ssize_t)sizeof(float))
        PyErr_Format(PyExc_ValueError, "%s has %zd bytes, expected %zd floats", name, view.len, count);
    else if ((floats = aligned((size_t)view.len)) != NULL)
        memcpy(floats, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return floats;
}

static int read_norm(Norm *n, PyObject *weight, PyObject *bias, int width) {
    n->weight = read_floats(weight, width, "a norm's weight");
    n->bias = n->weight ? read_floats(bias, width, "a norm's bias") : NULL;
    return n->bias ? 0 : -1;
}

static int pack_floats(Product *p, const float *weight) {
    p->floats = aligned(sizeof(float) * p->inputs * p->outputs);
    if (!p->floats) return -1;
    for (int o = 0; o < p->outputs; o++)
        for (int i = 0; i < p->inputs; i++)
            p->floats[(size_t)(o / PANEL) * p->inputs * PANEL + (size_t)i * PANEL + o % PANEL] =
                weight[(size_t)i * p->outputs + o];
    return 0;
}

static int pack_bytes(Product *p, const int8_t *weight) {
    p->bytes = aligned((size_t)p->inputs * p->outputs);
    p->sums = aligned(sizeof(float) * p->outputs);
    if (!p->bytes || !p->sums) return -1;
    for (int i = 0; i < p->inputs; i++)
        for (int o = 0; o < p->outputs; o++) {
            const int8_t value = weight[(size_t)i * p->outputs + o];
            p->bytes[((size_t)(o / LANES) * p->inputs + i / 4 * 4) * LANES + o % LANES * 4 + i % 4] = value;
            p->sums[o] += value;
        }
    return 0;
}

/* (weight, scales or None, bias, factors or None, step, least) of a product of so many inputs and outputs. */
static int read_product(Product *p, PyObject *source, int inputs, int outputs) {
    PyObject *weight, *scales, *bias, *factors;
    Py_buffer view;
    int status = -1;
    if (!PyArg_ParseTuple(source, "OOOOff", &weight, &scales, &bias, &factors, &p->step, &p->least)) return -1;
    p->inputs = inputs;
    p->outputs = outputs;
    if (inputs <= 0 || outputs <= 0 || inputs % DEPTH || outputs % PANEL) {
        PyErr_Format(PyExc_ValueError, "a product of %d by %d, expected multiples of %d", inputs, outputs,
                     DEPTH);
        return -1;
    }
    if (!(p->bias = read_floats(bias, outputs, "a bias"))) return -1;
    if (scales != Py_None && !(p->scales = read_floats(scales, outputs, "scales"))) return -1;
    if (factors != Py_None && !(p->factors = read_floats(factors, inputs, "factors"))) return -1;
    if (PyObject_GetBuffer(weight, &view, PyBUF_SIMPLE) < 0) return -1;
    if (view.len != (Py_ssize_t)inputs * outputs * (scales == Py_None ? 4 : 1))
        PyErr_Format(PyExc_ValueError, "a weight of %d by %d has %zd bytes", inputs, outputs, view.len);
    else
        status = scales == Py_None ? pack_floats(p, view.buf) : pack_bytes(p, view.buf);
    PyBuffer_Release(&view);
    return status;
}

static int read_layer(Net *n, Layer *l, PyObject *source) {
    PyObject *projection, *context, *context_weight, *context_bias, *wide, *narrow, *weight, *bias;
    if (!PyArg_ParseTuple(source, "OO(OO)OO(OO)", &projection, &context, &context_weight, &context_bias, &wide,
                          &narrow, &weight, &bias))
        return -1;
    const int hidden = n->hidden;
    if (read_product(&l->projection, projection, hidden, 3 * hidden) < 0) return -1;
    if (read_product(&l->context, context, hidden, hidden) < 0) return -1;
    if (read_norm(&l->context_norm, context_weight, context_bias, hidden) < 0) return -1;
    if (read_product(&l->wide, wide, hidden, n->intermediate) < 0) return -1;
    if (read_product(&l->narrow, narrow, n->intermediate, hidden) < 0) return -1;
    return read_norm(&l->norm, weight, bias, hidden);
}

static int read_layers(Net *n, PyObject *source) {
    const Py_ssize_t count = PySequence_Size(source);
    if (count < 0) return -1;
    if (!(n->layer = aligned(sizeof(Layer) * (size_t)count))) return -1;
    n->layers = (int)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(source, i);
        const int status = item ? read_layer(n, n->layer + i, item) : -1;
        Py_XDECREF(item);
        if (status < 0) return -1;
    }
    return 0;
}

/* How words are stored shows in the size of a row: `width` floats, as many bytes with one scale, or half as
 * many with blocks. */
static int read_words(WordTable *table, PyObject *words, Py_buffer *values, PyObject *word_scales,
                      Py_buffer *scales, int vocabulary, int width) {
    if (PyObject_GetBuffer(words, values, PyBUF_SIMPLE) < 0) return -1;
    if (word_scales != Py_None && PyObject_GetBuffer(word_scales, scales, PyBUF_SIMPLE) < 0) return -1;
    const Py_ssize_t row = vocabulary > 0 ? values->len / vocabulary : 0, rest = scales->len;
    const WordKind kind = row == 4L * width ? WORDS_FLOAT : row == width ? WORDS_INT8 : WORDS_INT4;
    const int blocks = vocabulary > 0 ? (int)(rest / vocabulary / 2) : 0;
    *table = (WordTable){kind, vocabulary, width, values->buf, scales->buf, blocks};
    if (row > 0 && values->len == row * vocabulary &&
        ((kind == WORDS_FLOAT && rest == 0) || (kind == WORDS_INT8 && rest == 4L * vocabulary) ||
         (kind == WORDS_INT4 && row * 2 == width && blocks > 0 && width % (blocks * LANES) == 0 &&
          rest == 2L * blocks * vocabulary)))
        return 0;
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

/* A table of at least one row of so many floats, and how many it has. */
static int read_table(Py_buffer *view, PyObject *source, int width, const char *name, const float **table,
                      int *count) {
    const Py_ssize_t row = 4L * width;
    if (PyObject_GetBuffer(source, view, PyBUF_SIMPLE) < 0) return -1;
    *table = view->buf;
    *count = (int)(view->len / row);
    if (view->len > 0 && view->len % row == 0) return 0;
    PyErr_Format(PyExc_ValueError, "%s are no rows of the hidden size", name);
    return -1;
}

static int read_places(Network *self, PyObject *positions, PyObject *types) {
    Net *n = &self->net;
    if (read_table(&self->positions, positions, n->hidden, "positions", &n->places, &n->positions) < 0)
        return -1;
    if (types == Py_None) return 0;
    return read_table(&self->types, types, n->hidden, "token types", &n->types, &n->token_types);
}

/* ---- the type ---- */

static int check_sizes(const Net *n) {
    if (n->hidden > 0 && n->hidden % DEPTH == 0 && n->heads > 0 && n->hidden % n->heads == 0 &&
        n->hidden / n->heads % LANES == 0 && n->intermediate > 0 && n->intermediate % DEPTH == 0 &&
        n->dimension > 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "no network of %d hidden, %d heads and %d intermediate can be run here",
                 n->hidden, n->heads, n->intermediate);
    return -1;
}

static PyObject *network_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"hidden",     "heads",   "intermediate", "memory_width", "dimension",
                            "vocabulary", "epsilon", "tanh",         "first_token",  "unit",
                            "amx",        "words",   "word_scales",  "memory",       "memory_scales",
                            "positions",  "types",   "norm",         "layers",       "head",
                            "tanh_head",  NULL};
    Network *self = (Network *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    Net *n = &self->net;
    int tanh_gelu, first_token, unit, amx, tanh_head, vocabulary, width;
    PyObject *words, *scales, *memory, *memory_scales, *positions, *types, *weight, *bias, *layers, *head;
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "$iiiiiifppppOOOOOO(OO)OOp", names, &n->hidden, &n->heads, &n->intermediate, &width,
            &n->dimension, &vocabulary, &n->epsilon, &tanh_gelu, &first_token, &unit, &amx, &words, &scales,
            &memory, &memory_scales, &positions, &types, &weight, &bias, &layers, &head, &tanh_head))
        goto failed;
    n->gelu = tanh_gelu ? GELU_TANH : GELU_ERF;
    n->first_token = first_token;
    n->unit = unit;
    n->amx = amx;
    n->has_head = head != Py_None;
    n->head_kind = tanh_head ? TANH : AS_IS;
    if (check_sizes(n) < 0 ||
        read_words(&n->words, words, &self->words, scales, &self->word_scales, vocabulary, n->hidden) < 0 ||
        read_memory(self, memory, memory_scales, vocabulary, width) < 0 ||
        read_places(self, positions, types) < 0)
        goto failed;
    if (read_norm(&n->embedding_norm, weight, bias, n->hidden) < 0 || read_layers(n, layers) < 0) goto failed;
    if (n->has_head && read_product(&n->head, head, pooled_width(n), n->dimension) < 0) goto failed;
    if (!n->has_head && n->dimension != pooled_width(n)) {
        PyErr_SetString(PyExc_ValueError,
                        "without a head, the dimension is the hidden size and the memory's width");
        goto failed;
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void free_product(Product *p) {
    free(p->floats);
    free(p->bytes);
    free(p->scales);
    free(p->sums);
    free(p->bias);
    free(p->factors);
}

static void free_norm(Norm *n) {
    free(n->weight);
    free(n->bias);
}

static void network_dealloc(PyObject *object) {
    Network *self = (Network *)object;
    PyTypeObject *type = Py_TYPE(object);
    Net *n = &self->net;
    for (int i = 0; i < n->layers; i++) {
        Layer *l = n->layer + i;
        free_product(&l->projection);
        free_product(&l->context);
        free_product(&l->wide);
        free_product(&l->narrow);
        free_norm(&l->context_norm);
        free_norm(&l->norm);
    }
    free(n->layer);
    free_product(&n->head);
    free_norm(&n->embedding_norm);
    PyBuffer_Release(&self->words);
    PyBuffer_Release(&self->word_scales);
    PyBuffer_Release(&self->memory);
    PyBuffer_Release(&self->memory_scales);
    PyBuffer_Release(&self->positions);
    PyBuffer_Release(&self->types);
    for (Room *room = self->idle; room;) {
        Room *next = room->next;
        free(room->room.memory);
        free(room);
        room = next;
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- running ---- */

/* A workspace for so many tokens, in texts of at most `longest`; one that is too small is replaced. */
static Room *take_room(Network *self, int tokens, int longest) {
    Room *room = self->idle;
    if (room)
        self->idle = room->next;
    else if (!(room = aligned(sizeof(Room))))
        return NULL;
    if (!room->room.memory || room->room.tokens < tokens || room->room.longest < longest) {
        tokens = tokens > room->room.tokens ? tokens : room->room.tokens;
        longest = longest > room->room.longest ? longest : room->room.longest;
        free(room->room.memory);
        room->room.memory = NULL;
        room->room.memory = aligned(lay_out(&self->net, &room->room, tokens, longest));
        if (!room->room.memory) {
            free(room);
            return NULL;
        }
        lay_out(&self->net, &room->room, tokens, longest);
    }
    return room;
}

static void give_room(Network *self, Room *room) {
    room->next = self->idle;
    self->idle = room;
}

static int check_rows(const int32_t *rows, Py_ssize_t tokens, int count, const char *name) {
    for (Py_ssize_t i = 0; i < tokens; i++)
        if (rows[i] < 0 || rows[i] >= count) {
            PyErr_Format(PyExc_ValueError, "%s %d, expected 0 to %d", name, rows[i], count - 1);
            return -1;
        }
    return 0;
}

/* The longest text's tokens, or -1 with an error if these are no texts of this network. */
static int check_texts(const Net *n, Py_ssize_t tokens, const int32_t *starts, int texts) {
    int longest = 0;
    if (starts[0] != 0 || starts[texts] != tokens) {
        PyErr_Format(PyExc_ValueError, "texts run from %d to %d, of %zd tokens", starts[0], starts[texts],
                     tokens);
        return -1;
    }
    for (int t = 0; t < texts; t++) {
        const int64_t length = (int64_t)starts[t + 1] - starts[t];
        if (length < 0 || length > n->positions) {
            PyErr_Format(PyExc_ValueError, "text %d has %lld tokens, expected 0 to %d", t, (long long)length,
                         n->positions);
            return -1;
        }
        longest = length > longest ? (int)length : longest;
    }
    return longest;
}

static int run_checked(Network *self, const Py_buffer *ids, const Py_buffer *types, const Py_buffer *starts,
                       const Py_buffer *out) {
    const Net *n = &self->net;
    const Py_ssize_t tokens = ids->len / 4, typed = n->token_types ? tokens : 0, texts = starts->len / 4 - 1;
    if (ids->len % 4 || starts->len % 4 || texts < 0 || tokens > INT32_MAX / 2 || texts > INT32_MAX / 2 ||
        types->len != typed * 4 || out->len != texts * n->dimension * 4) {
        PyErr_Format(PyExc_ValueError,
                     "%zd bytes of ids, %zd of types, %zd of starts and %zd of rows do not fit", ids->len,
                     types->len, starts->len, out->len);
        return -1;
    }
    const int longest = check_texts(n, tokens, starts->buf, (int)texts);
    if (longest < 0 || check_rows(ids->buf, tokens, n->words.count, "token id") < 0 ||
        check_rows(types->buf, typed, n->token_types, "token type") < 0)
        return -1;
    Room *room = take_room(self, (int)tokens, longest);
    if (!room) return -1;
    Py_BEGIN_ALLOW_THREADS
    run_batch(n, ids->buf, typed ? types->buf : NULL, starts->buf, (int)texts, out->buf, &room->room);
    Py_END_ALLOW_THREADS
    give_room(self, room);
    return 0;
}

static PyObject *network_run(PyObject *object, PyObject *args) {
    Py_buffer ids, types, starts, out;
    if (!PyArg_ParseTuple(args, "y*z*y*w*", &ids, &types, &starts, &out)) return NULL;
    const int status = run_checked((Network *)object, &ids, &types, &starts, &out);
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

static bool has_vnni(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
}

/* Linux saves the tiles of a process only after it has asked for it. */
static bool has_amx(void) {
    enum { LEAF = 7, TILE = 1 << 24, INT8 = 1 << 25, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(LEAF), "c"(0));
    return has_vnni() && (d & TILE) && (d & INT8) &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static PyObject *features(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    if (!has_vnni()) return PyTuple_New(0);
    return has_amx() ? Py_BuildValue("(ss)", "avx512-vnni", "amx-int8") : Py_BuildValue("(s)", "avx512-vnni");
}

#else

static PyObject *features(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyTuple_New(0);
}

#endif

static PyMethodDef module_methods[] = {
    {"features", features, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int fill_module(PyObject *module) {
#if HAS_KERNELS
    PyObject *type = PyType_FromSpec(&network_spec);
    const int status = type ? PyModule_AddObjectRef(module, "Network", type) : -1;
    Py_XDECREF(type);
    return status;
#else
    (void)module;
    return 0;
#endif
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
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
