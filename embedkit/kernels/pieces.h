/* Word pieces by their letters: a hash table with open addressing and linear probing, at most half full. Its
 * letters are in an arena, which tables can share. */

#ifndef EMBEDKIT_PIECES_H
#define EMBEDKIT_PIECES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t tag, start, size; /* a free slot has size 0; empty pieces are omitted, as they match nothing */
    int32_t id;
} Slot;

typedef struct {
    Slot *slots;
    size_t mask, longest; /* bytes of the longest piece */
    int shift;
} Pieces;

#define HASH_OF_NOTHING UINT64_C(0xcbf29ce484222325)
#define TAG(hash) ((uint32_t)((hash) >> 16))

static inline uint64_t hash_on(uint64_t hash, char letter) {
    return (hash ^ (unsigned char)letter) * UINT64_C(0x9e3779b97f4a7c15); /* its upper bits are well mixed */
}

/* Returns the id of a piece, or -1. */
static inline int32_t find(const Pieces *pieces, const char *arena, uint64_t hash, const char *letters,
                           size_t size) {
    for (size_t at = hash >> pieces->shift;; at = (at + 1) & pieces->mask) {
        const Slot *slot = &pieces->slots[at];
        if (slot->size == 0) return -1;
        if (slot->tag == TAG(hash) && slot->size == size && memcmp(arena + slot->start, letters, size) == 0)
            return slot->id;
    }
}

static void insert(Pieces *pieces, const char *arena, size_t start, size_t end, int32_t id) {
    uint64_t hash = HASH_OF_NOTHING;
    for (size_t i = start; i < end; i++) hash = hash_on(hash, arena[i]);
    size_t at = hash >> pieces->shift, size = end - start;
    while (pieces->slots[at].size) at = (at + 1) & pieces->mask;
    pieces->slots[at] = (Slot){TAG(hash), (uint32_t)start, (uint32_t)size, id};
    if (size > pieces->longest) pieces->longest = size;
}

/* Allocates a table for `count` pieces; returns -1 if out of memory. */
static int make_room(Pieces *pieces, size_t count) {
    int bits = 4;
    while (((size_t)1 << bits) < 2 * count) bits++;
    pieces->mask = ((size_t)1 << bits) - 1;
    pieces->shift = 64 - bits;
    pieces->slots = calloc(pieces->mask + 1, sizeof(Slot));
    return pieces->slots == NULL ? -1 : 0;
}

#endif
