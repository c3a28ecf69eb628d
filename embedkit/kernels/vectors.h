/* Functions of sixteen floats, and of rows of them, by the operations of a target. */

#ifndef EMBEDKIT_VECTORS_H
#define EMBEDKIT_VECTORS_H

#include <float.h>
#include <math.h>

/* e^x to 2 units in the last place, for x of at most 0; below -87, where floats underflow, 0. */
INLINE Floats exp_of(Floats x) {
    const Floats lowest = splat(-87.0f);
    const Floats n = round_even(mul(x, splat(1.44269504f)));
    Floats rest = fnma_of(n, splat(0.693359375f), x);
    rest = fnma_of(n, splat(-2.12194440e-4f), rest);
    Floats value = splat(1.9875691500e-4f);
    value = fma_of(value, rest, splat(1.3981999507e-3f));
    value = fma_of(value, rest, splat(8.3334519073e-3f));
    value = fma_of(value, rest, splat(4.1665795894e-2f));
    value = fma_of(value, rest, splat(1.6666665459e-1f));
    value = fma_of(value, rest, splat(5.0000001201e-1f));
    value = fma_of(value, mul(rest, rest), add(rest, splat(1.0f)));
    return where_less(x, lowest, splat(0.0f), times_power_of_2(value, n));
}

/* x times the cumulative normal distribution at x, to 2e-6 and, above 5, to 2e-7 of it. For |x| <= 5 it is
   a half plus x times a polynomial of x^2 from Chebyshev interpolation; beyond, it is 0 or 1, and x below -5
   counts as -5. */
INLINE Floats gelu_erf(Floats x) {
    static const float terms[] = {7.0595299e-4f,  -1.6740310e-3f,  1.4626316e-3f,  -2.5343224e-3f,
                                  6.6678091e-3f,  -1.12997433e-2f, 1.62870698e-2f, -2.32163444e-2f,
                                  3.1464871e-2f,  -4.04507108e-2f, 5.15189432e-2f, -7.02959374e-2f,
                                  1.413637996e-1f};
    const Floats above = max_of(splat(-5.0f), x), within = min_of(splat(5.0f), above); /* NaN stays */
    const Floats t = fma_of(mul(within, within), splat(0.08f), splat(-1.0f));
    Floats share = splat(terms[0]);
    UNROLL(12)
    for (int term = 1; term < 13; term++) share = fma_of(share, t, splat(terms[term]));
    return mul(above, fma_of(within, share, splat(0.5f)));
}

/* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which is x / (1 + e^(-2 u)). */
INLINE Floats gelu_tanh(Floats x) {
    const Floats one = splat(1.0f), zero = splat(0.0f), cubed = mul(mul(x, x), x);
    const Floats u = mul(splat(1.59576912f), fma_of(cubed, splat(0.044715f), x));
    const Floats small = exp_of(sub(zero, absolute(u)));
    return mul(x, divide(where_less(u, zero, small, one), add(one, small)));
}

/* (1 - e^(-2 |x|)) / (1 + e^(-2 |x|)), with the sign of x. */
INLINE Floats tanh_of(Floats x) {
    const Floats one = splat(1.0f), zero = splat(0.0f), small = exp_of(mul(absolute(x), splat(-2.0f)));
    const Floats value = divide(sub(one, small), add(one, small));
    return where_less(x, zero, sub(zero, value), value);
}

INLINE Floats activate(Floats x, const Activation kind) {
    return kind == GELU_ERF ? gelu_erf(x) : kind == GELU_TANH ? gelu_tanh(x) : kind == TANH ? tanh_of(x) : x;
}

INLINE Floats sum_of_four(const Floats *x) { return add(add(x[0], x[1]), add(x[2], x[3])); }

/* LayerNorm of one row, to which another is added first if there is one, to a row that may be the same. As
   everywhere, a sum over a row has four vectors of partial sums, so that consecutive additions do not wait for each
   other. */
INLINE void normalise_row(float *row, const float *added, float *to, int width, const float *weight,
                          const float *bias, float epsilon) {
    const Floats zero = splat(0.0f);
    Floats sum[4] = {zero, zero, zero, zero}, squares[4] = {zero, zero, zero, zero};
    for (int i = 0; i < width; i += DEPTH) {
        UNROLL(4)
        for (int v = 0; v < 4; v++) {
            float *at = row + i + v * LANES;
            Floats x = load(at);
            if (added) {
                x = add(x, load(added + i + v * LANES));
                store(at, x);
            }
            sum[v] = add(sum[v], x);
        }
    }
    const Floats mean = splat(sum_of(sum_of_four(sum)) / (float)width);
    for (int i = 0; i < width; i += DEPTH) {
        UNROLL(4)
        for (int v = 0; v < 4; v++) {
            const Floats x = sub(load(row + i + v * LANES), mean);
            squares[v] = fma_of(x, x, squares[v]);
        }
    }
    const float variance = sum_of(sum_of_four(squares)) / (float)width;
    const Floats scale = splat(1.0f / sqrtf(variance + epsilon));
    for (int i = 0; i < width; i += LANES) {
        const Floats x = mul(sub(load(row + i), mean), scale);
        store(to + i, fma_of(x, load(weight + i), load(bias + i)));
    }
}

/* The sum of the squares of a row. */
INLINE float squares_of(const float *row, int width) {
    const Floats zero = splat(0.0f);
    Floats squares[4] = {zero, zero, zero, zero};
    for (int i = 0; i < width; i += DEPTH) {
        UNROLL(4)
        for (int v = 0; v < 4; v++) {
            const Floats x = load(row + i + v * LANES);
            squares[v] = fma_of(x, x, squares[v]);
        }
    }
    return sum_of(sum_of_four(squares));
}

/* Whether all values of a row are finite: zero times another is NaN. */
INLINE bool is_finite(const float *row, int width) {
    Floats check = splat(0.0f);
    for (int i = 0; i < width; i += LANES) check = fma_of(load(row + i), splat(0.0f), check);
    return sum_of(check) == 0.0f;
}

/* Scale a row to length 1, unless it is all zeros. False if the length is not finite, as for values above 1e19. */
INLINE bool scale_to_unit(float *row, int width) {
    const float length = sqrtf(squares_of(row, width));
    const Floats divisor = splat(length < 1e-12f ? 1e-12f : length);
    for (int i = 0; i < width; i += LANES) store(row + i, divide(load(row + i), divisor));
    return length <= FLT_MAX;
}

#endif
