/* Batches of texts from Python, and the ids of their pieces: what tokenizers of every kind have in common. */

#ifndef EMBEDKIT_BATCH_H
#define EMBEDKIT_BATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *letters; /* NULL without UTF-8, if the str contains an unpaired surrogate */
    size_t size;
} Text;

/* Points to the UTF-8 of each item of a tuple, which must outlive the pointers. */
static int gather(Text *texts, PyObject *tuple) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); i++) {
        Py_ssize_t size = 0;
        texts[i].letters = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, i), &size);
        texts[i].size = (size_t)size;
        if (texts[i].letters == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return -1;
            PyErr_Clear();
        }
    }
    return 0;
}

static void *zeros(size_t count, size_t size) {
    void *memory = calloc(count + 1, size); /* size 0 may give NULL */
    if (memory == NULL) PyErr_NoMemory();
    return memory;
}

/* Returns the code point at `at` and advances `at`. CPython has checked the UTF-8. */
static inline uint32_t next_code(const unsigned char **at) {
    const unsigned char *here = *at;
    *at += here[0] < 0x80 ? 1 : here[0] < 0xe0 ? 2 : here[0] < 0xf0 ? 3 : 4;
    if (here[0] < 0x80) return here[0];
    if (here[0] < 0xe0) return (here[0] & 0x1fu) << 6 | (here[1] & 0x3fu);
    uint32_t code = (here[0] & 0x0fu) << 12 | (here[1] & 0x3fu) << 6 | (here[2] & 0x3fu);
    return here[0] < 0xf0 ? code : (code & 0x7fffu) << 6 | (here[3] & 0x3fu);
}

/* ---- Ids ---- */

typedef struct {
    int32_t *items;
    size_t count, room;
} Ids;

static int reserve(Ids *ids, size_t more) {
    if (ids->room - ids->count >= more) return 0;
    size_t room = 2 * ids->room + more;
    if (room > PTRDIFF_MAX / sizeof(int32_t)) return -1;
    int32_t *items = realloc(ids->items, room * sizeof(int32_t));
    if (items == NULL) return -1;
    *ids = (Ids){items, ids->count, room};
    return 0;
}

static void add_ids(Ids *ids, const Text *more) {
    memcpy(ids->items + ids->count, more->letters, more->size);
    ids->count += more->size / sizeof(int32_t);
}

/* ---- What surrounds the pieces of a text ---- */

typedef struct {
    Text *added, before, after; /* before and after are ids */
    PyObject *kept[3];          /* objects that those three point into */
    size_t room;                /* pieces of a text */
    uint8_t opens[256];         /* whether a byte begins an added token */
} Frame;

static int make_frame(Frame *frame, PyObject *added, PyObject *before, PyObject *after, Py_ssize_t room) {
    PyObject *kept[3] = {added, before, after};
    Py_ssize_t count = PyTuple_Size(added);
    for (int i = 0; i < 3; i++) {
        frame->kept[i] = kept[i];
        Py_INCREF(kept[i]);
    }
    if (room < 0) {
        PyErr_SetString(PyExc_ValueError, "room must be at least 0");
        return -1;
    }
    frame->room = (size_t)room;
    frame->before = (Text){PyBytes_AsString(before), (size_t)PyBytes_Size(before)};
    frame->after = (Text){PyBytes_AsString(after), (size_t)PyBytes_Size(after)};
    frame->added = zeros((size_t)count, sizeof(Text)); /* ends with an entry without letters */
    if (frame->added == NULL || gather(frame->added, added) < 0) return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (frame->added[i].letters == NULL || frame->added[i].size == 0) {
            PyErr_SetString(PyExc_ValueError, "added tokens must be valid Unicode, and not empty");
            return -1;
        }
        frame->opens[(unsigned char)frame->added[i].letters[0]] = 1;
    }
    return 0;
}

static void drop_frame(Frame *frame) {
    free(frame->added);
    for (int i = 0; i < 3; i++) Py_XDECREF(frame->kept[i]);
}

/* Whether an added token begins at `at`. */
static inline int begins_added(const Frame *frame, const unsigned char *at, size_t left) {
    if (!frame->opens[*at]) return 0;
    for (const Text *added = frame->added; added->letters; added++)
        if (added->size <= left && memcmp(added->letters, at, added->size) == 0) return 1;
    return 0;
}

/* ---- Batches ---- */

typedef enum { WHOLE, CUT, LEFT, NO_MEMORY } Outcome;

/* Appends the pieces of a text; `scratch` is memory for all texts of a batch. Stops after one piece more than
 * fit, because the rest cannot change those before. */
typedef Outcome (*Reader)(const void *self, const Text *text, void *scratch, Ids *ids);

typedef struct {
    Text *texts;
    int64_t *bounds; /* of the texts in ids; one more than there are texts */
    uint8_t *outcomes;
    Ids ids;
} Batch;

static int make_batch(Batch *batch, PyObject *tuple) {
    size_t count = (size_t)PyTuple_Size(tuple);
    if ((batch->texts = zeros(count, sizeof *batch->texts)) == NULL ||
        (batch->bounds = zeros(count + 1, sizeof *batch->bounds)) == NULL ||
        (batch->outcomes = zeros(count, sizeof *batch->outcomes)) == NULL)
        return -1;
    return gather(batch->texts, tuple);
}

