/* What others need of distributions.c. Hidden: no other library's function of the same name may take their place. */

#pragma once

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* log(sum of exp(x)): a log-probability is its logit less this. */
float log_sum_exp(const float *x, long n);

/* The k largest of x[n], largest first, of equal ones the one with the smaller index first. */
void top_k(const float *x, long n, long k, int32_t *ids, float *values);

/* The token of x[n] (log-probabilities) that is drawn at `temperature` with a uniform number. `work` has room for n; `summed`
 * says that it has this row's sums at this temperature from the draw before. */
int64_t draw_token(const float *x, int64_t n, double temperature, double uniform, double *work, int summed);

#pragma GCC visibility pop
