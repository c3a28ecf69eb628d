/* Word pieces of BERT's tokenizers: BertNormalizer, BertPreTokenizer and WordPiece of the package tokenizers
 * in one pass over the characters of a text.
 *
 * Python provides the normalisation of each character, queried from the tokenizer itself
 * (embedkit/runtime/tokenizer_kernels.py). Texts with an unknown character or with an added token are left to the
 * tokenizer.
 *
 * Objects are immutable and release the interpreter's lock, so threads can share them. */

#include "batch.h"
#include "pieces.h"

enum {
    CODES = 0x10000,       /* the Basic Multilingual Plane, in one to three bytes of UTF-8 */
    LONGEST_SPELLING = 9,  /* bytes: three Hangul jamo */
    MOST_CHARACTERS = 256, /* of a word, whatever the tokenizer's limit */
    WORD_BYTES = 4 * MOST_CHARACTERS,
};

/* ---- Normalisation of characters ---- */

enum { FOREIGN, SPACE, MARK, LETTER };

typedef struct {
    uint8_t kind, size, characters;
    char spelling[LONGEST_SPELLING];
} Character;

/* Stores the normalised spelling of characters of one kind. Characters with long spellings remain foreign. */
static int set_characters(Character *characters, int kind, PyObject *spellings) {
    PyObject *key, *value;
    Py_ssize_t position = 0, size;
    while (PyDict_Next(spellings, &position, &key, &value)) {
        const char *letter = PyUnicode_AsUTF8AndSize(key, NULL),
                   *spelling = PyUnicode_AsUTF8AndSize(value, &size);
        if (letter == NULL || spelling == NULL) return -1;
        const unsigned char *at = (const unsigned char *)letter;
        uint32_t code = next_code(&at);
        if (code >= CODES || size > LONGEST_SPELLING) continue;
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
    Character *characters;           /* of CODES */
    Frame frame;
    size_t longest_word;
    int unknown;
} WordPieces;

typedef struct {
    size_t size, characters; /* characters beyond longest_word are only counted */
    char letters[WORD_BYTES];
    uint64_t hashes[WORD_BYTES]; /* of the letters from the first of a piece to this one */
} Word;

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

static Outcome walk(const void *object, const Text *text, void *scratch, Ids *ids) {
    const WordPieces *self = object;
    const unsigned char *at = (const unsigned char *)text->letters, *end = at + text->size;
    size_t begun = ids->count;
    Word *word = scratch;
    word->size = word->characters = 0;
    while (at < end && ids->count - begun <= self->frame.room) {
        if (begins_added(&self->frame, at, (size_t)(end - at))) return LEFT;
        uint32_t code = next_code(&at);
        if (code >= CODES) return LEFT;
        const Character *character = &self->characters[code];
        if (character->kind == FOREIGN) return LEFT;
        if (character->kind != LETTER && cut_word(self, word, ids) < 0) return NO_MEMORY;
        if (character->kind != SPACE) append(word, character, self->longest_word);
        if (character->kind == MARK && cut_word(self, word, ids) < 0) return NO_MEMORY;
    }
    return cut_word(self, word, ids) < 0 ? NO_MEMORY : WHOLE;
}

static PyObject *tokenize(PyObject *self, PyObject *texts) {
    Word word; /* 9 kB */
    return read_batch(walk, self, &((WordPieces *)self)->frame, texts, &word);
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

/* Returns an id, or -1. Accepts only ints: methods of other numbers could change the dictionary
 * being read. */
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

static int fill(PyObject *object, PyObject *arguments, PyObject *options) {
    WordPieces *self = (WordPieces *)object;
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
    if (longest_word < 0 || longest_word > MOST_CHARACTERS) {
        PyErr_Format(PyExc_ValueError, "longest_word must be 0 to %d", MOST_CHARACTERS);
        return -1;
    }
    self->longest_word = (size_t)longest_word;
    if ((self->characters = zeros(CODES, sizeof *self->characters)) == NULL) return -1;
    int failed = make_frame(&self->frame, added, before, after, room) < 0 ||
                 set_vocabulary(self, vocabulary, prefix, (size_t)prefix_size) < 0 ||
                 set_characters(self->characters, SPACE, spaces) < 0 ||
                 set_characters(self->characters, MARK, marks) < 0 ||
                 set_characters(self->characters, LETTER, letters) < 0;
    return failed ? -1 : 0;
}

static void drop(WordPieces *self) {
    free(self->arena);
    free(self->firsts.slots);
    free(self->others.slots);
    free(self->characters);
    drop_frame(&self->frame);
}

MODULE_OF_PIECES(wordpiece, WordPieces, "Word pieces of BERT's tokenizers.")
