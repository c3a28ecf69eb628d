/* The reference: any processor, any compiler. */

#include "portable.h"

#include "../network.h"
#include "../targets.h"

const Target embedkit_portable = {"portable", PANEL, false, run, help};
