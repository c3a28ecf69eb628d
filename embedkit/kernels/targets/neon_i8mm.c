/* 64-bit ARM with products of unsigned by signed bytes. */

#define I8MM

#include "neon.h"

#include "../network.h"
#include "../targets.h"

const Target embedkit_neon_i8mm = {"neon-i8mm", PANEL, false, run, help};
