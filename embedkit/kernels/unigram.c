/* Pieces of SentencePiece's Unigram models: the normalisers Precompiled, Strip and Replace (of spaces), the
 * pre-tokenizers WhitespaceSplit and Metaspace, and the model Unigram of the package tokenizers.
 *
 * Python provides the parts of a tokenizer and the kinds of characters (embedkit/runtime/tokenizer_kernels.py).
 * Texts whose normalisation needs more than these kinds, and texts with an added token, are left to the
 * tokenizer.
 *
 * Objects are immutable and release the interpreter's lock, so threads can share them. */

#include "batch.h"
#include "charsmap.h"
#include "trie.h"

typedef struct {
    PyObject_HEAD
    Trie trie;
    double *scores; /* by id */
    double unknown_score;
    int32_t unknown;     /* id, or NO_PIECE */
    int32_t bytes[256];  /* ids of the pieces of single bytes, or NO_PIECE */
    int byte_fallback;   /* whether unknown characters are spelled in those */
    Charsmap map;
    Text space, spaces;  /* in place of each space, and of several; spaces has no letters if these stay */
    int strip_left, strip_right, split_whitespace, split, prefix;
    Frame frame;
    PyObject *kept[4]; /* objects that map, space and spaces point into */
} UnigramPieces;

/* The best pieces of a word up to a byte: the last of them, and the sum of their scores. */
typedef struct {
    double score;
    size_t size; /* bytes of the last piece; 0 if there is none yet */
    int32_t id;
} Best;

typedef struct {
    Bytes normal, joined, word;
    Best *best;
    size_t room; /* of best */
} Scratch;

