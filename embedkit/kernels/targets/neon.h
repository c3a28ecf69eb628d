/* The operations of portable.h on 64-bit ARM with dot products: a vector is four registers. With I8MM defined,
 * inputs of products need no conversion to signed. */

#ifndef EMBEDKIT_NEON_H
#define EMBEDKIT_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "../model.h"
#include "compiler.h"

#define PANEL_VECTORS 1
#define BYTE_TILE_ROWS 6 /* 24 sums, 4 columns, 1 input: 29 of 32 */

typedef float32x4x4_t Floats;
typedef int32x4x4_t Sums;
typedef int8x16x4_t Columns;

#define EACH                                                                                                   \
    UNROLL(4)                                                                                                  \
    for (int q = 0; q < 4; q++)

/* ---- floats ---- */

INLINE Floats load(const float *from) {
    Floats x;
    EACH
        x.val[q] = vld1q_f32(from + 4 * q);
    return x;
}

INLINE void store(float *to, Floats x) {
    EACH
        vst1q_f32(to + 4 * q, x.val[q]);
}

INLINE Floats splat(float value) {
    Floats x;
    EACH
        x.val[q] = vdupq_n_f32(value);
    return x;
}

#define EACH_OF_ONE(NAME, INTRINSIC)                                                                           \
    INLINE Floats NAME(Floats x) {                                                                             \
        EACH                                                                                                   \
            x.val[q] = INTRINSIC(x.val[q]);                                                                    \
        return x;                                                                                              \
    }
EACH_OF_ONE(absolute, vabsq_f32)
EACH_OF_ONE(round_even, vrndnq_f32)

#define EACH_OF_TWO(NAME, INTRINSIC)                                                                           \
    INLINE Floats NAME(Floats a, Floats b) {                                                                   \
        EACH                                                                                                   \
            a.val[q] = INTRINSIC(a.val[q], b.val[q]);                                                          \
        return a;                                                                                              \
    }
EACH_OF_TWO(add, vaddq_f32)
EACH_OF_TWO(sub, vsubq_f32)
EACH_OF_TWO(mul, vmulq_f32)
EACH_OF_TWO(divide, vdivq_f32)

INLINE Floats fma_of(Floats a, Floats b, Floats c) {
    EACH
        c.val[q] = vfmaq_f32(c.val[q], a.val[q], b.val[q]);
    return c;
}

INLINE Floats fnma_of(Floats a, Floats b, Floats c) {
    EACH
        c.val[q] = vfmsq_f32(c.val[q], a.val[q], b.val[q]);
    return c;
}

/* The processor's own minimum and maximum treat signed zeros and NaN differently from the definition. */
INLINE float32x4_t less_of(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
INLINE float32x4_t more_of(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
EACH_OF_TWO(min_of, less_of)
EACH_OF_TWO(max_of, more_of)

INLINE Floats times_power_of_2(Floats x, Floats n) {
    EACH {
        const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n.val[q]), vdupq_n_s32(127));
        x.val[q] = vmulq_f32(x.val[q], vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
    }
    return x;
}

INLINE Floats where_less(Floats a, Floats b, Floats then, Floats otherwise) {
    EACH
        a.val[q] = vbslq_f32(vcltq_f32(a.val[q], b.val[q]), then.val[q], otherwise.val[q]);
    return a;
}

INLINE Floats first_of(Floats x, int count, Floats rest) {
    static const float lanes[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return where_less(load(lanes), splat((float)count), x, rest);
}

#define REDUCTION(NAME, INTRINSIC)                                                                             \
    INLINE float NAME(Floats x) {                                                                              \
        const float32x4_t four = INTRINSIC(INTRINSIC(x.val[0], x.val[2]), INTRINSIC(x.val[1], x.val[3]));      \
        const float32x4_t two = INTRINSIC(four, vextq_f32(four, four, 2));                                     \
        return vgetq_lane_f32(INTRINSIC(two, vextq_f32(two, two, 1)), 0);                                      \
    }
REDUCTION(sum_of, vaddq_f32)
REDUCTION(least_of, less_of)
REDUCTION(largest_of, more_of)

INLINE void transpose_4(const float *from, ptrdiff_t ld, int rows, float *to, ptrdiff_t ldt) {
    float32x4_t a[4];
    EACH
        a[q] = q < rows ? vld1q_f32(from + q * ld) : vdupq_n_f32(0.0f);
    const float32x4x2_t left = vzipq_f32(a[0], a[2]), right = vzipq_f32(a[1], a[3]);
    const float32x4x2_t upper = vzipq_f32(left.val[0], right.val[0]),
                        lower = vzipq_f32(left.val[1], right.val[1]);
    vst1q_f32(to, upper.val[0]);
    vst1q_f32(to + ldt, upper.val[1]);
    vst1q_f32(to + 2 * ldt, lower.val[0]);
    vst1q_f32(to + 3 * ldt, lower.val[1]);
}

INLINE void transpose_16(const float *from, ptrdiff_t ld, int rows, float *to, ptrdiff_t ldt) {
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 16; j += 4) transpose_4(from + i * ld + j, ld, rows - i, to + j * ldt + i, ldt);
}

/* ---- stored words ---- */

INLINE Floats widen(int8x16_t bytes) {
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    Floats x;
    x.val[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    x.val[1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(low)));
    x.val[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    x.val[3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)));
    return x;
}

