/* AVX-512 with VNNI, and products of bytes by AMX. */

#define PREPARE configure_tiles()
#define LEAVE _tile_release()
#define MULTIPLY_BYTES multiply_bytes_amx

#include "avx512.h"

/* Tiles 0 to 3 contain sums, 4 and 5 inputs, 6 and 7 weights. */
static void configure_tiles(void) {
    ALIGNED_64 struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
}

#include "../network.h"
#include "../targets.h"

enum { BLOCK = 32 }; /* rows and columns of four tiles, which have 16 rows of 64 bytes */

/* Sums of 16 rows, or of 32 if `both`, and BLOCK columns. */
INLINE void sum_block(bool both, const uint8_t *upper, const int8_t *left, int inputs, int32_t *to) {
    const uint8_t *lower = upper + (ptrdiff_t)16 * inputs;
    const int8_t *right = left + (ptrdiff_t)LANES * inputs;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < inputs; k += DEPTH) {
        _tile_loadd(4, upper + k, inputs);
        _tile_loadd(6, left + (ptrdiff_t)k * LANES, 64);
        _tile_loadd(7, right + (ptrdiff_t)k * LANES, 64);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (both) {
            _tile_loadd(5, lower + k, inputs);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
    }
    _tile_stored(0, to, BLOCK * 4);
    _tile_stored(1, to + 16, BLOCK * 4);
    if (both) {
        _tile_stored(2, to + 16 * BLOCK, BLOCK * 4);
        _tile_stored(3, to + 16 * BLOCK + 16, BLOCK * 4);
    }
}

/* Tiles are read whole: rows past the last hold stale data of an earlier product, and their sums are ignored.
 */
static void multiply_bytes_amx(const Product *p, const Rounded *a, int rows, int first, int end, float *c,
                               Activation kind) {
    ALIGNED_64 int32_t sums[BLOCK * BLOCK];
    for (int column = first; column < end; column += BLOCK)
        for (int r = 0; r < rows; r += BLOCK) {
            const Block b = {sums, BLOCK, r, at_most(rows - r, BLOCK), column, BLOCK};
            sum_block(b.rows > 16, a->bytes + (size_t)r * p->inputs, p->bytes + (size_t)column * p->inputs,
                      p->inputs, sums);
            scale_block(p, a, b, c, kind);
        }
}

const Target embedkit_amx = {"amx", PANEL, false, run, help};
