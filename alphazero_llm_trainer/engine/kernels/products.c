/* Packed weights, and products in fp32. */

#include "products.h"

#include <stdlib.h>
#include <string.h>

/* Rows whose sums a product holds in registers: 24 of 32 with AVX-512 and on 64-bit ARM, 12 of 16 elsewhere. */
#if BYTES == 64 || defined(__aarch64__)
#define BLOCK 12
#else
#define BLOCK 6
#endif
#define PREFETCH (64 * PANEL) /* how far the weights are fetched ahead of their use */

int matrix_new(struct matrix *b, enum unit unit, long depth, long panels)
{
    const long step = unit == FLOATS ? depth * PANEL * (long)sizeof(float) : ROUNDED_DEPTH(depth) * PANEL * 2;
    *b = (struct matrix){unit, depth, panels, step, NULL};
    void *packed = NULL;
    if (posix_memalign(&packed, 64, (size_t)(step * panels))) return 0;
    b->packed = memset(packed, 0, (size_t)(step * panels));
    return 1;
}

void pack(struct matrix *b, const float *weights, long columns, long first)
{
    const long depth = b->depth;
    if (b->unit != FLOATS) {
        pack_bf16(b, weights, columns, first);
        return;
    }
    for (long j = 0; j < columns; j++) {
        float *to = (float *)(b->packed + (first + j) / PANEL * b->step) + (first + j) % PANEL;
        for (long k = 0; k < depth; k++) to[k * PANEL] = weights[j * depth + k];
    }
}

/* One panel of b for `rows` rows of a. `rows` and `kind` are constants: the loops over rows are written out. */
INLINE void multiply_block(const int rows, enum kind kind, long depth, const float *a, long a_stride, const float *b,
                           float *c, long c_stride)
{
    vec left[BLOCK], right[BLOCK];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) left[r] = right[r] = (vec){0};
    const float *p[(BLOCK + 2) / 3]; /* every third row: the two after it are one and two strides on */
#pragma GCC unroll 16
    for (int r = 0; r < rows; r += 3) p[r / 3] = a + r * a_stride;
    for (long k = 0; k < depth; k++, b += PANEL) {
        const vec b0 = load(b), b1 = load(b + LANES);
        __builtin_prefetch(b + PREFETCH), __builtin_prefetch(b + PREFETCH + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const float x = p[r / 3][r % 3 * a_stride];
            left[r] += x * b0;
            right[r] += x * b1;
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r += 3) p[r / 3]++;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) put_sums(kind, c + r * c_stride, left[r], right[r]);
}

/* BLOCK rows at a time while a panel is in the cache. */
void multiply(enum kind kind, const struct matrix *b, long first, long end, long rows, const void *a, long a_stride,
              float *c, long c_stride)
{
    if (b->unit != FLOATS) {
        multiply_bf16(kind, b, first, end, rows, a, c, c_stride);
        return;
    }
    const long width = kind == SWIGLU ? LANES : PANEL, depth = b->depth;
    for (long panel = first; panel < end; panel++)
        for (long row = 0; row < rows; row += BLOCK) {
            const float *from = (const float *)a + row * a_stride, *weights = (const float *)(b->packed + panel * b->step);
            float *to = c + row * c_stride + panel * width;
#define CASE(n) \
    case n: \
        multiply_block(n, kind, depth, from, a_stride, weights, to, c_stride); \
        break;
            switch (rows - row < BLOCK ? rows - row : BLOCK) {
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if BLOCK == 12
                CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
            }
#undef CASE
        }
}
