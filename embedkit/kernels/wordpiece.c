/* Word pieces of BERT's tokenizers: BertNormalizer, BertPreTokenizer and WordPiece of the package tokenizers
 * in one pass over the characters of a text.
 *
 * Python provides the normalisation of each character, queried from the tokenizer itself
 * (embedkit/runtime/word_pieces.py). Texts with an unknown character or with an added token are left to the
 * tokenizer.
 *
 * Objects are immutable and release the interpreter's lock, so threads can share them. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "pieces.h"

enum {
    CODES = 0x2100, /* Latin to General Punctuation and Currency Symbols, in one to three bytes of UTF-8 */
    LONGEST_SPELLING = 5,  /* bytes */
    MOST_CHARACTERS = 256, /* of a word, whatever the tokenizer's limit */
    WORD_BYTES = 4 * MOST_CHARACTERS,
};

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

/* ---- Normalisation of characters ---- */

enum { FOREIGN, SPACE, MARK, LETTER, OPENS = 8 }; /* OPENS marks characters that may begin an added token */

typedef struct {
    uint8_t kind, size, characters;
    char spelling[LONGEST_SPELLING];
} Character;

/* Returns the code of the character at `at` and advances `at`; CODES if it is larger. CPython has checked the
 * UTF-8. */
static inline unsigned next_code(const unsigned char **at) {
    const unsigned char *here = *at;
    *at += here[0] < 0x80 ? 1 : here[0] < 0xe0 ? 2 : here[0] < 0xf0 ? 3 : 4;
    if (here[0] < 0x80) return here[0];
    if (here[0] < 0xe0) return (here[0] & 0x1fu) << 6 | (here[1] & 0x3fu);
    unsigned code = (here[0] & 0x0fu) << 12 | (here[1] & 0x3fu) << 6 | (here[2] & 0x3fu);
    return here[0] < 0xf0 && code < CODES ? code : CODES;
}

/* Stores the normalised spelling of characters of one kind. Characters with long spellings remain foreign. */
static int set_characters(Character *characters, int kind, PyObject *spellings) {
    PyObject *key, *value;
    Py_ssize_t position = 0, size;
    while (PyDict_Next(spellings, &position, &key, &value)) {
        const char *letter = PyUnicode_AsUTF8AndSize(key, NULL),
                   *spelling = PyUnicode_AsUTF8AndSize(value, &size);
        if (letter == NULL || spelling == NULL) return -1;
        const unsigned char *at = (const unsigned char *)letter;
        unsigned code = next_code(&at);
        if (code == CODES || size > LONGEST_SPELLING) continue;
        Character *character = &characters[code];
        *character = (Character){.kind = (uint8_t)kind, .size = (uint8_t)size};
        memcpy(character->spelling, spelling, (size_t)size);
        for (Py_ssize_t i = 0; i < size; i++)
            character->characters = (uint8_t)(character->characters + ((spelling[i] & 0xc0) != 0x80));
    }
    return 0;
}

/* ---- Tokenization of a text ---- */

typedef struct {
    PyObject_HEAD
    char *arena;                     /* all entries of the vocabulary */
    Pieces firsts, others;           /* pieces that begin a word, and that continue it, without the prefix */
    Character characters[CODES + 1]; /* the last is foreign */
    Text *added, before, after;      /* before and after are ids */
    PyObject *kept[3];               /* objects that those three point into */
    size_t room;                     /* pieces of a text */
    size_t longest_word;
    int unknown;
} WordPieces;

typedef struct {
    size_t size, characters; /* characters beyond longest_word are only counted */
    char letters[WORD_BYTES];
    uint64_t hashes[WORD_BYTES]; /* of the letters from the first of a piece to this one */
} Word;

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

static inline void append(Word *word, const Character *character, size_t longest) {
    word->characters += character->characters;
    if (word->characters > longest) return;
    uint64_t hash = word->size ? word->hashes[word->size - 1] : HASH_OF_NOTHING;
    for (size_t i = 0; i < character->size; i++) {
        word->letters[word->size] = character->spelling[i];
        word->hashes[word->size++] = hash = hash_on(hash, character->spelling[i]);
    }
}

/* Returns the id of the longest piece from `start`, or -1; moves `end` past it. */
static int32_t longest_piece(const WordPieces *self, Word *word, size_t start, size_t *end) {
    const Pieces *pieces = start ? &self->others : &self->firsts;
    size_t stop = word->size - start < pieces->longest ? word->size : start + pieces->longest;
    uint64_t hash = HASH_OF_NOTHING;
    for (size_t i = start; start && i < stop; i++) word->hashes[i] = hash = hash_on(hash, word->letters[i]);
    /* No piece ends within a character, so bytes can be removed one by one. */
    for (*end = stop; *end > start; --*end) {
        int32_t id = find(pieces, self->arena, word->hashes[*end - 1], word->letters + start, *end - start);
        if (id >= 0) return id;
    }
    return -1;
}

