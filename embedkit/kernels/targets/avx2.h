/* The operations of portable.h on AVX2 with FMA: a vector is two registers. With AVX_VNNI defined, products of
 * bytes take one instruction instead of three. */

#ifndef EMBEDKIT_AVX2_H
#define EMBEDKIT_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "../model.h"
#include "compiler.h"

#define PANEL_VECTORS 1 /* 12 sums, 2 columns, 1 input: 15 of 16 registers */
#ifdef AVX_VNNI
#define BYTE_TILE_ROWS 6
#else
#define BYTE_TILE_ROWS 4 /* products of bytes need more registers */
#endif

typedef struct {
    __m256 low, high;
} Floats;

typedef struct {
    __m256i low, high;
} Sums;

#ifdef AVX_VNNI
typedef __m256i Inputs;

typedef struct {
    __m256i low, high;
} Columns;
#else
#define BYTE_STEP 8
/* Four inputs of each row, and the four that follow. */
typedef struct {
    __m256i first, second;
} Inputs;

typedef struct {
    Inputs low, high;
} Columns;
#endif

#define BOTH(NAME, A, B)                                                                                       \
    ((Floats){_mm256_##NAME##_ps((A).low, (B).low), _mm256_##NAME##_ps((A).high, (B).high)})

/* ---- floats ---- */

INLINE Floats load(const float *from) { return (Floats){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }

INLINE void store(float *to, Floats x) {
    _mm256_storeu_ps(to, x.low);
    _mm256_storeu_ps(to + 8, x.high);
}

INLINE Floats splat(float value) { return (Floats){_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
INLINE Floats add(Floats a, Floats b) { return BOTH(add, a, b); }
INLINE Floats sub(Floats a, Floats b) { return BOTH(sub, a, b); }
INLINE Floats mul(Floats a, Floats b) { return BOTH(mul, a, b); }
INLINE Floats divide(Floats a, Floats b) { return BOTH(div, a, b); }

INLINE Floats fma_of(Floats a, Floats b, Floats c) {
    return (Floats){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

INLINE Floats fnma_of(Floats a, Floats b, Floats c) {
    return (Floats){_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}

INLINE Floats min_of(Floats a, Floats b) { return BOTH(min, a, b); }
INLINE Floats max_of(Floats a, Floats b) { return BOTH(max, a, b); }
INLINE Floats absolute(Floats x) { return BOTH(andnot, splat(-0.0f), x); }

INLINE Floats round_even(Floats x) {
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return (Floats){_mm256_round_ps(x.low, NEAREST), _mm256_round_ps(x.high, NEAREST)};
}

INLINE __m256 power_of_2(__m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

INLINE Floats times_power_of_2(Floats x, Floats n) {
    return mul(x, (Floats){power_of_2(n.low), power_of_2(n.high)});
}

INLINE Floats where_less(Floats a, Floats b, Floats then, Floats otherwise) {
    return (Floats){_mm256_blendv_ps(otherwise.low, then.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
                    _mm256_blendv_ps(otherwise.high, then.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}

INLINE Floats first_of(Floats x, int count, Floats rest) {
    const Floats lanes = {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
    return where_less(lanes, splat((float)count), x, rest);
}

INLINE __m256 lower_half(Floats x) { return x.low; }
INLINE __m256 upper_half(Floats x) { return x.high; }

#include "x86_reduction.h"

INLINE void transpose_8(const float *from, ptrdiff_t ld, int rows, float *to, ptrdiff_t ldt) {
    __m256 a[8], b[8];
    UNROLL(8)
    for (int i = 0; i < 8; i++) a[i] = i < rows ? _mm256_loadu_ps(from + i * ld) : _mm256_setzero_ps();
    UNROLL(4)
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLL(2)
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    UNROLL(4)
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * ldt, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * ldt, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

INLINE void transpose_16(const float *from, ptrdiff_t ld, int rows, float *to, ptrdiff_t ldt) {
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 16; j += 8) transpose_8(from + i * ld + j, ld, rows - i, to + j * ldt + i, ldt);
}

/* ---- stored words ---- */

INLINE Floats load_int8(const int8_t *from) {
    const __m128i all = _mm_loadu_si128((const __m128i *)from);
    return (Floats){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
}

INLINE void load_int4(const uint8_t *from, Floats *low, Floats *high) {
    const __m128i both = _mm_loadu_si128((const __m128i *)from), mask = _mm_set1_epi8(15),
                  eight = _mm_set1_epi8(8);
    int8_t values[32];
    _mm_storeu_si128((__m128i *)values, _mm_sub_epi8(_mm_and_si128(both, mask), eight));
    _mm_storeu_si128((__m128i *)(values + 16),
                     _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(both, 4), mask), eight));
    *low = load_int8(values);
    *high = load_int8(values + 16);
}

/* ---- bytes ---- */

/* Values below the range of integers, and NaN, become the smallest one, which packing clips to 0. */
INLINE __m256i to_integers(__m256 x) { return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_set1_ps(255.0f), x)); }

INLINE void store_bytes(const Floats *x, uint8_t *to) {
    /* Packing interleaves four integers of each operand. */
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    UNROLL(2)
    for (int v = 0; v < 4; v += 2) {
        const __m256i left = _mm256_packs_epi32(to_integers(x[v].low), to_integers(x[v].high));
        const __m256i right = _mm256_packs_epi32(to_integers(x[v + 1].low), to_integers(x[v + 1].high));
        const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(left, right), order);
        _mm256_storeu_si256((__m256i *)(to + v * LANES), bytes);
    }
}

INLINE Sums no_sums(const float *sums) {
    (void)sums;
    return (Sums){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

INLINE __m256i spread(const uint8_t *from) {
    int32_t four;
    memcpy(&four, from, sizeof four);
    return _mm256_set1_epi32(four);
}

INLINE __m256i load_bytes(const int8_t *from) { return _mm256_loadu_si256((const __m256i *)from); }

#ifdef AVX_VNNI
INLINE Inputs load_inputs(const uint8_t *from) { return spread(from); }

INLINE Columns load_columns(const int8_t *from) { return (Columns){load_bytes(from), load_bytes(from + 32)}; }

INLINE __m256i add_half(__m256i sums, Inputs inputs, __m256i columns, const int together) {
    (void)together;
    return _mm256_dpbusd_avx_epi32(sums, inputs, columns);
}
#else
INLINE Inputs load_inputs(const uint8_t *from) { return (Inputs){spread(from), spread(from + 4)}; }

INLINE Columns load_columns(const int8_t *from) {
    return (Columns){{load_bytes(from), load_bytes(from + 64)}, {load_bytes(from + 32), load_bytes(from + 96)}};
}

/* Sums of neighbours in 16 bits, as sums of four in 32. */
INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

/* Sums of four products by multiplication in 16 bits. */
INLINE __m256i sum_wide(__m256i inputs, __m256i columns) {
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(columns, 8), 8),
                  odd = _mm256_srai_epi16(columns, 8);
    const __m256i even_inputs = _mm256_and_si256(inputs, _mm256_set1_epi16(255));
    const __m256i odd_inputs = _mm256_srli_epi16(inputs, 8);
    return _mm256_add_epi32(_mm256_madd_epi16(even_inputs, even), _mm256_madd_epi16(odd_inputs, odd));
}

/* maddubs saturates sums of two products at 16 bits, and the sum of two such sums overflows. */
INLINE __m256i add_half(__m256i sums, Inputs inputs, Inputs columns, const int together) {
    if (together == 1) {
        const __m256i first = sum_wide(inputs.first, columns.first);
        return _mm256_add_epi32(sums, _mm256_add_epi32(first, sum_wide(inputs.second, columns.second)));
    }
    const __m256i first = _mm256_maddubs_epi16(inputs.first, columns.first);
    const __m256i second = _mm256_maddubs_epi16(inputs.second, columns.second);
    if (together == 2) return _mm256_add_epi32(sums, _mm256_add_epi32(widen(first), widen(second)));
    return _mm256_add_epi32(sums, widen(_mm256_add_epi16(first, second)));
}
#endif

INLINE Sums add_products(Sums sums, Inputs inputs, Columns columns, const int together) {
    return (Sums){add_half(sums.low, inputs, columns.low, together),
                  add_half(sums.high, inputs, columns.high, together)};
}

INLINE void store_sums(int32_t *to, Sums sums) {
    _mm256_storeu_si256((__m256i *)to, sums.low);
    _mm256_storeu_si256((__m256i *)(to + 8), sums.high);
}

INLINE Floats load_sums(const int32_t *from) {
    return (Floats){_mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)from)),
                    _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(from + 8)))};
}

#endif