INLINE Floats load_int8(const int8_t *from) { return widen(vld1q_s8(from)); }

INLINE void load_int4(const uint8_t *from, Floats *low, Floats *high) {
    const uint8x16_t both = vld1q_u8(from);
    const int8x16_t eight = vdupq_n_s8(8);
    *low = widen(vsubq_s8(vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))), eight));
    *high = widen(vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(both, 4)), eight));
}

/* ---- bytes ---- */

INLINE void store_bytes(const Floats *x, uint8_t *to) {
    for (int v = 0; v < 4; v++) {
        uint16x4_t part[4];
        EACH
            part[q] = vqmovun_s32(vcvtnq_s32_f32(x[v].val[q]));
        const uint8x8_t left = vqmovn_u16(vcombine_u16(part[0], part[1]));
        vst1q_u8(to + v * LANES, vcombine_u8(left, vqmovn_u16(vcombine_u16(part[2], part[3]))));
    }
}

INLINE Columns load_columns(const int8_t *from) {
    Columns columns;
    EACH
        columns.val[q] = vld1q_s8(from + 16 * q);
    return columns;
}

INLINE uint8x16_t spread(const uint8_t *from) {
    uint32_t four;
    memcpy(&four, from, sizeof four);
    return vreinterpretq_u8_u32(vdupq_n_u32(four));
}

#ifdef I8MM
typedef uint8x16_t Inputs;

INLINE Sums no_sums(const float *sums) {
    Sums none;
    (void)sums;
    EACH
        none.val[q] = vdupq_n_s32(0);
    return none;
}

INLINE Inputs load_inputs(const uint8_t *from) { return spread(from); }
#define ADD_PRODUCTS vusdotq_s32
#else
typedef int8x16_t Inputs;

/* Inputs are reduced by 128 to make them signed. */
INLINE Sums no_sums(const float *sums) {
    Sums none;
    EACH
        none.val[q] = vshlq_n_s32(vcvtq_s32_f32(vld1q_f32(sums + 4 * q)), 7);
    return none;
}

INLINE Inputs load_inputs(const uint8_t *from) {
    return vreinterpretq_s8_u8(veorq_u8(spread(from), vdupq_n_u8(128)));
}
#define ADD_PRODUCTS vdotq_s32
#endif

INLINE Sums add_products(Sums sums, Inputs inputs, Columns columns, const int together) {
    (void)together;
    EACH
        sums.val[q] = ADD_PRODUCTS(sums.val[q], inputs, columns.val[q]);
    return sums;
}

INLINE void store_sums(int32_t *to, Sums sums) {
    EACH
        vst1q_s32(to + 4 * q, sums.val[q]);
}

INLINE Floats load_sums(const int32_t *from) {
    Floats x;
    EACH
        x.val[q] = vcvtq_f32_s32(vld1q_s32(from + 4 * q));
    return x;
}

#endif
