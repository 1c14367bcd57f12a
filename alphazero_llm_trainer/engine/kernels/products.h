/* Products of activations with packed weights: in fp32, or in bfloat16 with fp32 sums. */

#pragma once

#include "vectors.h"

#define PANEL (2 * LANES) /* columns of a packed panel */

/* How a model's products are computed. Their sums run in an order of its own each. */
enum unit {
    FLOATS, /* fp32 */
    PAIRS,  /* bfloat16, AVX512-BF16: sums of two products */
    TILES,  /* bfloat16, AMX */
};

/* What a product does with its sums: c = a b, c += a b, or c = silu(a gate) * (a up) where b's panels hold both. */
enum kind { ASSIGN, ADD, SWIGLU };

INLINE void put_sums(enum kind kind, float *to, vec left, vec right)
{
    if (kind == ASSIGN) {
        store(to, left);
        store(to + LANES, right);
    } else if (kind == ADD) {
        store(to, load(to) + left);
        store(to + LANES, load(to + LANES) + right);
    } else {
        store(to, left / (1.0f + exponential(-left)) * right);
    }
}

#pragma GCC visibility push(hidden)

/* Weights in panels. `step` is the bytes of one. */
struct matrix {
    enum unit unit;
    long depth, panels, step;
    char *packed;
};

/* 0 where memory is short. */
int matrix_new(struct matrix *b, enum unit unit, long depth, long panels);

/* Columns first.. of a matrix whose column j is weights[j] (a linear layer's [out, in]). */
void pack(struct matrix *b, const float *weights, long columns, long first);

/* c = a b for `rows` rows and the panels first..end.
 *
 * a: rows of `a_stride` floats; for the units of bfloat16 what `round_rows` has made of them, and a_stride is not used.
 */
void multiply(enum kind kind, const struct matrix *b, long first, long end, long rows, const void *a, long a_stride,
              float *c, long c_stride);

/* -- bfloat16 (products_bf16.c) -- */

#define TILE 16                              /* rows of a block of rounded activations */
#define DEPTH_STEP 32                        /* a rounded row is padded to a multiple of it */
#define ROUNDED_DEPTH(depth) (((depth) + DEPTH_STEP - 1) / DEPTH_STEP * DEPTH_STEP)

/* Rows first..end of a (`depth` floats each) into blocks of TILE rows. Blocks are written as [depth / 32, TILE, 32]. */
void round_rows(const float *a, long a_stride, long depth, long first, long end, uint16_t *rounded);

void pack_bf16(struct matrix *b, const float *weights, long columns, long first);
void multiply_bf16(enum kind kind, const struct matrix *b, long first, long end, long rows, const uint16_t *a, float *c,
                   long c_stride);

/* The fastest unit of bfloat16 that processor and system grant this process, or FLOATS. */
enum unit best_bf16(void);

/* Before and after this thread's products with TILES. Nothing where the process has none. */
void tiles_on(void);
void tiles_off(void);

#pragma GCC visibility pop
