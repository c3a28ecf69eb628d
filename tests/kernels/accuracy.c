/* Compares functions of vectors.h with those of the C library in double
 * precision. Fails if one is less accurate than its comment states. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../embedkit/kernels/targets/portable.h"

#include "../../embedkit/kernels/vectors.h"

static double exact_gelu(double x) { return x * 0.5 * erfc(-x / sqrt(2.0)); }

static float at(Floats (*function)(Floats), float x) {
  return function(splat(x)).lane[0];
}

static Floats gelu(Floats x) { return gelu_erf(x); }
static Floats exponential(Floats x) { return exp_of(x); }
static Floats hyperbolic(Floats x) { return tanh_of(x); }

/* The largest error of a function from `low` to `high`; `is_relative`: as a
 * share of the exact value. */
static double largest_error(Floats (*function)(Floats), double (*exact)(double),
                            float low, float high, bool is_relative) {
  enum { STEPS = 400000 };
  double largest = 0.0;
  for (int i = 0; i <= STEPS; i++) {
    const float x = low + (high - low) * ((float)i / STEPS);
    const double expected = exact(x), error = fabs(at(function, x) - expected);
    largest = fmax(largest, is_relative ? error / fabs(expected) : error);
  }
  return largest;
}

int main(void) {
  const double ulp = 1.1920929e-7;
  const struct {
    const char *name;
    double found, allowed;
  } checks[] = {
      {"gelu_erf up to 5", largest_error(gelu, exact_gelu, -40.0f, 5.0f, false),
       2e-6},
      {"gelu_erf above 5", largest_error(gelu, exact_gelu, 5.0f, 1e4f, true),
       2e-7},
      {"exp_of", largest_error(exponential, exp, -86.9f, 0.0f, true), 2 * ulp},
      {"tanh_of", largest_error(hyperbolic, tanh, -20.0f, 20.0f, false),
       2 * ulp},
  };
  int failed = 0;
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
    printf("%s: %.2e of %.2e\n", checks[i].name, checks[i].found,
           checks[i].allowed);
    failed += !(checks[i].found <= checks[i].allowed);
  }
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
