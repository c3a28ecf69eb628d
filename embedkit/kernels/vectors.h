/* Functions of sixteen floats at a time, and of rows of them. */

#ifndef EMBEDKIT_VECTORS_H
#define EMBEDKIT_VECTORS_H

#include <math.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };

/* The least multiple of 16 that is no less. */
INLINE int whole_vectors(int length) { return (length + LANES - 1) / LANES * LANES; }

/* e^x to 2 units in the last place; x at most 0, and -inf gives 0. */
INLINE __m512 exp_of(__m512 x) {
    const __m512 n =
        _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 rest = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    rest = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), rest);
    __m512 value = _mm512_set1_ps(1.9875691500e-4f);
    value = _mm512_fmadd_ps(value, rest, _mm512_set1_ps(1.3981999507e-3f));
    value = _mm512_fmadd_ps(value, rest, _mm512_set1_ps(8.3334519073e-3f));
    value = _mm512_fmadd_ps(value, rest, _mm512_set1_ps(4.1665795894e-2f));
    value = _mm512_fmadd_ps(value, rest, _mm512_set1_ps(1.6666665459e-1f));
    value = _mm512_fmadd_ps(value, rest, _mm512_set1_ps(5.0000001201e-1f));
    value = _mm512_fmadd_ps(value, _mm512_mul_ps(rest, rest), _mm512_add_ps(rest, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(value, n);
}

/* x times the normal distribution's share below x, to 2e-6. The share minus a half, divided by x, is a
   polynomial of x^2, in Chebyshev's interpolation on |x| <= 5; beyond that the share is 0 or 1. */
INLINE __m512 gelu_erf(__m512 x) {
    static const float terms[] = {7.0595299e-4f,  -1.6740310e-3f,  1.4626316e-3f,  -2.5343224e-3f,
                                  6.6678091e-3f,  -1.12997433e-2f, 1.62870698e-2f, -2.32163444e-2f,
                                  3.1464871e-2f,  -4.04507108e-2f, 5.15189432e-2f, -7.02959374e-2f,
                                  1.413637996e-1f};
    const __m512 edge = _mm512_set1_ps(5.0f);
    const __m512 within = _mm512_max_ps(_mm512_min_ps(x, edge), _mm512_sub_ps(_mm512_setzero_ps(), edge));
    const __m512 t =
        _mm512_fmsub_ps(_mm512_mul_ps(within, within), _mm512_set1_ps(0.08f), _mm512_set1_ps(1.0f));
    __m512 share = _mm512_set1_ps(terms[0]);
#pragma GCC unroll 12
    for (int term = 1; term < 13; term++) share = _mm512_fmadd_ps(share, t, _mm512_set1_ps(terms[term]));
    return _mm512_mul_ps(x, _mm512_fmadd_ps(within, share, _mm512_set1_ps(0.5f)));
}

/* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which is x / (1 + e^(-2 u)). */
INLINE __m512 gelu_tanh(__m512 x) {
    const __m512 cubed = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    const __m512 u =
        _mm512_mul_ps(_mm512_set1_ps(1.59576912f), _mm512_fmadd_ps(cubed, _mm512_set1_ps(0.044715f), x));
    const __m512 small = exp_of(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(u)));
    const __mmask16 negative = _mm512_cmp_ps_mask(u, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 above = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), negative, small);
    return _mm512_mul_ps(x, _mm512_div_ps(above, _mm512_add_ps(_mm512_set1_ps(1.0f), small)));
}

/* (1 - e^(-2 |x|)) / (1 + e^(-2 |x|)), with the sign of x. */
INLINE __m512 tanh_of(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 small = exp_of(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-2.0f)));
    const __m512 value = _mm512_div_ps(_mm512_sub_ps(one, small), _mm512_add_ps(one, small));
    return _mm512_mask_sub_ps(value, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ),
                              _mm512_setzero_ps(), value);
}

/* LayerNorm of one row (and another, added to it first, if there is one). */
INLINE void normalise_row(float *row, const float *added, int width, const float *weight, const float *bias,
                          float epsilon) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < width; i += LANES) {
        __m512 x = _mm512_loadu_ps(row + i);
        if (added) {
            x = _mm512_add_ps(x, _mm512_loadu_ps(added + i));
            _mm512_storeu_ps(row + i, x);
        }
        sum = _mm512_add_ps(sum, x);
    }
    const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / (float)width);
    __m512 squares = _mm512_setzero_ps();
    for (int i = 0; i < width; i += LANES) {
        const __m512 x = _mm512_sub_ps(_mm512_loadu_ps(row + i), mean);
        squares = _mm512_fmadd_ps(x, x, squares);
    }
    const __m512 scale = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)width + epsilon));
    for (int i = 0; i < width; i += LANES) {
        const __m512 x = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(row + i), mean), scale);
        _mm512_storeu_ps(row + i, _mm512_fmadd_ps(x, _mm512_loadu_ps(weight + i), _mm512_loadu_ps(bias + i)));
    }
}

/* A row of length 1; one of zeros stays as it is. */
INLINE void scale_to_unit(float *row, int width) {
    __m512 squares = _mm512_setzero_ps();
    for (int i = 0; i < width; i += LANES) {
        const __m512 x = _mm512_loadu_ps(row + i);
        squares = _mm512_fmadd_ps(x, x, squares);
    }
    const __m512 length = _mm512_set1_ps(fmaxf(sqrtf(_mm512_reduce_add_ps(squares)), 1e-12f));
    for (int i = 0; i < width; i += LANES)
        _mm512_storeu_ps(row + i, _mm512_div_ps(_mm512_loadu_ps(row + i), length));
}

#endif
