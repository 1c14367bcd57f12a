/* Next-token distributions: log-probabilities from logits, the k likeliest tokens, and draws. */

#include "distributions.h"

#include <assert.h>
#include <float.h>
#include <math.h>

#include "vectors.h"

#define STRETCH (8 * LANES)

/* True where one of the next STRETCH elements is larger than `least`. */
INLINE int any_above(const float *x, vec least)
{
    ivec above = {0};
#pragma GCC unroll 8
    for (long i = 0; i < STRETCH; i += LANES) above |= load(x + i) > least;
    int32_t any = 0;
    for (long i = 0; i < LANES; i++) any |= above[i];
    return any;
}

static float maximum(const float *x, long n)
{
    const long whole = n / LANES * LANES;
    vec best = splat(-INFINITY);
    for (long i = 0; i < whole; i += LANES) best = vector_max(best, load(x + i));
    float top = lane_max(best);
    for (long i = whole; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* exp((x[i] - top) * scale) of the next LANES elements; where only `left` are left, the other lanes are 0. */
INLINE vec scaled_exp(const float *x, long left, float top, float scale)
{
    vec part = {0};
    if (left >= LANES) return exponential((load(x) - top) * scale);
    for (long i = 0; i < left; i++) part[i] = (x[i] - top) * scale;
    part = exponential(part);
    for (long i = left; i < LANES; i++) part[i] = 0;
    return part;
}

float log_sum_exp(const float *x, long n)
{
    const float top = maximum(x, n);
    vec sum = {0};
    for (long i = 0; i < n; i += LANES) sum += scaled_exp(x + i, n - i, top, 1.0f);
    return top + logf(lane_sum(sum));
}

void top_k(const float *x, long n, long k, int32_t *ids, float *values)
{
    long filled = 0;
    for (long i = 0; i < n; i++) {
        if (filled == k) {
            /* Nearly all of a long row is below the k-th: stretches of it are passed over. */
            while (i % STRETCH == 0 && i + STRETCH <= n && !any_above(x + i, splat(values[k - 1]))) i += STRETCH;
            if (i == n) break;
            if (!(x[i] > values[k - 1])) continue;
        }
        long place = filled < k ? filled++ : k - 1;
        for (; place && x[i] > values[place - 1]; place--)
            values[place] = values[place - 1], ids[place] = ids[place - 1];
        values[place] = x[i], ids[place] = (int32_t)i;
    }
}

/* The token of x[n] (log-probabilities) that is drawn at `temperature` with a uniform number.
 *
 * Temperature 0 takes the likeliest token, of equal ones the first. Otherwise the token is where the uniform number falls in
 * the cumulated exp(log-probability / temperature), in doubles. `work` has room for n; `summed` says that it has this row's
 * sums at this temperature from the draw before. */
static int64_t draw_token(const float *x, int64_t n, double temperature, double uniform, double *work, int summed)
{
    int64_t token = 0;
    assert(temperature >= 0);
    if (temperature == 0) {
        for (int64_t j = 1; j < n; j++) token = x[j] > x[token] ? j : token;
        return token;
    }
    if (!summed) {
        /* The likeliest token's distance from the top is 0: at an infinite scale it would be no number. */
        const float top = maximum(x, n), scale = (float)fmin(1.0 / temperature, FLT_MAX);
        double sum = 0;
        for (int64_t j = 0; j < n; j += LANES) {
            const vec part = scaled_exp(x + j, n - j, top, scale);
            for (long l = 0; l < LANES && j + l < n; l++) work[j + l] = sum += part[l];
        }
    }
    const double at = uniform * work[n - 1];
    int64_t high = n - 1; /* the first token whose sum lies above `at` */
    while (token < high) {
        const int64_t middle = (token + high) / 2;
        if (work[middle] > at) high = middle;
        else token = middle + 1;
    }
    return token;
}

/* For each of n draws, a token from row rows[i] of table [*, vocabulary] and its log-probability.
 *
 * `work` has room for `vocabulary` doubles. Draws that follow each other with one row and one temperature share the sums.
 */
void draw(const float *table, int64_t vocabulary, int64_t n, const int64_t *rows, const double *temperatures,
          const double *uniforms, double *work, int32_t *tokens, float *logprobs)
{
    int64_t summed_row = -1; /* whose sums `work` has, at which temperature */
    double summed_temperature = 0;
    for (int64_t i = 0; i < n; i++) {
        const float *x = table + rows[i] * vocabulary;
        assert(rows[i] >= 0);
        const int summed = rows[i] == summed_row && temperatures[i] == summed_temperature;
        const int64_t token = draw_token(x, vocabulary, temperatures[i], uniforms[i], work, summed);
        if (temperatures[i] > 0) summed_row = rows[i], summed_temperature = temperatures[i];
        tokens[i] = (int32_t)token;
        logprobs[i] = x[token];
    }
}

/* The k largest of each of n rows of table [*, vocabulary]: ids and values [n, k]. */
void top(const float *table, int64_t vocabulary, int64_t n, const int64_t *rows, int64_t k, int32_t *ids, float *values)
{
    for (int64_t i = 0; i < n; i++) top_k(table + rows[i] * vocabulary, vocabulary, k, ids + i * k, values + i * k);
}

/* numpy's Philox (4x64, 10 rounds; Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") with a key of two words:
 * the first n numbers of its `random`. */
void uniforms(uint64_t seed, uint64_t index, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i += 4) {
        uint64_t x[4] = {(uint64_t)i / 4 + 1, 0, 0, 0}, key[2] = {seed, index};
        for (int round = 0; round < 10; round++) {
            const unsigned __int128 left = (unsigned __int128)0xD2E7470EE14C6C93 * x[0];
            const unsigned __int128 right = (unsigned __int128)0xCA5A826395121157 * x[2];
            const uint64_t next[4] = {(uint64_t)(right >> 64) ^ x[1] ^ key[0], (uint64_t)right,
                                      (uint64_t)(left >> 64) ^ x[3] ^ key[1], (uint64_t)left};
            for (int j = 0; j < 4; j++) x[j] = next[j];
            key[0] += 0x9E3779B97F4A7C15, key[1] += 0xBB67AE8584CAA73B;
        }
        for (int64_t j = i; j < i + 4 && j < n; j++) out[j] = (double)(x[j - i] >> 11) * 0x1p-53;
    }
}
