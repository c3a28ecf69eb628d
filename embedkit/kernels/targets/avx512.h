/* The operations of portable.h on AVX-512 with VNNI: a vector is one register. */

#ifndef EMBEDKIT_AVX512_H
#define EMBEDKIT_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "../model.h"
#include "compiler.h"

#define PANEL_VECTORS 4
#define BYTE_TILE_ROWS 6 /* 24 sums, 4 columns, 1 input: 29 of 32 */

typedef __m512 Floats;
typedef __m512i Sums;
typedef __m512i Inputs;
typedef __m512i Columns;

/* ---- floats ---- */

INLINE Floats load(const float *from) { return _mm512_loadu_ps(from); }
INLINE void store(float *to, Floats x) { _mm512_storeu_ps(to, x); }
INLINE Floats splat(float value) { return _mm512_set1_ps(value); }
INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
INLINE Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
INLINE Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
INLINE Floats fma_of(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Floats fnma_of(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
INLINE Floats min_of(Floats a, Floats b) { return _mm512_min_ps(a, b); }
INLINE Floats max_of(Floats a, Floats b) { return _mm512_max_ps(a, b); }
INLINE Floats absolute(Floats x) { return _mm512_abs_ps(x); }
INLINE Floats round_even(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
INLINE Floats times_power_of_2(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }

INLINE Floats where_less(Floats a, Floats b, Floats then, Floats otherwise) {
    return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), then);
}

INLINE Floats first_of(Floats x, int count, Floats rest) {
    return _mm512_mask_mov_ps(rest, (__mmask16)((1u << count) - 1), x);
}

INLINE __m256 lower_half(Floats x) { return _mm512_castps512_ps256(x); }
INLINE __m256 upper_half(Floats x) { return _mm512_extractf32x8_ps(x, 1); }

#include "x86_reduction.h"

INLINE void transpose_16(const float *from, ptrdiff_t ld, int rows, float *to, ptrdiff_t ldt) {
    __m512 a[16], b[16];
    UNROLL(16)
    for (int i = 0; i < 16; i++) a[i] = i < rows ? _mm512_loadu_ps(from + i * ld) : _mm512_setzero_ps();
    UNROLL(8)
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLL(4)
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b[i]), _mm512_castps_pd(b[i + 2])));
        a[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b[i]), _mm512_castps_pd(b[i + 2])));
        a[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b[i + 1]), _mm512_castps_pd(b[i + 3])));
        a[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b[i + 1]), _mm512_castps_pd(b[i + 3])));
    }
    UNROLL(4)
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
    }
    UNROLL(4)
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_ps(to + i * ldt, _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88));
        _mm512_storeu_ps(to + (i + 4) * ldt, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88));
        _mm512_storeu_ps(to + (i + 8) * ldt, _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd));
        _mm512_storeu_ps(to + (i + 12) * ldt, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xdd));
    }
}

/* ---- stored words ---- */

INLINE Floats load_int8(const int8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}

INLINE void load_int4(const uint8_t *from, Floats *low, Floats *high) {
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
    const __m512i eight = _mm512_set1_epi32(8);
    *low = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_and_si512(both, _mm512_set1_epi32(15)), eight));
    *high = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(both, 4), eight));
}

/* ---- bytes ---- */

/* Values below the range of integers, and NaN, become the smallest one, which packing clips to 0. */
INLINE __m512i to_integers(Floats x) { return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_set1_ps(255.0f), x)); }

INLINE void store_bytes(const Floats *x, uint8_t *to) {
    /* Packing interleaves four integers of each operand. */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i left = _mm512_packs_epi32(to_integers(x[0]), to_integers(x[1]));
    const __m512i right = _mm512_packs_epi32(to_integers(x[2]), to_integers(x[3]));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(left, right)));
}

INLINE Sums no_sums(const float *sums) {
    (void)sums;
    return _mm512_setzero_si512();
}

INLINE Inputs load_inputs(const uint8_t *from) {
    int32_t four;
    memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}

INLINE Columns load_columns(const int8_t *from) { return _mm512_loadu_si512(from); }

INLINE Sums add_products(Sums sums, Inputs inputs, Columns columns, const int together) {
    (void)together;
    return _mm512_dpbusd_epi32(sums, inputs, columns);
}

INLINE void store_sums(int32_t *to, Sums sums) { _mm512_storeu_si512(to, sums); }
INLINE Floats load_sums(const int32_t *from) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(from)); }

#endif
