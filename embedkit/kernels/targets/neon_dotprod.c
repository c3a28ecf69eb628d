/* 64-bit ARM with dot products. */

#include "neon.h"

#include "../network.h"
#include "../targets.h"

const Target embedkit_neon_dotprod = {"neon-dotprod", PANEL, false, run, help};
