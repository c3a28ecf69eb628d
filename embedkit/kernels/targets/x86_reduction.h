/* Reduction of the sixteen floats of a vector, in the order of portable.h: halves of halves. Needs Floats,
 * lower_half and upper_half. */

#ifndef EMBEDKIT_X86_REDUCTION_H
#define EMBEDKIT_X86_REDUCTION_H

#define REDUCTION(NAME, OPERATION)                                                                             \
    INLINE float NAME(Floats x) {                                                                              \
        const __m256 eight = _mm256_##OPERATION##_ps(lower_half(x), upper_half(x));                            \
        const __m128 four =                                                                                    \
            _mm_##OPERATION##_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));              \
        const __m128 two = _mm_##OPERATION##_ps(four, _mm_movehl_ps(four, four));                              \
        return _mm_cvtss_f32(_mm_##OPERATION##_ss(two, _mm_movehdup_ps(two)));                                 \
    }
REDUCTION(sum_of, add)
REDUCTION(least_of, min)
REDUCTION(largest_of, max)

#endif
