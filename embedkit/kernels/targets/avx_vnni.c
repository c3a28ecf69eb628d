/* AVX2 with FMA and AVX-VNNI. */

#define AVX_VNNI

#include "avx2.h"

#include "../network.h"
#include "../targets.h"

const Target embedkit_avx_vnni = {"avx-vnni", PANEL, false, run, help};