/* Splits a word into pieces, or replaces it by the unknown piece if a part is left; empties the word. */
static int cut_word(const WordPieces *self, Word *word, Ids *ids) {
    size_t begun = ids->count, end;
    if (word->characters == 0) return 0;
    if (reserve(ids, word->size + 1) < 0) return -1;
    int known = word->characters <= self->longest_word;
    for (size_t start = 0; known && start < word->size; start = end) {
        int32_t id = longest_piece(self, word, start, &end);
        known = id >= 0;
        ids->items[ids->count++] = id;
    }
    if (!known) {
        ids->count = begun;
        ids->items[ids->count++] = self->unknown;
    }
    word->size = word->characters = 0;
    return 0;
}

static int begins_added(const Text *added, const unsigned char *at, size_t left) {
    for (; added->letters; added++)
        if (added->size <= left && memcmp(added->letters, at, added->size) == 0) return 1;
    return 0;
}

typedef enum { WHOLE, CUT, LEFT, NO_MEMORY } Outcome;

/* Returns the pieces of a text. Stops after one piece more than fit, because the rest cannot change those
 * before. */
static Outcome walk(const WordPieces *self, const Text *text, Word *word, Ids *ids) {
    const unsigned char *at = (const unsigned char *)text->letters, *end = at + text->size;
    size_t begun = ids->count;
    word->size = word->characters = 0;
    while (at < end && ids->count - begun <= self->room) {
        const unsigned char *here = at;
        const Character *character = &self->characters[next_code(&at)];
        int kind = character->kind & ~OPENS;
        if (kind == FOREIGN ||
            (kind != character->kind && begins_added(self->added, here, (size_t)(end - here))))
            return LEFT;
        if (kind != LETTER && cut_word(self, word, ids) < 0) return NO_MEMORY;
        if (kind != SPACE) append(word, character, self->longest_word);
        if (kind == MARK && cut_word(self, word, ids) < 0) return NO_MEMORY;
    }
    if (cut_word(self, word, ids) < 0) return NO_MEMORY;
    if (ids->count - begun <= self->room) return WHOLE;
    ids->count = begun + self->room;
    return CUT;
}

static Outcome tokenize_text(const WordPieces *self, const Text *text, Word *word, Ids *ids) {
    size_t begun = ids->count;
    if (text->letters == NULL) return LEFT;
    if (reserve(ids, self->before.size + 1) < 0) return NO_MEMORY;
    add_ids(ids, &self->before);
    Outcome outcome = walk(self, text, word, ids);
    if (outcome == NO_MEMORY || reserve(ids, self->after.size + 1) < 0) return NO_MEMORY;
    if (outcome == LEFT)
        ids->count = begun;
    else
        add_ids(ids, &self->after);
    return outcome;
}

/* ---- Batches of texts ---- */

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

static int run_batch(const WordPieces *self, Batch *batch, Py_ssize_t count) {
    Word word; /* 9 kB */
    for (Py_ssize_t i = 0; i < count; i++) {
        Outcome outcome = tokenize_text(self, &batch->texts[i], &word, &batch->ids);
        if (outcome == NO_MEMORY) return -1;
        batch->outcomes[i] = (uint8_t)outcome;
        batch->bounds[i + 1] = (int64_t)batch->ids.count;
    }
    return 0;
}

