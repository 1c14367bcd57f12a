/* What others need of distributions.c. Hidden: no other library's function of the same name may take their place. */

#pragma once

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* log(sum of exp(x)): a log-probability is its logit less this. */
float log_sum_exp(const float *x, long n);

/* The k largest of x[n], largest first, of equal ones the one with the smaller index first. */
void top_k(const float *x, long n, long k, int32_t *ids, float *values);

#pragma GCC visibility pop
