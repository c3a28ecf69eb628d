/* Operations a second that a processor does in registers alone, by the instructions that a target multiplies with:
 * fused multiply-adds of floats, and products of bytes that are added to integers. A multiplication or an addition
 * is one operation. instructions.py compiles it for each target and reads the two numbers. */

#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { SUMS = 12, ROUNDS = 40000000 / SUMS, TURNS = 5 };

#if defined(__AVX512F__)
typedef __m512 Floats;
typedef __m512i Integers;
#define ADD_FLOATS(sum, x, y) _mm512_fmadd_ps(x, y, sum)
#define ADD_BYTES(sum, x, y) _mm512_dpbusd_epi32(sum, x, y)
#else
typedef __m256 Floats;
typedef __m256i Integers;
#define ADD_FLOATS(sum, x, y) _mm256_fmadd_ps(x, y, sum)
#if defined(__AVXVNNI__)
#define ADD_BYTES(sum, x, y) _mm256_dpbusd_avx_epi32(sum, x, y)
#else
#define ADD_BYTES(sum, x, y)                                                                                   \
    _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), _mm256_set1_epi16(1)))
#endif
#endif

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* so that other programs matter little */
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The best of some turns; what stands in registers is hidden from the compiler, which would take it apart. */
#define MEASURE(NAME, TYPE, STEP, OPERATIONS)                                                                  \
    static double NAME(void) {                                                                                 \
        double best = 1e9;                                                                                     \
        for (int turn = 0; turn < TURNS; turn++) {                                                             \
            TYPE sums[SUMS] = {0}, x = {0}, y = {0};                                                           \
            __asm__ volatile("" : "+x"(x), "+x"(y));                                                           \
            const double began = seconds();                                                                    \
            for (int round = 0; round < ROUNDS; round++) {                                                     \
                _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++) {                                      \
                    sums[i] = STEP(sums[i], x, y);                                                             \
                    __asm__ volatile("" : "+x"(sums[i]), "+x"(x));                                             \
                }                                                                                              \
            }                                                                                                  \
            const double took = seconds() - began;                                                             \
            best = took < best ? took : best;                                                                  \
        }                                                                                                      \
        return (double)ROUNDS * SUMS * (OPERATIONS) / best;                                                    \
    }
MEASURE(of_floats, Floats, ADD_FLOATS, 2 * sizeof(Floats) / sizeof(float))
MEASURE(of_bytes, Integers, ADD_BYTES, 2 * sizeof(Integers))

int main(void) {
    printf("%g %g\n", of_floats(), of_bytes());
    return 0;
}
