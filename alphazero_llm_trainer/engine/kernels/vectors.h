/* Vectors of floats as wide as the machine has them (GCC and Clang), and what both kernel files compute with them. */

#pragma once

#include <stdint.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define LANES ((long)(BYTES / 4))

typedef float vec __attribute__((vector_size(BYTES)));
typedef int32_t ivec __attribute__((vector_size(BYTES)));
typedef float unaligned __attribute__((vector_size(BYTES), aligned(4), may_alias)); /* at any float's address */

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) { return *(const unaligned *)p; }
INLINE void store(float *p, vec v) { *(unaligned *)p = v; }
INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec blend(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }
INLINE vec vector_max(vec a, vec b) { return blend(a > b, a, b); }

/* A vector of the lanes of a and b with these numbers; b's are numbered after a's. */
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
/* f(lane, s) for every lane. */
#if BYTES == 64
#define ALL_LANES(f, s) \
    f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), f(10, s), f(11, s), \
        f(12, s), f(13, s), f(14, s), f(15, s)
#elif BYTES == 32
#define ALL_LANES(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#else
#define ALL_LANES(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#endif
#define OWN_LANE(i, s) ((i) & (s) ? (BYTES / 4) + (i) : (i))
#define PARTNER_LANE(i, s) ((i) & (s) ? (BYTES / 4) + ((i) ^ (s)) : ((i) ^ (s)))
/* One step of a sum over lanes. In each group of 2s lanes of the result, the first s are the sum of the two halves of a's
 * group, the last s that of b's: each is a lane and its partner s lanes on. */
#define FOLD_LANES(a, b, s) (SHUFFLE(a, b, ALL_LANES(OWN_LANE, s)) + SHUFFLE(a, b, ALL_LANES(PARTNER_LANE, s)))

/* Lane i of the result is the sum of the lanes of v[i]. */
INLINE vec lane_sums(vec *v)
{
#if BYTES == 64
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) v[i] = FOLD_LANES(v[i], v[i + 8], 8);
#endif
#if BYTES >= 32
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) v[i] = FOLD_LANES(v[i], v[i + 4], 4);
#endif
    v[0] = FOLD_LANES(v[0], v[2], 2);
    v[1] = FOLD_LANES(v[1], v[3], 2);
    return FOLD_LANES(v[0], v[1], 1);
}

INLINE float lane_sum(vec v)
{
#if BYTES == 64
    v = FOLD_LANES(v, v, 8);
#endif
#if BYTES >= 32
    v = FOLD_LANES(v, v, 4);
#endif
    v = FOLD_LANES(v, v, 2);
    return v[0] + v[1];
}

INLINE float lane_max(vec v)
{
    float best = v[0];
    for (long i = 1; i < LANES; i++) best = v[i] > best ? v[i] : best;
    return best;
}

/* exp by 2^n * polynomial, as in the Cephes library (Moshier); relative error below 2e-7 in [-87, 88]. */
INLINE vec exponential(vec x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    x = blend(x < -87.0f, splat(-87.0f), x);
    x = blend(x > 88.0f, splat(88.0f), x);
    vec rounded = x * 1.44269504088896341f + shift;
    vec n = rounded - shift;
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    ivec power = ((ivec)rounded << 23) + (127 << 23);
    return p * (vec)power;
}
