/* SentencePiece's precompiled normalisation, as the package tokenizers applies it: to grapheme clusters of fewer
 * than six bytes, else to each character; what begins with an entry of the map is replaced as a whole by the
 * shortest such entry.
 *
 * The map is a little-endian size, a double array (https://github.com/s-yata/darts-clone) of that many bytes
 * whose values are positions, and at these positions replacements that end with a zero byte. */

#ifndef EMBEDKIT_CHARSMAP_H
#define EMBEDKIT_CHARSMAP_H

#include "batch.h"

typedef struct {
    unsigned char *items;
    size_t size, room;
} Bytes;

/* Appends bytes to a buffer; returns -1 if out of memory. */
static inline int put(Bytes *bytes, const void *more, size_t size) {
    if (size == 0) return 0; /* neither pointer need be one */
    if (bytes->room - bytes->size < size) {
        size_t room = 2 * bytes->room + size + 64;
        unsigned char *items = room > PTRDIFF_MAX ? NULL : realloc(bytes->items, room);
        if (items == NULL) return -1;
        *bytes = (Bytes){items, bytes->size, room};
    }
    memcpy(bytes->items + bytes->size, more, size);
    bytes->size += size;
    return 0;
}

/* How a character takes part in grapheme clusters. Anything that is not listed is OTHER. */
enum {
    OTHER,
    CONTROL, /* nothing joins it */
    JOINS,   /* the character before it, unless that is a control */
    UNCLEAR, /* depends on more than this: the text is left to the tokenizer */
};

enum {
    KINDS = 0x20000 + 0x1000, /* the planes 0 and 1, and the beginning of plane 14; others have no clusters */
    LONGEST_CLUSTER = 5,      /* bytes that are replaced as a whole */
    ZERO_WIDTH_JOINER = 0x200d,
};

typedef struct {
    uint32_t *units; /* NULL without a map */
    size_t count;
    const char *replacements;
    size_t size;                /* of the replacements */
    const unsigned char *kinds; /* KINDS */
} Charsmap;

static inline uint32_t read_unit(const unsigned char *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Returns -1 with an error if the bytes, which end with a zero byte and outlive the map, are not one. */
static int read_map(Charsmap *map, const unsigned char *bytes, size_t size) {
    size_t count = size < 8 ? 0 : read_unit(bytes) / 4;
    if (count == 0 || count > (size - 4) / 4) {
        PyErr_SetString(PyExc_ValueError, "this is not a precompiled map of characters");
        return -1;
    }
    map->replacements = (const char *)bytes + 4 + 4 * count;
    map->size = size - 4 - 4 * count;
    PyObject *checked = PyUnicode_DecodeUTF8(map->replacements, (Py_ssize_t)map->size, NULL);
    if (checked == NULL) return -1; /* UnicodeDecodeError is a ValueError */
    Py_DECREF(checked);
    if ((map->units = zeros(count, sizeof *map->units)) == NULL) return -1;
    for (size_t i = 0; i < count; i++) map->units[i] = read_unit(bytes + 4 + 4 * i);
    map->count = count;
    return 0;
}

static inline int kind_of(const Charsmap *map, uint32_t code) {
    if (code < 0x20000) return map->kinds[code];
    return code >> 12 == 0xe0 ? map->kinds[0x20000 + (code & 0xfff)] : OTHER;
}

static inline size_t offset_of(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 0x200) >> 6); }

enum { NO_ENTRY = -1, BROKEN_MAP = -2 };

/* Returns the position of the replacement of the shortest entry that the bytes begin with, or one of the above.
 */
static inline int64_t shortest_entry(const Charsmap *map, const unsigned char *bytes, size_t size) {
    size_t at = offset_of(map->units[0]);
    for (size_t i = 0; i < size && bytes[i]; i++) {
        at ^= bytes[i];
        if (at >= map->count) return BROKEN_MAP;
        uint32_t unit = map->units[at];
        if ((unit & 0x800000ffu) != bytes[i]) return NO_ENTRY;
        at ^= offset_of(unit);
        if (!(unit & 0x100)) continue;
        if (at >= map->count) return BROKEN_MAP;
        int64_t position = map->units[at] & 0x7fffffff;
        int begins_character = (size_t)position <= map->size && (map->replacements[position] & 0xc0) != 0x80;
        return begins_character ? position : BROKEN_MAP;
    }
    return NO_ENTRY;
}

static inline int put_replacement(const Charsmap *map, int64_t position, Bytes *to) {
    const char *start = map->replacements + position, *end = memchr(start, 0, map->size - (size_t)position);
    return put(to, start, end ? (size_t)(end - start) : map->size - (size_t)position);
}

/* Replaces each character of a cluster by itself. Returns 0, 1 for a text to be left, or -1 if out of memory. */
static int replace_each(const Charsmap *map, const unsigned char *at, const unsigned char *end, Bytes *to) {
    while (at < end) {
        const unsigned char *start = at;
        next_code(&at);
        int64_t entry = shortest_entry(map, start, (size_t)(at - start));
        if (entry == BROKEN_MAP) return 1;
        if ((entry == NO_ENTRY ? put(to, start, (size_t)(at - start)) : put_replacement(map, entry, to)) < 0)
            return -1;
    }
    return 0;
}

static inline int is_hangul(uint32_t code) {
    return (code >= 0x1100 && code < 0x1200) || (code >= 0xa960 && code < 0xa980) ||
           (code >= 0xac00 && code < 0xd800);
}

/* Whether a cluster of several characters that has an entry may in truth be longer: after or before what joins
 * emoji, Indic consonants or Hangul letters, whose own clusters never have entries, being too long. */
static inline int may_be_longer(uint32_t first, uint32_t before, int kind_before, uint32_t last) {
    return first >= 0x80 && (kind_before == JOINS || last == ZERO_WIDTH_JOINER ||
                             (is_hangul(first) && is_hangul(before)));
}

/* Appends the normalised text to a buffer. Returns 0, 1 for a text to be left, or -1 if out of memory. */
static int normalise(const Charsmap *map, const unsigned char *at, const unsigned char *end, Bytes *to) {
    uint32_t before = 0;
    while (at < end) {
        const unsigned char *start = at;
        uint32_t first = next_code(&at), last = first, kind = (uint32_t)kind_of(map, first);
        if (kind == UNCLEAR) return 1;
        if (first == '\r' && at < end && *at == '\n') last = *at++;
        while (kind != CONTROL && at < end && *at >= 0x80) {
            const unsigned char *next = at;
            uint32_t code = next_code(&next);
            if (kind_of(map, code) != JOINS) break;
            last = code;
            at = next;
        }
        size_t size = (size_t)(at - start);
        int64_t entry = size <= LONGEST_CLUSTER ? shortest_entry(map, start, size) : NO_ENTRY;
        if (entry == BROKEN_MAP || (entry != NO_ENTRY && last != first &&
                                    may_be_longer(first, before, kind_of(map, before), last)))
            return 1;
        int done = entry == NO_ENTRY ? replace_each(map, start, at, to) : put_replacement(map, entry, to);
        if (done) return done;
        before = last;
    }
    return 0;
}

#endif
