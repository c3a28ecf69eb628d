/* Differences between compilers. */

#ifndef EMBEDKIT_COMPILER_H
#define EMBEDKIT_COMPILER_H

#if defined(_MSC_VER) && !defined(__clang__)
#define INLINE static __forceinline
#define UNROLL(TIMES)
#define ALIGNED_64 __declspec(align(64))
#else
#define INLINE static inline __attribute__((always_inline))
#define DIRECTIVE(WORDS) _Pragma(#WORDS)
#define UNROLL(TIMES) DIRECTIVE(GCC unroll TIMES)
#define ALIGNED_64 __attribute__((aligned(64)))
#endif

#endif
