/* Products in bfloat16 with fp32 sums, by AMX or AVX512-BF16.
 *
 * Activations are rounded to blocks [depth / 32, 16 rows, 32], and a panel of weights is
 * [depth / 32, 2 halves, 16 pairs of rows, 16 columns, 2]. So what a tile holds lies together, and so do a column's two
 * weights that one instruction multiplies. All of a block's rows go through the tiles, whether they are wanted or not: a
 * row's sums don't depend on the others.
 */

#include "products.h"

#if defined(__AVX512BF16__)

#include <immintrin.h>
#include <string.h>
#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__)
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#define HAVE_TILES
#endif

#define SQUARE (TILE * DEPTH_STEP) /* numbers of a tile */
#define LINE 32                    /* numbers of a cache line */
#define ROWS 8                     /* whose sums AVX512-BF16's product holds in registers */
#define AHEAD 4                    /* AMX: steps of 32 that the weights are fetched ahead of their use */

/* The LANES floats at p in bfloat16; where only `left` are left, the others are 0. */
INLINE __m256i rounded(const float *p, long left)
{
    const __mmask16 mask = left >= LANES ? 0xffff : left > 0 ? (__mmask16)((1 << left) - 1) : 0;
    return (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, p));
}

void pack_bf16(struct matrix *b, const float *weights, long columns, long first)
{
    const __m256i pairs = _mm256_mullo_epi32(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), _mm256_set1_epi32(LANES));
    for (long j = 0; j < columns; j++) {
        const long column = (first + j) % PANEL;
        uint16_t *panel = (uint16_t *)(b->packed + (first + j) / PANEL * b->step);
        panel += column / LANES * SQUARE + column % LANES * 2;
        for (long k = 0; k < b->depth; k += LANES) { /* half a column of a square: its pairs lie a row of it apart */
            const __m256i part = rounded(weights + j * b->depth + k, b->depth - k);
            _mm256_i32scatter_epi32(panel + k / DEPTH_STEP * 2 * SQUARE + k % DEPTH_STEP * LANES, pairs, part, 4);
        }
    }
}

void round_rows(const float *a, long a_stride, long depth, long first, long end, uint16_t *to)
{
    const long padded = ROUNDED_DEPTH(depth);
    for (long r = first; r < end; r++) {
        const float *from = a + r * a_stride;
        uint16_t *row = to + r / TILE * TILE * padded + r % TILE * DEPTH_STEP;
        for (long k = 0; k < padded; k += LANES)
            _mm256_storeu_si256((__m256i *)(row + k / DEPTH_STEP * SQUARE + k % DEPTH_STEP), rounded(from + k, depth - k));
    }
}

/* -- AVX512-BF16 --------------------------------------------------------------------------------------------------- */

/* One panel of b for `rows` rows of a: one of `passes`, which each fetch their share of the `next` panel from memory. */
INLINE void multiply_pairs(const int rows, enum kind kind, long steps, const uint16_t *a, const uint16_t *b, float *c,
                           long c_stride, const uint16_t *next, long pass, long passes)
{
    __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) left[r] = right[r] = _mm512_setzero_ps();
    for (long k = 0; k < steps; k++, a += SQUARE, b += SQUARE * 2, next += SQUARE * 2) {
        for (long i = pass * LINE; i < 2 * SQUARE; i += passes * LINE) _mm_prefetch((const char *)(next + i), _MM_HINT_T1);
        for (long pair = 0; pair < DEPTH_STEP; pair += 2) {
            const uint16_t *weights = b + pair / 2 * DEPTH_STEP;
            const __m512bh b0 = (__m512bh)_mm512_loadu_si512(weights);
            const __m512bh b1 = (__m512bh)_mm512_loadu_si512(weights + SQUARE);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                int32_t both;
                memcpy(&both, a + r * DEPTH_STEP + pair, sizeof both);
                const __m512bh x = (__m512bh)_mm512_set1_epi32(both);
                left[r] = _mm512_dpbf16_ps(left[r], x, b0);
                right[r] = _mm512_dpbf16_ps(right[r], x, b1);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) put_sums(kind, c + r * c_stride, (vec)left[r], (vec)right[r]);
}

/* -- AMX ----------------------------------------------------------------------------------------------------------- */

#ifdef HAVE_TILES

#define REQUEST_PERMISSION 0x1023 /* arch_prctl's ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18              /* XFEATURE_XTILEDATA */

static int granted;

/* The system grants the registers to the process, once and for all its threads. */
static void ask(void) { granted = !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA); }

static int have_tiles(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return granted;
}

