/* Features of this processor, checked with the processor and the system before use. */

#ifndef EMBEDKIT_PROCESSOR_H
#define EMBEDKIT_PROCESSOR_H

#include <stdbool.h>
#include <stdint.h>

static bool has_portable(void) { return true; }

#if defined(__x86_64__) || defined(_M_X64)

#ifdef _MSC_VER
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef struct {
    uint32_t a, b, c, d;
} Leaf;

static Leaf read_leaf(uint32_t number, uint32_t part) {
    Leaf leaf = {0, 0, 0, 0};
#ifdef _MSC_VER
    int found[4];
    __cpuidex(found, 0, 0);
    if ((uint32_t)found[0] < number) return leaf;
    __cpuidex(found, (int)number, (int)part);
    leaf = (Leaf){(uint32_t)found[0], (uint32_t)found[1], (uint32_t)found[2], (uint32_t)found[3]};
#else
    __get_cpuid_count(number, part, &leaf.a, &leaf.b, &leaf.c, &leaf.d);
#endif
    return leaf;
}

/* Registers that the system saves for a process. */
static bool saves(uint32_t registers) {
    enum { SAVES_ANY = 1 << 27 };
    if (!(read_leaf(1, 0).c & SAVES_ANY)) return false;
#ifdef _MSC_VER
    return ((uint32_t)_xgetbv(0) & registers) == registers;
#else
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & registers) == registers;
#endif
}

static bool has_avx2(void) {
    enum { FMA = 1 << 12, AVX2 = 1 << 5, SAVED = 0x6 };
    return saves(SAVED) && read_leaf(1, 0).c & FMA && read_leaf(7, 0).b & AVX2;
}

static bool has_avx_vnni(void) {
    enum { AVX_VNNI_BIT = 1 << 4 };
    return has_avx2() && read_leaf(7, 1).a & AVX_VNNI_BIT;
}

static bool has_avx512(void) {
    const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, vnni = 1u << 11, saved = 0xe6;
    const Leaf leaf = read_leaf(7, 0);
    return has_avx2() && saves(saved) && (leaf.b & f_dq_bw_vl) == f_dq_bw_vl && leaf.c & vnni;
}

/* Linux saves the tiles of a process only on request; other systems are not asked. */
static bool has_amx(void) {
#ifdef __linux__
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    const uint32_t tile_int8 = 1u << 24 | 1u << 25, saved = 0x60000;
    return has_avx512() && saves(saved) && (read_leaf(7, 0).d & tile_int8) == tile_int8 &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

#elif defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

static bool has_neon_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; }
static bool has_neon_i8mm(void) { return has_neon_dotprod() && getauxval(AT_HWCAP2) >> 13 & 1; }

#elif defined(__aarch64__) && defined(__APPLE__)

#include <sys/sysctl.h>

static bool has_feature(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value;
}

static bool has_neon_dotprod(void) { return has_feature("hw.optional.arm.FEAT_DotProd"); }
static bool has_neon_i8mm(void) { return has_neon_dotprod() && has_feature("hw.optional.arm.FEAT_I8MM"); }

#elif defined(_M_ARM64) || defined(__aarch64__)

#ifdef _WIN32
#include <windows.h>
static bool has_neon_dotprod(void) { return IsProcessorFeaturePresent(43); }
#else
static bool has_neon_dotprod(void) { return false; }
#endif
static bool has_neon_i8mm(void) { return false; }

#endif

#endif