static PyObject *tokenize(PyObject *self, PyObject *texts) {
    PyObject *tuple = PySequence_Tuple(texts), *given = NULL; /* immutable, unlike a list */
    if (tuple == NULL) return NULL;
    Py_ssize_t count = PyTuple_Size(tuple);
    Batch batch = {0};
    if (make_batch(&batch, tuple) == 0) {
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = run_batch((const WordPieces *)self, &batch, count);
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

/* ---- Construction ---- */

/* Returns the bytes of all entries, or -1; counts those that begin with the prefix and have more. */
static Py_ssize_t measure(PyObject *vocabulary, const char *prefix, size_t prefix_size, size_t *others) {
    PyObject *entry, *id;
    Py_ssize_t position = 0, bytes = 0, size;
    while (PyDict_Next(vocabulary, &position, &entry, &id)) {
        const char *letters = PyUnicode_AsUTF8AndSize(entry, &size);
        if (letters == NULL) return -1;
        *others += (size_t)size > prefix_size && memcmp(letters, prefix, prefix_size) == 0;
        bytes += size; /* strings in memory cannot overflow it */
    }
    if ((uint64_t)bytes > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the vocabulary is larger than 4 GB");
        return -1;
    }
    return bytes;
}

/* Returns an id, or -1. Accepts only ints: methods of other numbers could change the dictionary being read.
 */
static int32_t read_id(PyObject *number) {
    int overflow = 0;
    long id = PyLong_Check(number) ? PyLong_AsLongAndOverflow(number, &overflow) : -1;
    if (id < 0 || id > INT32_MAX || overflow) {
        PyErr_SetString(PyExc_ValueError, "ids must be whole numbers from 0 to 2147483647");
        return -1;
    }
    return (int32_t)id;
}

static int set_vocabulary(WordPieces *self, PyObject *vocabulary, const char *prefix, size_t prefix_size) {
    PyObject *entry, *number;
    Py_ssize_t position = 0, size;
    size_t used = 0, others = 0;
    Py_ssize_t bytes = measure(vocabulary, prefix, prefix_size, &others);
    if (bytes < 0 || (self->arena = zeros((size_t)bytes, 1)) == NULL) return -1;
    if (make_room(&self->firsts, (size_t)PyDict_Size(vocabulary)) < 0 || make_room(&self->others, others) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    while (PyDict_Next(vocabulary, &position, &entry, &number)) {
        const char *letters = PyUnicode_AsUTF8AndSize(entry, &size);
        int32_t id = read_id(number);
        if (letters == NULL || id < 0) return -1;
        size_t start = used;
        memcpy(self->arena + start, letters, (size_t)size);
        used += (size_t)size;
        if (size > 0) insert(&self->firsts, self->arena, start, used, id);
        if ((size_t)size > prefix_size && memcmp(letters, prefix, prefix_size) == 0)
            insert(&self->others, self->arena, start + prefix_size, used, id);
    }
    return 0;
}

static int set_added(WordPieces *self, PyObject *names) {
    Py_ssize_t count = PyTuple_Size(names);
    self->added = zeros((size_t)count, sizeof(Text)); /* ends with an entry without letters */
    if (self->added == NULL || gather(self->added, names) < 0) return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        const unsigned char *at = (const unsigned char *)self->added[i].letters;
        if (at == NULL || *at == 0) {
            PyErr_SetString(PyExc_ValueError, "added tokens must be valid Unicode, and not empty");
            return -1;
        }
        self->characters[next_code(&at)].kind |= OPENS;
    }
    return 0;
}

static void keep(WordPieces *self, PyObject *added, PyObject *before, PyObject *after) {
    self->kept[0] = added;
    self->kept[1] = before;
    self->kept[2] = after;
    for (int i = 0; i < 3; i++) Py_INCREF(self->kept[i]);
    self->before = (Text){PyBytes_AsString(before), (size_t)PyBytes_Size(before)};
    self->after = (Text){PyBytes_AsString(after), (size_t)PyBytes_Size(after)};
}

static int fill(WordPieces *self, PyObject *arguments, PyObject *options) {
    static char *names[] = {"vocabulary", "unknown", "prefix", "longest_word", "letters", "marks",
                            "spaces",     "added",   "before", "after",        "room",    NULL};
    PyObject *vocabulary, *letters, *marks, *spaces, *added, *before, *after;
    const char *prefix;
    Py_ssize_t prefix_size, longest_word, room;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "O!$is#nO!O!O!O!SSn", names, &PyDict_Type, &vocabulary,
                                     &self->unknown, &prefix, &prefix_size, &longest_word, &PyDict_Type,
                                     &letters, &PyDict_Type, &marks, &PyDict_Type, &spaces, &PyTuple_Type,
                                     &added, &before, &after, &room))
        return -1;
    if (longest_word < 0 || longest_word > MOST_CHARACTERS || room < 0) {
        PyErr_Format(PyExc_ValueError, "longest_word must be 0 to %d, and room at least 0", MOST_CHARACTERS);
        return -1;
    }
    self->longest_word = (size_t)longest_word;
    self->room = (size_t)room;
    keep(self, added, before, after);
    int failed = set_vocabulary(self, vocabulary, prefix, (size_t)prefix_size) < 0 ||
                 set_characters(self->characters, SPACE, spaces) < 0 ||
                 set_characters(self->characters, MARK, marks) < 0 ||
                 set_characters(self->characters, LETTER, letters) < 0 || set_added(self, added) < 0;
    return failed ? -1 : 0;
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *options) {
    PyObject *self = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* all zero */
    if (self != NULL && fill((WordPieces *)self, arguments, options) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

static void dispose(PyObject *object) {
    WordPieces *self = (WordPieces *)object;
    PyTypeObject *type = Py_TYPE(object);
    free(self->arena);
    free(self->firsts.slots);
    free(self->others.slots);
    free(self->added);
    for (int i = 0; i < 3; i++) Py_XDECREF(self->kept[i]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"tokenize", tokenize, METH_O, "Ids of texts, their bounds in them, and what became of each."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, "Texts to word pieces, as a tokenizer of BERT makes them."},
    {Py_tp_new, make},
    {Py_tp_dealloc, dispose},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "embedkit.kernels.wordpiece.WordPieces",
    .basicsize = sizeof(WordPieces),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = type_slots,
};

static int fill_module(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &type_spec, NULL);
    int failed = type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "embedkit.kernels.wordpiece",
    .m_doc = "Word pieces of BERT's tokenizers.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit_wordpiece(void) { return PyModuleDef_Init(&module); }