static Outcome read_text(Reader reader, const void *self, const Frame *frame, const Text *text, void *scratch,
                         Ids *ids) {
    size_t begun = ids->count;
    if (text->letters == NULL) return LEFT;
    if (reserve(ids, frame->before.size + 1) < 0) return NO_MEMORY;
    add_ids(ids, &frame->before);
    size_t first = ids->count;
    Outcome outcome = reader(self, text, scratch, ids);
    if (outcome == NO_MEMORY || reserve(ids, frame->after.size + 1) < 0) return NO_MEMORY;
    if (outcome == LEFT) {
        ids->count = begun;
        return LEFT;
    }
    int fits = ids->count - first <= frame->room;
    if (!fits) ids->count = first + frame->room;
    add_ids(ids, &frame->after);
    return fits ? WHOLE : CUT;
}

static int run_batch(Reader reader, const void *self, const Frame *frame, Batch *batch, Py_ssize_t count,
                     void *scratch) {
    for (Py_ssize_t i = 0; i < count; i++) {
        Outcome outcome = read_text(reader, self, frame, &batch->texts[i], scratch, &batch->ids);
        if (outcome == NO_MEMORY) return -1;
        batch->outcomes[i] = (uint8_t)outcome;
        batch->bounds[i + 1] = (int64_t)batch->ids.count;
    }
    return 0;
}

/* Reads texts without the interpreter's lock; returns the ids, their bounds, and what became of each text. */
static PyObject *read_batch(Reader reader, const void *self, const Frame *frame, PyObject *texts,
                            void *scratch) {
    PyObject *tuple = PySequence_Tuple(texts), *given = NULL; /* immutable, unlike a list */
    if (tuple == NULL) return NULL;
    Py_ssize_t count = PyTuple_Size(tuple);
    Batch batch = {0};
    if (make_batch(&batch, tuple) == 0) {
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = run_batch(reader, self, frame, &batch, count, scratch);
        Py_END_ALLOW_THREADS
        Py_ssize_t bytes = (Py_ssize_t)(batch.ids.count * sizeof(int32_t)), wide = (Py_ssize_t)sizeof(int64_t);
        given = done < 0
                    ? PyErr_NoMemory()
                    : Py_BuildValue("y#y#y#", bytes ? (char *)batch.ids.items : "", bytes, (char *)batch.bounds,
                                    (count + 1) * wide, (char *)batch.outcomes, count);
    }
    free(batch.texts);
    free(batch.bounds);
    free(batch.outcomes);
    free(batch.ids.items);
    Py_DECREF(tuple);
    return given;
}

/* ---- The module ---- */

/* Allocates an object, all zero, and fills it. */
static PyObject *make_object(PyTypeObject *type, PyObject *arguments, PyObject *options,
                             int (*fill)(PyObject *, PyObject *, PyObject *)) {
    PyObject *self = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self != NULL && fill(self, arguments, options) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

static void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

#ifdef Py_GIL_DISABLED
#define WITHOUT_GIL {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#else
#define WITHOUT_GIL
#endif

/* Defines the module `NAME` with one type, `TYPE`, by its functions: `fill` sets an object, all zero, from the
 * arguments of its constructor, `drop` frees what it holds, and `tokenize` is its method. */
#define MODULE_OF_PIECES(NAME, TYPE, DOC)                                                                      \
    static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *options) {                        \
        return make_object(type, arguments, options, fill);                                                    \
    }                                                                                                          \
    static void dispose(PyObject *object) {                                                                    \
        drop((TYPE *)object);                                                                                  \
        free_object(object);                                                                                   \
    }                                                                                                          \
    static PyMethodDef methods[] = {                                                                           \
        {"tokenize", tokenize, METH_O, "Ids of texts, their bounds in them, and what became of each."},        \
        {NULL, NULL, 0, NULL},                                                                                 \
    };                                                                                                         \
    static PyType_Slot type_slots[] = {                                                                        \
        {Py_tp_doc, DOC}, {Py_tp_new, make}, {Py_tp_dealloc, dispose}, {Py_tp_methods, methods}, {0, NULL},    \
    };                                                                                                         \
    static PyType_Spec type_spec = {                                                                           \
        .name = "embedkit.kernels." #NAME "." #TYPE,                                                           \
        .basicsize = sizeof(TYPE),                                                                             \
        .flags = Py_TPFLAGS_DEFAULT,                                                                           \
        .slots = type_slots,                                                                                   \
    };                                                                                                         \
    static int fill_module(PyObject *module) { return add_type(module, &type_spec); }                          \
    static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill_module}, WITHOUT_GIL{0, NULL}};               \
    static struct PyModuleDef module = {                                                                       \
        PyModuleDef_HEAD_INIT,                                                                                 \
        .m_name = "embedkit.kernels." #NAME,                                                                   \
        .m_doc = DOC,                                                                                          \
        .m_slots = module_slots,                                                                               \
    };                                                                                                         \
    PyMODINIT_FUNC PyInit_##NAME(void);                                                                        \
    PyMODINIT_FUNC PyInit_##NAME(void) { return PyModuleDef_Init(&module); }

#endif
