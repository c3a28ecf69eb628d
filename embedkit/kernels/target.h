/* The instructions that the kernels are compiled for. They run only where bert.c finds them. */

#ifndef EMBEDKIT_TARGET_H
#define EMBEDKIT_TARGET_H

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#define HAS_KERNELS 1
#include <immintrin.h>
#define TARGET_PRAGMA(WORDS) _Pragma(#WORDS)
#define TARGET(INSTRUCTIONS) TARGET_PRAGMA(GCC target(INSTRUCTIONS))
#ifdef __clang__
#undef TARGET
#define TARGET(INSTRUCTIONS)                                                                                   \
    TARGET_PRAGMA(clang attribute push(__attribute__((target(INSTRUCTIONS))), apply_to = function))
#else
#pragma GCC push_options
#endif
TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,amx-tile,amx-int8")
#else
#define HAS_KERNELS 0
#endif

#endif
