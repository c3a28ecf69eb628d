/* The compiled targets, each a translation unit with its own flags. */

#ifndef EMBEDKIT_TARGETS_H
#define EMBEDKIT_TARGETS_H

#include "model.h"

extern const Target embedkit_portable, embedkit_avx2, embedkit_avx_vnni, embedkit_avx512, embedkit_amx,
    embedkit_neon_dotprod, embedkit_neon_i8mm;

#endif