static inline size_t size_of_character(unsigned char first) {
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

static inline void improve(Best *best, double score, size_t size, int32_t id) {
    if (best->size == 0 || score > best->score) *best = (Best){score, size, id};
}

/* Finds the best pieces up to each byte of the word. */
static Outcome rate(const UnigramPieces *self, Scratch *scratch) {
    const unsigned char *word = scratch->word.items;
    size_t size = scratch->word.size;
    if (size >= scratch->room) {
        size_t room = 2 * size + 64;
        Best *best = room > PTRDIFF_MAX / sizeof *best ? NULL : realloc(scratch->best, room * sizeof *best);
        if (best == NULL) return NO_MEMORY;
        scratch->best = best;
        scratch->room = room;
    }
    Best *best = scratch->best;
    for (size_t i = 0; i <= size; i++) best[i] = (Best){0};
    for (size_t start = 0; start < size;) {
        double here = best[start].score;
        size_t single = size_of_character(word[start]);
        int has_single = 0;
        uint32_t node = 0;
        for (size_t at = start; at < size && (node = step(&self->trie, node, word[at])) != 0; at++) {
            int32_t id = self->trie.ids[node];
            if (id == NO_PIECE) continue;
            improve(&best[at + 1], self->scores[id] + here, at + 1 - start, id);
            has_single |= at + 1 - start == single;
        }
        if (!has_single) {
            if (self->unknown == NO_PIECE) return LEFT; /* the tokenizer raises an error */
            improve(&best[start + single], self->unknown_score + here, single, self->unknown);
        }
        start += single;
    }
    return WHOLE;
}

/* Appends, in reverse, the ids of a part that no known piece covers. */
static void spell_unknown(const UnigramPieces *self, const unsigned char *bytes, size_t size, Ids *ids) {
    int32_t whole = find_piece(&self->trie, bytes, size);
    int in_bytes = whole == NO_PIECE && self->byte_fallback;
    for (size_t i = 0; in_bytes && i < size; i++) in_bytes = self->bytes[bytes[i]] != NO_PIECE;
    for (size_t i = size; in_bytes && i > 0; i--) ids->items[ids->count++] = self->bytes[bytes[i - 1]];
    if (!in_bytes) ids->items[ids->count++] = whole == NO_PIECE ? self->unknown : whole;
}

/* Appends the best pieces of the word, adjacent unknown ones as one; empties the word. */
static Outcome cut_word(const UnigramPieces *self, Scratch *scratch, Ids *ids) {
    const Bytes *word = &scratch->word;
    size_t end = word->size, begun = ids->count;
    if (end == 0) return WHOLE;
    Outcome outcome = rate(self, scratch);
    if (outcome != WHOLE) return outcome;
    if (reserve(ids, word->size) < 0) return NO_MEMORY;
    while (end > 0) {
        size_t start = end - scratch->best[end].size;
        if (self->unknown == NO_PIECE || scratch->best[end].id != self->unknown) {
            ids->items[ids->count++] = scratch->best[end].id;
        } else {
            while (start > 0 && scratch->best[start].id == self->unknown) start -= scratch->best[start].size;
            spell_unknown(self, word->items + start, end - start, ids);
        }
        end = start;
    }
    for (size_t i = begun, j = ids->count; i + 1 < j; i++) {
        int32_t id = ids->items[i];
        ids->items[i] = ids->items[--j];
        ids->items[j] = id;
    }
    scratch->word.size = 0;
    return WHOLE;
}

/* ---- Words ---- */

/* Unicode's White_Space. */
static inline int is_white(uint32_t code) {
    return (code >= 9 && code <= 13) || code == ' ' || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f ||
           code == 0x205f || code == 0x3000;
}

static void strip(const UnigramPieces *self, const unsigned char **start, const unsigned char **end) {
    for (const unsigned char *at = *start; self->strip_left && at < *end; *start = at)
        if (!is_white(next_code(&at))) break;
    while (self->strip_right && *end > *start) {
        const unsigned char *last = *end - 1;
        while ((*last & 0xc0) == 0x80) last--;
        const unsigned char *at = last;
        if (!is_white(next_code(&at))) break;
        *end = last;
    }
}

static inline int begins(const Text *text, const unsigned char *at, const unsigned char *end) {
    return *at == (unsigned char)*text->letters && (size_t)(end - at) >= text->size &&
           memcmp(at, text->letters, text->size) == 0;
}

/* Appends the pieces of a part without outer spaces if `split_whitespace`, else of a whole text. */
static Outcome cut_part(const UnigramPieces *self, const unsigned char *at, const unsigned char *end,
                        Scratch *scratch, Ids *ids, size_t most) {
    const Text *space = &self->space;
    Bytes *word = &scratch->word;
    Outcome outcome = WHOLE;
    word->size = 0;
    if (self->prefix && at < end && *at != ' ' && !begins(space, at, end) &&
        put(word, space->letters, space->size) < 0)
        return NO_MEMORY;
    while (at < end && ids->count < most) {
        int is_space = *at == ' ', begins_word = is_space || begins(space, at, end);
        size_t size = is_space ? 1 : begins_word ? space->size : size_of_character(*at);
        if (begins_word && self->split && (outcome = cut_word(self, scratch, ids)) != WHOLE) return outcome;
        if (put(word, is_space ? space->letters : (const char *)at, is_space ? space->size : size) < 0)
            return NO_MEMORY;
        at += size;
    }
    return ids->count < most ? cut_word(self, scratch, ids) : WHOLE;
}

static Outcome cut_parts(const UnigramPieces *self, const unsigned char *at, const unsigned char *end,
                         Scratch *scratch, Ids *ids, size_t most) {
    if (!self->split_whitespace) return cut_part(self, at, end, scratch, ids, most);
    const unsigned char *start = at;
    Outcome outcome = WHOLE;
    while (outcome == WHOLE && at < end && ids->count < most) {
        const unsigned char *here = at;
        if (!is_white(next_code(&at))) continue;
        outcome = cut_part(self, start, here, scratch, ids, most);
        start = at;
    }
    return outcome == WHOLE ? cut_part(self, start, at, scratch, ids, most) : outcome;
}

/* Replaces several spaces as a whole. */
static int join_spaces(const UnigramPieces *self, const unsigned char *at, const unsigned char *end, Bytes *to) {
    while (at < end) {
        const unsigned char *start = at;
        int is_space = *at == ' ';
        while (at < end && (*at == ' ') == is_space) at++;
        int several = is_space && at - start > 1;
        if (put(to, several ? (const void *)self->spaces.letters : start,
                several ? self->spaces.size : (size_t)(at - start)) < 0)
            return -1;
    }
    return 0;
}

static int has_added(const Frame *frame, const unsigned char *at, const unsigned char *end) {
    for (; at < end; at++)
        if (begins_added(frame, at, (size_t)(end - at))) return 1;
    return 0;
}

static Outcome read_pieces(const void *object, const Text *text, void *memory, Ids *ids) {
    const UnigramPieces *self = object;
    Scratch *scratch = memory;
    Bytes *normal = &scratch->normal, *joined = &scratch->joined;
    const unsigned char *start = (const unsigned char *)text->letters, *end = start + text->size;
    normal->size = joined->size = 0;
    if (has_added(&self->frame, start, end)) return LEFT;
    if (self->map.units) {
        int done = normalise(&self->map, start, end, normal);
        if (done) return done < 0 ? NO_MEMORY : LEFT;
        if (normal->size == 0) return WHOLE;
        start = normal->items;
        end = start + normal->size;
    }
    strip(self, &start, &end);
    if (self->spaces.letters) {
        if (join_spaces(self, start, end, joined) < 0) return NO_MEMORY;
        if (joined->size == 0) return WHOLE;
        start = joined->items;
        end = start + joined->size;
    }
    return cut_parts(self, start, end, scratch, ids, ids->count + self->frame.room + 1);
}

static PyObject *tokenize(PyObject *self, PyObject *texts) {
    Scratch scratch = {0};
    PyObject *given = read_batch(read_pieces, self, &((UnigramPieces *)self)->frame, texts, &scratch);
    free(scratch.normal.items);
    free(scratch.joined.items);
    free(scratch.word.items);
    free(scratch.best);
    return given;
}

/* ---- Construction ---- */

static int refuse(const char *message) {
    PyErr_SetString(PyExc_ValueError, message);
    return -1;
}

static int set_pieces(UnigramPieces *self, PyObject *pieces, PyObject *scores, Py_ssize_t unknown) {
    Py_ssize_t count = PyTuple_Size(pieces), size;
    if (count > INT32_MAX || PyBytes_Size(scores) != count * (Py_ssize_t)sizeof(double))
        return refuse("there must be one float64 for each piece");
    if (count == 0 || unknown < NO_PIECE || unknown >= count) return refuse("unknown must be a piece, or -1");
    if (grow(&self->trie) < 0 || (self->scores = malloc((size_t)count * sizeof(double))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(self->scores, PyBytes_AsString(scores), (size_t)count * sizeof(double));
    double least = self->scores[0];
    for (Py_ssize_t i = 0; i < count; i++) {
        const char *piece = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(pieces, i), &size);
        if (piece == NULL) return -1;
        if (add_piece(&self->trie, (const unsigned char *)piece, (size_t)size, (int32_t)i) < 0)
            return refuse("the pieces are too many");
        if (self->scores[i] < least) least = self->scores[i];
    }
    self->unknown = (int32_t)unknown;
    self->unknown_score = least - 10;
    for (int i = 0; i < 256; i++) {
        char name[8] = "<0x00>";
        name[3] = "0123456789ABCDEF"[i / 16];
        name[4] = "0123456789ABCDEF"[i % 16];
        self->bytes[i] = find_piece(&self->trie, (const unsigned char *)name, 6);
    }
    return 0;
}

/* Sets a text that is a str, or without letters where it is None and may be. */
static int set_text(Text *text, PyObject *given, int may_be_none) {
    Py_ssize_t size = 0;
    if (may_be_none && given == Py_None) return 0;
    text->letters = PyUnicode_AsUTF8AndSize(given, &size);
    text->size = (size_t)size;
    return text->letters == NULL ? -1 : 0;
}

static int set_normalisation(UnigramPieces *self, PyObject *charsmap, PyObject *kinds, PyObject *space,
                             PyObject *spaces) {
    PyObject *kept[4] = {charsmap, kinds, space, spaces};
    for (int i = 0; i < 4; i++) {
        self->kept[i] = kept[i];
        Py_INCREF(kept[i]);
    }
    if (set_text(&self->space, space, 0) < 0 || set_text(&self->spaces, spaces, 1) < 0) return -1;
    if (self->space.size == 0) return refuse("space must not be empty");
    if (charsmap == Py_None) return 0;
    if (!PyBytes_Check(charsmap) || PyBytes_Size(kinds) != KINDS)
        return refuse("the map must be bytes, and each character must have a kind");
    self->map.kinds = (const unsigned char *)PyBytes_AsString(kinds);
    return read_map(&self->map, (const unsigned char *)PyBytes_AsString(charsmap), (size_t)PyBytes_Size(charsmap));
}

static int fill(PyObject *object, PyObject *arguments, PyObject *options) {
    static char *names[] = {"pieces",      "scores",           "unknown", "byte_fallback", "charsmap", "kinds",
                            "space",       "spaces",           "prefix",  "split",         "strip_left",
                            "strip_right", "split_whitespace", "added",   "before",        "after",    "room",
                            NULL};
    UnigramPieces *self = (UnigramPieces *)object;
    PyObject *pieces, *scores, *charsmap, *kinds, *space, *spaces, *added, *before, *after;
    Py_ssize_t unknown, room;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "O!SnpOSOOpppppO!SSn", names, &PyTuple_Type, &pieces,
                                     &scores, &unknown, &self->byte_fallback, &charsmap, &kinds, &space, &spaces,
                                     &self->prefix, &self->split, &self->strip_left, &self->strip_right,
                                     &self->split_whitespace, &PyTuple_Type, &added, &before, &after, &room))
        return -1;
    int failed = make_frame(&self->frame, added, before, after, room) < 0 ||
                 set_normalisation(self, charsmap, kinds, space, spaces) < 0 ||
                 set_pieces(self, pieces, scores, unknown) < 0;
    return failed ? -1 : 0;
}

static void drop(UnigramPieces *self) {
    drop_trie(&self->trie);
    free(self->scores);
    free(self->map.units);
    for (int i = 0; i < 4; i++) Py_XDECREF(self->kept[i]);
    drop_frame(&self->frame);
}

MODULE_OF_PIECES(unigram, UnigramPieces, "Pieces of SentencePiece's Unigram models.")