/* Static: compilers take the instruction to read its first bytes alone, and would leave out what sets the rest. */
static const struct {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} squares = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE}};

void tiles_on(void)
{
    if (have_tiles()) _tile_loadconfig(&squares);
}

void tiles_off(void)
{
    if (have_tiles()) _tile_release();
}

/* One panel of b for two blocks of a, or for one, whose sums the tiles 0 and 1 hold. */
INLINE void multiply_tiles(const int blocks, enum kind kind, long steps, long rows, const uint16_t *a, const uint16_t *b,
                           float *c, long c_stride)
{
    float sums[2 * TILE * PANEL] __attribute__((aligned(64)));
    const uint16_t *second = a + steps * SQUARE;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long k = 0; k < steps; k++, a += SQUARE, second += SQUARE, b += 2 * SQUARE) {
#pragma GCC unroll 32
        for (int i = 0; i < 2 * SQUARE; i += 32) _mm_prefetch((const char *)(b + AHEAD * 2 * SQUARE + i), _MM_HINT_T0);
        _tile_loadd(4, a, DEPTH_STEP * 2);
        if (blocks == 2) _tile_loadd(5, second, DEPTH_STEP * 2);
        _tile_loadd(6, b, DEPTH_STEP * 2);
        _tile_loadd(7, b + SQUARE, DEPTH_STEP * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (blocks == 2) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, PANEL * sizeof(float));
    _tile_stored(1, sums + LANES, PANEL * sizeof(float));
    if (blocks == 2) {
        _tile_stored(2, sums + TILE * PANEL, PANEL * sizeof(float));
        _tile_stored(3, sums + TILE * PANEL + LANES, PANEL * sizeof(float));
    }
    for (long r = 0; r < rows; r++) put_sums(kind, c + r * c_stride, load(sums + r * PANEL), load(sums + r * PANEL + LANES));
}

#else

static int have_tiles(void) { return 0; }
void tiles_on(void) {}
void tiles_off(void) {}

#endif

/* -- both ---------------------------------------------------------------------------------------------------------- */

enum unit best_bf16(void) { return have_tiles() ? TILES : PAIRS; }

void multiply_bf16(enum kind kind, const struct matrix *b, long first, long end, long rows, const uint16_t *a, float *c,
                   long c_stride)
{
    const long width = kind == SWIGLU ? LANES : PANEL, depth = ROUNDED_DEPTH(b->depth), steps = depth / DEPTH_STEP;
    for (long panel = first; panel < end; panel++) {
        const uint16_t *weights = (const uint16_t *)(b->packed + panel * b->step);
        float *to = c + panel * width;
#ifdef HAVE_TILES
        if (b->unit == TILES) {
            for (long row = 0; row < rows; row += 2 * TILE) {
                const long left = rows - row;
                const uint16_t *block = a + row * depth;
                if (left > TILE)
                    multiply_tiles(2, kind, steps, left < 2 * TILE ? left : 2 * TILE, block, weights, to + row * c_stride,
                                   c_stride);
                else multiply_tiles(1, kind, steps, left, block, weights, to + row * c_stride, c_stride);
            }
            continue;
        }
#endif
        const uint16_t *next = panel + 1 < b->panels ? weights + b->step / 2 : weights;
        const long passes = (rows + ROWS - 1) / ROWS;
        for (long row = 0; row < rows; row += ROWS) {
            const uint16_t *from = a + row / TILE * TILE * depth + row % TILE * DEPTH_STEP;
#define CASE(n) \
    case n: \
        multiply_pairs(n, kind, steps, from, weights, to + row * c_stride, c_stride, next, row / ROWS, passes); \
        break;
            switch (rows - row < ROWS ? rows - row : ROWS) {
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
            }
#undef CASE
        }
    }
}

#else /* without AVX512-BF16 nothing asks for it: `best_bf16` says so */

enum unit best_bf16(void) { return FLOATS; }
void tiles_on(void) {}
void tiles_off(void) {}
void round_rows(const float *a, long a_stride, long depth, long first, long end, uint16_t *to)
{
    (void)a, (void)a_stride, (void)depth, (void)first, (void)end, (void)to;
}
void pack_bf16(struct matrix *b, const float *weights, long columns, long first)
{
    (void)b, (void)weights, (void)columns, (void)first;
}
void multiply_bf16(enum kind kind, const struct matrix *b, long first, long end, long rows, const uint16_t *a, float *c,
                   long c_stride)
{
    (void)kind, (void)b, (void)first, (void)end, (void)rows, (void)a, (void)c, (void)c_stride;
}

#endif
