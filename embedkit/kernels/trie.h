/* Pieces by their bytes, one after the other: a trie whose edges are in a hash table, at most half full. */

#ifndef EMBEDKIT_TRIE_H
#define EMBEDKIT_TRIE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NO_PIECE = -1, MOST_NODES = 1 << 24 };

typedef struct {
    uint32_t key, node; /* the node above and the byte; node 0 is the root, to which no edge leads */
} Edge;

typedef struct {
    Edge *edges;
    size_t mask;
    int shift;
    int32_t *ids; /* of the piece that ends at a node, or NO_PIECE */
    uint32_t nodes;
} Trie;

static inline Edge *find_edge(const Trie *trie, uint32_t node, unsigned char byte) {
    uint32_t key = node << 8 | byte;
    size_t at = (key * UINT64_C(0x9e3779b97f4a7c15)) >> trie->shift;
    while (trie->edges[at].node && trie->edges[at].key != key) at = (at + 1) & trie->mask;
    return &trie->edges[at];
}

/* Returns the node below by that byte, or 0. */
static inline uint32_t step(const Trie *trie, uint32_t node, unsigned char byte) {
    return find_edge(trie, node, byte)->node;
}

/* Returns the id of a piece, or NO_PIECE. */
static int32_t find_piece(const Trie *trie, const unsigned char *bytes, size_t size) {
    uint32_t node = 0;
    for (size_t i = 0; i < size; i++)
        if ((node = step(trie, node, bytes[i])) == 0) return NO_PIECE;
    return trie->ids[node];
}

/* Doubles the room for edges and nodes; returns -1 if they are too many, or out of memory. */
static int grow(Trie *trie) {
    Trie old = *trie;
    size_t room = old.edges ? 2 * (old.mask + 1) : 1024;
    if (room > 2 * (size_t)MOST_NODES) return -1;
    int32_t *ids = realloc(trie->ids, room / 2 * sizeof *ids);
    if (ids == NULL) return -1;
    trie->ids = ids;
    Edge *edges = calloc(room, sizeof *edges);
    if (edges == NULL) return -1;
    trie->edges = edges;
    trie->mask = room - 1;
    trie->shift = old.edges ? old.shift - 1 : 64 - 10;
    for (size_t i = 0; old.edges && i <= old.mask; i++)
        if (old.edges[i].node) *find_edge(trie, old.edges[i].key >> 8, old.edges[i].key & 0xff) = old.edges[i];
    free(old.edges);
    if (old.edges == NULL) trie->ids[trie->nodes++] = NO_PIECE;
    return 0;
}

/* Adds a piece, or gives one that is there another id; returns -1 as `grow`. */
static int add_piece(Trie *trie, const unsigned char *bytes, size_t size, int32_t id) {
    uint32_t node = 0;
    for (size_t i = 0; i < size; i++) {
        if (2 * (size_t)trie->nodes > trie->mask && grow(trie) < 0) return -1;
        Edge *edge = find_edge(trie, node, bytes[i]);
        if (edge->node == 0) {
            *edge = (Edge){node << 8 | bytes[i], trie->nodes};
            trie->ids[trie->nodes++] = NO_PIECE;
        }
        node = edge->node;
    }
    if (size) trie->ids[node] = id;
    return 0;
}

static void drop_trie(Trie *trie) {
    free(trie->edges);
    free(trie->ids);
}

#endif
