/* AVX-512 with VNNI. */

#include "avx512.h"

#include "../network.h"
#include "../targets.h"

const Target embedkit_avx512 = {"avx512", PANEL, false, run, help};
