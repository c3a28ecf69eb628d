/* The weights and the workspace of a network, as the module passes them to a target. Plain C: every
 * translation unit includes it, whatever its instruction set. */

#ifndef EMBEDKIT_MODEL_H
#define EMBEDKIT_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "team.h"

enum {
    LANES = 16,      /* floats that every target treats as one vector; a reduction has as many partial sums */
    MOST_ROWS = 288, /* rows per product call, which share one read of the weights from distant memory: a multiple
                        of the rows of every tile, because AMX reads whole tiles */
    DEPTH = 64,      /* every width is a multiple of it */
    TILE_ROWS = 6,   /* rows of floats whose sums fit in registers */
    MOST_ROTATIONS = 2,
    MOST_INPUTS = INT32_MAX / (255 * 128), /* of a product of bytes, whose sums then fit 32 bits */
};

typedef enum { AS_IS, GELU_ERF, GELU_TANH, TANH } Activation;

/* What a weight has beyond the one that is stored: of a row of inputs, and of a column of sixteen. */
typedef struct {
    int32_t input;
    int16_t column, value;
} Excess;

typedef struct {
    int inputs, outputs; /* both multiples of DEPTH */
    float *floats;       /* [outputs / panel][inputs][panel], of the target's panel, or NULL */
    int8_t *bytes;       /* [outputs / 16][inputs / 4][16][4], or NULL */
    int together;        /* bytes of a column whose products with 255 fit 16 bits when added: 4, 2 or 1 */
    Excess *excess;      /* what 4 bytes lack, or NULL; of the columns from 16 b those before excess_end[b] */
    int32_t *excess_end;
    float *scales;       /* [outputs]: the scale of a column of bytes */
    float *sums;         /* [outputs]: the sum of a column's bytes */
    float *bias;         /* [outputs] */
    float *factors;      /* [inputs] that inputs are multiplied by before rounding, or NULL */
    float step, least; /* the unit of a rounded input, and the value of input 0; step 0: a step for each row */
} Product;

typedef enum { WORDS_FLOAT, WORDS_INT8, WORDS_INT4 } WordKind;

typedef struct {
    WordKind kind;
    int count, width;
    const void *values; /* (count, width) float or int8, or (count, width / 2) uint8 of two values each */
    const void *scales; /* (count, 1) float for int8, (count, blocks) float16 for int4 */
    int blocks;
} WordTable;

typedef struct {
    float *weight, *bias;
} Norm;

typedef struct {
    Product qkv, attention_output, ffn_in, ffn_out;
    Norm attention_norm, norm;
    const float *rotation; /* one of the network's, or NULL */
    int window;            /* the largest distance of a key from its query, or -1 */
} Layer;

typedef struct {
    int hidden, heads, layers, intermediate, positions, token_types, dimension; /* hidden 0: the memory alone */
    int padding_id; /* an id that has the first position and is not counted by others, or -1 */
    float epsilon;
    bool pre_norm; /* norms apply to the inputs of products alone; otherwise residuals are normalised, too */
    bool gated;    /* the wide product has twice as many outputs; the second half is multiplied by GELU of the first */
    Activation gelu;
    bool first_token, has_head,
        unit; /* first_token: pooling by the first token; otherwise by the mean of all tokens */
    Activation head_kind;
    WordTable words, memory;     /* of the same vocabulary; width 0 means no memory */
    const float *places, *types; /* (positions, hidden), or NULL; (token_types, hidden), or NULL */
    float *rotation[MOST_ROTATIONS]; /* (positions, hidden / heads): the cosines of a position, then its sines */
    float *bias; /* (heads, biases_of_head()): what a head adds to a score by the distance of its key, or NULL */
    Norm embedding_norm;
    Layer *layer;
    Product head;
    Norm head_norm; /* applied to what the head gives; without weights: none */
    float *score;   /* [dimension] and a bias: the last column of a cross-encoder, or NULL */
} Net;

/* Rows of bytes: a byte times step, plus least, is the quantized value. */
typedef struct {
    uint8_t *bytes; /* [rows][inputs] */
    float step[MOST_ROWS], least[MOST_ROWS];
} Rounded;

/* The workspace of one run; its rows are those of one call. */
typedef struct {
    float *states, *projected, *context; /* (tokens, hidden), (tokens, 3 hidden), (tokens, hidden) */
    float *residual; /* (tokens, hidden): sums of states that are not normalised; the states, unless pre_norm */
    float *wide, *narrow; /* (rows, outputs of the wide product, or 3 hidden for the queries of first tokens), (rows,
                             widest row of hidden, pooled, dimension) */
    float *opened;        /* (rows, intermediate): the inputs of the narrow product, wide unless gated */
    float *pooled;        /* (rows, pooled width) */
    float *keys, *scores; /* used by attend(), for each seat */
    Rounded narrow_bytes, wide_bytes;
    int tokens, longest, seats; /* the capacity */
    bool logits;                /* whether to write scores before the sigmoid */
    Team *team;                 /* the threads that share the run, or NULL */
    Atomic broken;              /* whether a value was NaN or infinite */
    void *memory;               /* contains all of these */
} Workspace;

/* The width of a pooled row: the states, followed by the memory's rows. */
static inline int pooled_width(const Net *n) { return n->hidden + n->memory.width; }

/* Rows per product call: fewer where the weights of a product fit in a near cache, so that the rows do, too. */
static inline int rows_of_call(const Net *n) { return n->hidden < 512 ? 96 : MOST_ROWS; }

/* Rounds up to a multiple of LANES. */
static inline int whole_vectors(int length) { return (length + LANES - 1) / LANES * LANES; }

/* Maximum number of tokens of a text; the first position may be that of the padding id. */
static inline int longest_text(const Net *n) { return n->positions - (n->padding_id >= 0); }

/* Floats of a head's row of biases: distances from 1 - longest to longest - 1, and another vector, which is read. */
static inline size_t biases_of_head(const Net *n) { return 2 * (size_t)longest_text(n) - 1 + LANES; }

/* The bias of a head for distance 0, with the others around it, or NULL. */
static inline const float *bias_of(const Net *n, int head) {
    return n->bias ? n->bias + (size_t)head * biases_of_head(n) + longest_text(n) - 1 : NULL;
}

/* An instruction set. All compute the same bits; they differ only in speed. */
typedef struct {
    const char *name;
    int panel;      /* columns of float weights that are adjacent in memory */
    bool saturates; /* whether products of bytes are added in 16 bits */
    /* Rows (texts, dimension), or scores (texts,), of texts whose ids are ids[starts[t]] to ids[starts[t + 1] -
       1]; starts[0] is 0. types is NULL where the network has none. False if a value was NaN or infinite. */
    bool (*run)(const Net *, const int32_t *ids, const int32_t *types, const int32_t *starts, int texts,
                float *rows, Workspace *);
    /* Takes part in a run of this target until its team is closed. */
    void (*help)(Team *);
} Target;

#endif
