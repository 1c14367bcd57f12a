/* What the forward needs of distributions.c. Hidden: no other library's function of the same name may take their place. */

#pragma once

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* n logits -> log-probabilities, in place. */
void log_softmax(float *x, long n);

/* The k largest of x[n], largest first, of equal ones the one with the smaller index first. */
void top_k(const float *x, long n, long k, int32_t *ids, float *values);

#pragma GCC visibility pop
