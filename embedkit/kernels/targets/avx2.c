/* AVX2 with FMA. */

#define SATURATES

#include "avx2.h"

#include "../network.h"
#include "../targets.h"

const Target embedkit_avx2 = {"avx2", PANEL, true, run, help};
