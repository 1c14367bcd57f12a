/* A Llama's forward over the nodes of a prefix tree, in fp32, for one core.
 *
 * A row is a node whose keys, values and (where wanted) next-token log-probabilities are computed. All rows of a call go
 * through each layer together; a row attends to its own path to the root, whose keys and values it reads where the tree
 * keeps them. So nothing is copied, padded or masked, and a row may be the parent of another row of the same call.
 *
 * Every sum runs in an order that depends on the row alone: a node's results are the same bits whatever else is in the
 * call. Vectors are those of GCC and Clang, as wide as the machine has them.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#if defined(__AVX512F__)
#define BYTES 64
#define BLOCK 12 /* rows of a register block: 24 of 32 registers hold sums */
#elif defined(__AVX__)
#define BYTES 32
#define BLOCK 6 /* 12 of 16 */
#elif defined(__aarch64__)
#define BYTES 16
#define BLOCK 12
#else
#define BYTES 16
#define BLOCK 6
#endif
#define LANES ((long)(BYTES / 4))
#define PANEL (2 * LANES) /* columns of a packed panel */
#define AHEAD (64 * PANEL) /* how far the weights are fetched ahead of their use */
#define CHUNK 128         /* rows that go through the layers together: their activations stay in the second-level cache */
#define HEAD_CHUNK 64     /* rows of logits at a time */

typedef float vec __attribute__((vector_size(BYTES)));
typedef int32_t ivec __attribute__((vector_size(BYTES)));
typedef float loose __attribute__((vector_size(BYTES), aligned(4), may_alias)); /* the same at any address */

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) { return *(const loose *)p; }
INLINE void store(float *p, vec v) { *(loose *)p = v; }
INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec either(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }
INLINE vec larger(vec a, vec b) { return either(a > b, a, b); }

/* Lanes of a and b by number (b's come after a's). */
#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
#if BYTES == 64
#define EACH(f, s) \
    f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), f(10, s), f(11, s), \
        f(12, s), f(13, s), f(14, s), f(15, s)
#elif BYTES == 32
#define EACH(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#else
#define EACH(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#endif
#define HERE(i, s) ((i) & (s) ? (BYTES / 4) + (i) : (i))
#define THERE(i, s) ((i) & (s) ? (BYTES / 4) + ((i) ^ (s)) : ((i) ^ (s)))
/* In groups of 2s lanes, the first half: sums of a's halves; the second: of b's. */
#define FOLD(a, b, s) (PICK(a, b, EACH(HERE, s)) + PICK(a, b, EACH(THERE, s)))

/* Lane i of the result is the sum of the lanes of v[i]. */
INLINE vec totals(vec *v)
{
#if BYTES == 64
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) v[i] = FOLD(v[i], v[i + 8], 8);
#endif
#if BYTES >= 32
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) v[i] = FOLD(v[i], v[i + 4], 4);
#endif
    v[0] = FOLD(v[0], v[2], 2);
    v[1] = FOLD(v[1], v[3], 2);
    return FOLD(v[0], v[1], 1);
}

INLINE float total(vec v)
{
#if BYTES == 64
    v = FOLD(v, v, 8);
#endif
#if BYTES >= 32
    v = FOLD(v, v, 4);
#endif
    v = FOLD(v, v, 2);
    return v[0] + v[1];
}

INLINE float largest(vec v)
{
    float best = v[0];
    for (long i = 1; i < LANES; i++) best = v[i] > best ? v[i] : best;
    return best;
}

/* exp by 2^n * polynomial, as in the Cephes library (Moshier); relative error below 2e-7 in [-87, 88]. */
INLINE vec exponential(vec x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    x = either(x < -87.0f, splat(-87.0f), x);
    x = either(x > 88.0f, splat(88.0f), x);
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

/* -- matrices ------------------------------------------------------------------------------------------------------ */

enum kind { PUT, ADD, SWIGLU };

/* One panel for `rows` rows: c = a b, c += a b, or c = silu(a gate) * (a up) where the panel holds both. */
INLINE void block(const int rows, enum kind kind, long depth, const float *a, long a_stride, const float *b,
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
        __builtin_prefetch(b + AHEAD), __builtin_prefetch(b + AHEAD + LANES);
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
    for (int r = 0; r < rows; r++) {
        float *to = c + r * c_stride;
        if (kind == PUT) {
            store(to, left[r]);
            store(to + LANES, right[r]);
        } else if (kind == ADD) {
            store(to, load(to) + left[r]);
            store(to + LANES, load(to + LANES) + right[r]);
        } else {
            store(to, left[r] / (1.0f + exponential(-left[r])) * right[r]);
        }
    }
}

static void multiply(enum kind kind, long rows, long depth, long panels, const float *a, long a_stride, const float *b,
                     float *c, long c_stride)
{
    const long width = kind == SWIGLU ? LANES : PANEL;
    for (long panel = 0; panel < panels; panel++, b += depth * PANEL, c += width)
        for (long row = 0; row < rows; row += BLOCK) {
            const float *from = a + row * a_stride;
            float *to = c + row * c_stride;
#define CASE(n) \
    case n: \
        block(n, kind, depth, from, a_stride, b, to, c_stride); \
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

/* -- the model ----------------------------------------------------------------------------------------------------- */

struct shape {
    int64_t layers, width, heads, kv_heads, head_dim, ffn, vocabulary, positions;
    float epsilon;
};

struct layer {
    float *norm1, *qkv, *out, *norm2, *gate_up, *down;
};

struct model {
    struct shape shape;
    long width_pad, qkv_pad, ffn_pad, vocabulary_pad; /* row lengths of the buffers: whole panels */
    float *embedding, *norm, *head, *cos, *sin;
    struct layer *layers;
    float *hidden, *normed, *qkv, *mixed, *ffn, *logits; /* CHUNK (logits: HEAD_CHUNK) rows */
    float *scores, *inverse;                             /* heads x longest path; heads */
    int32_t *path;
    long path_room, score_room;
    float *value; /* width weights, or NULL */
    float value_bias;
};

static long padded(long n, long to) { return (n + to - 1) / to * to; }

static float *floats(long n)
{
    float *p = NULL;
    if (posix_memalign((void **)&p, 64, (size_t)(n ? n : 1) * sizeof(float))) return NULL;
    memset(p, 0, (size_t)n * sizeof(float));
    return p;
}

static float *copied(const float *from, long n)
{
    float *p = floats(n);
    if (p) memcpy(p, from, (size_t)n * sizeof(float));
    return p;
}

/* Columns first.. of a matrix whose column j is weights[j] (a linear layer's [out, in]) into panels of all columns. */
static void pack(float *packed, long depth, const float *weights, long columns, long first)
{
    for (long j = 0; j < columns; j++) {
        float *to = packed + (first + j) / PANEL * depth * PANEL + (first + j) % PANEL;
        for (long k = 0; k < depth; k++) to[k * PANEL] = weights[j * depth + k];
    }
}

void model_free(struct model *m)
{
    if (!m) return;
    for (long i = 0; m->layers && i < m->shape.layers; i++) {
        struct layer *l = &m->layers[i];
        free(l->norm1), free(l->qkv), free(l->out), free(l->norm2), free(l->gate_up), free(l->down);
    }
    free(m->layers), free(m->embedding), free(m->norm), free(m->head), free(m->cos), free(m->sin);
    free(m->hidden), free(m->normed), free(m->qkv), free(m->mixed), free(m->ffn), free(m->logits);
    free(m->scores), free(m->inverse), free(m->path), free(m->value), free(m);
}

/* A model with its own copy of the weights; NULL where memory is short.
 *
 * weights: embedding, final norm, head, cos and sin [positions, head_dim / 2], then for each layer norm1, q, k, v, o, norm2,
 * gate, up, down; each as the library keeps it ([out, in]), fp32 and contiguous.
 */
struct model *model_new(const struct shape *shape, const float *const *weights)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    const struct shape s = m->shape = *shape;
    const long d = s.width, q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    int ok = 1;
#define KEEP(p) (ok &= ((p) != NULL))
    m->width_pad = padded(d, PANEL);
    m->qkv_pad = padded(q + 2 * kv, PANEL);
    m->ffn_pad = padded(s.ffn, LANES);
    m->vocabulary_pad = padded(s.vocabulary, PANEL);
    KEEP(m->embedding = copied(weights[0], s.vocabulary * d));
    KEEP(m->norm = copied(weights[1], d));
    KEEP(m->head = floats(d * m->vocabulary_pad));
    KEEP(m->cos = copied(weights[3], s.positions * s.head_dim / 2));
    KEEP(m->sin = copied(weights[4], s.positions * s.head_dim / 2));
    KEEP(m->layers = calloc((size_t)s.layers, sizeof *m->layers));
    KEEP(m->hidden = floats(CHUNK * m->width_pad));
    KEEP(m->normed = floats(CHUNK * m->width_pad));
    KEEP(m->qkv = floats(CHUNK * m->qkv_pad));
    KEEP(m->mixed = floats(CHUNK * q));
    KEEP(m->ffn = floats(CHUNK * m->ffn_pad));
    KEEP(m->inverse = floats(s.heads));
    KEEP(m->logits = floats(HEAD_CHUNK * m->vocabulary_pad));
    if (!ok) return model_free(m), NULL;
    pack(m->head, d, weights[2], s.vocabulary, 0);
    for (long i = 0; i < s.layers; i++) {
        struct layer *l = &m->layers[i];
        const float *const *w = weights + 5 + 9 * i;
        KEEP(l->norm1 = copied(w[0], d));
        KEEP(l->qkv = floats(d * m->qkv_pad));
        KEEP(l->out = floats(q * m->width_pad));
        KEEP(l->norm2 = copied(w[5], d));
        KEEP(l->gate_up = floats(d * m->ffn_pad * 2));
        KEEP(l->down = floats(s.ffn * m->width_pad));
        if (!ok) return model_free(m), NULL;
        pack(l->qkv, d, w[1], q, 0);
        pack(l->qkv, d, w[2], kv, q);
        pack(l->qkv, d, w[3], kv, q + kv);
        pack(l->out, q, w[4], d, 0);
        /* Vector for vector, so that a panel holds a gate and its up. */
        for (long j = 0; j < s.ffn; j += LANES) {
            const long columns = s.ffn - j < LANES ? s.ffn - j : LANES;
            pack(l->gate_up, d, w[6] + j * d, columns, 2 * j);
            pack(l->gate_up, d, w[7] + j * d, columns, 2 * j + LANES);
        }
        pack(l->down, s.ffn, w[8], d, 0);
    }
    return m;
}

/* The value head sigmoid(weight . h + bias) that goes with every row; NULL removes it. 0 where memory is short. */
int model_value(struct model *m, const float *weight, float bias)
{
    free(m->value);
    m->value = weight ? copied(weight, m->shape.width) : NULL;
    m->value_bias = bias;
    return !weight || m->value;
}

static void normalise(const struct model *m, long rows, const float *weight)
{
    const long d = m->shape.width;
    for (long r = 0; r < rows; r++) {
        const float *x = m->hidden + r * m->width_pad;
        float *y = m->normed + r * m->width_pad;
        vec squares = {0};
        for (long i = 0; i < d; i += LANES) squares += load(x + i) * load(x + i); /* padding is zero */
        const float scale = 1.0f / sqrtf(total(squares) / (float)d + m->shape.epsilon);
        for (long i = 0; i < d; i++) y[i] = x[i] * scale * weight[i];
    }
}

/* -- attention ----------------------------------------------------------------------------------------------------- */

INLINE float dot(const float *a, const float *b, long n)
{
    vec sum = {0};
    long i = 0;
    for (; i + LANES <= n; i += LANES) sum += load(a + i) * load(b + i);
    float rest = 0;
    for (; i < n; i++) rest += a[i] * b[i];
    return total(sum) + rest;
}

/* scores[j] = query . key of node j, for a whole vector of nodes; keys are `dim` floats at keys[j]. */
INLINE vec compare(const long dim, const float *query, const float *const *keys, long offset)
{
    vec sums[LANES];
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++) {
        const float *key = keys[j] + offset;
        sums[j] = load(query) * load(key);
        for (long i = LANES; i < dim; i += LANES) sums[j] += load(query + i) * load(key + i);
    }
    return totals(sums);
}

/* `many` vectors of the output from the vector `first` on: the values of a path's nodes, weighted by their scores. */
INLINE void mix(const int many, const long dim, long first, long group, const float *scores, long room,
                const int32_t *path, long length, const float *values, long stride, const float *inverse, float *out)
{
    const long wide = dim / LANES; /* vectors of a head */
    vec sums[8];
    const float *weight[8];
    long offset[8];
#pragma GCC unroll 8
    for (int c = 0; c < many; c++) {
        const long head = (first + c) / wide;
        sums[c] = (vec){0};
        weight[c] = scores + head * room;
        offset[c] = head / group * dim + (first + c) % wide * LANES;
    }
    for (long j = 0; j < length; j++) {
        const float *value = values + path[j] * stride;
#pragma GCC unroll 8
        for (int c = 0; c < many; c++) sums[c] += weight[c][j] * load(value + offset[c]);
    }
#pragma GCC unroll 8
    for (int c = 0; c < many; c++) store(out + (first + c) * LANES, sums[c] * inverse[(first + c) / wide]);
}

/* softmax(q k) v over a path; keys (and, kv_width further on, values) of node j begin at states + j * stride.
 *
 * Queries are scaled already. `dim` is a constant, a multiple of LANES, or 0 for any other head size.
 */
INLINE void attend(const struct model *m, const long dim, const float *query, const int32_t *path, long length,
                   const float *states, long stride, float *out)
{
    const long size = m->shape.head_dim, heads = m->shape.heads, group = heads / m->shape.kv_heads;
    const long room = m->score_room;
    const float *values = states + m->shape.kv_heads * size;
    float *scores = m->scores, *inverse = m->inverse;
    for (long j = 0; dim && j < length; j += LANES) {
        const float *keys[LANES];
        /* Beyond the end the last node is read again: those scores are not used. */
        for (long i = 0; i < LANES; i++) keys[i] = states + path[j + i < length ? j + i : length - 1] * stride;
        for (long h = 0; h < heads; h++)
            store(scores + h * room + j, compare(dim, query + h * dim, keys, h / group * dim));
    }
    for (long j = 0; !dim && j < length; j++)
        for (long h = 0; h < heads; h++)
            scores[h * room + j] = dot(query + h * size, states + path[j] * stride + h / group * size, size);
    for (long h = 0; h < heads; h++) {
        float *s = scores + h * room;
        for (long j = length; j % LANES; j++) s[j] = -INFINITY;
        vec best = load(s), sum = {0};
        for (long j = LANES; j < length; j += LANES) best = larger(best, load(s + j));
        const float top = largest(best);
        for (long j = 0; j < length; j += LANES) {
            const vec e = exponential(load(s + j) - top); /* 1e-38 for the padding */
            store(s + j, e);
            sum += e;
        }
        inverse[h] = 1.0f / total(sum);
    }
    if (dim) {
        const long all = heads * (dim / LANES);
        long first = 0;
#define MIX(n) \
    for (; first + n <= all; first += n) \
        mix(n, dim, first, group, scores, room, path, length, values, stride, inverse, out);
        MIX(8) MIX(4) MIX(1)
#undef MIX
    } else {
        for (long h = 0; h < heads; h++)
            for (long i = 0; i < size; i++) {
                const float *value = values + h / group * size + i;
                float sum = 0;
                for (long j = 0; j < length; j++) sum += scores[h * room + j] * value[path[j] * stride];
                out[h * size + i] = sum * inverse[h];
            }
    }
}

/* Queries are turned in place (rotary embedding, Su et al. 2021); keys on their way into the tree. */
INLINE void turn(const float *from, float *to, const float *cos, const float *sin, long half, float scale)
{
    for (long i = 0; i < half; i++) {
        const float a = from[i], b = from[i + half];
        to[i] = (a * cos[i] - b * sin[i]) * scale;
        to[i + half] = (b * cos[i] + a * sin[i]) * scale;
    }
}

static void attention(struct model *m, long layer, long rows, float *pool, const int32_t *nodes, const int32_t *starts,
                      const int32_t *lengths)
{
    const struct shape s = m->shape;
    const long dim = s.head_dim, kv = s.kv_heads * dim, stride = s.layers * 2 * kv;
    const float scale = 1.0f / sqrtf((float)dim);
    float *states = pool + layer * 2 * kv;
    for (long r = 0; r < rows; r++) {
        float *qkv = m->qkv + r * m->qkv_pad, *to = states + nodes[r] * stride;
        const float *cos = m->cos + (lengths[r] - 1) * (dim / 2), *sin = m->sin + (lengths[r] - 1) * (dim / 2);
        for (long h = 0; h < s.heads; h++) turn(qkv + h * dim, qkv + h * dim, cos, sin, dim / 2, scale);
        for (long h = 0; h < s.kv_heads; h++) turn(qkv + (s.heads + h) * dim, to + h * dim, cos, sin, dim / 2, 1.0f);
        memcpy(to + kv, qkv + (s.heads + s.kv_heads) * dim, (size_t)kv * sizeof(float));
    }
    for (long r = 0; r < rows; r++) {
        const float *query = m->qkv + r * m->qkv_pad;
        const int32_t *path = m->path + starts[r];
        float *out = m->mixed + r * s.heads * dim;
        if (dim == 32) attend(m, 32, query, path, lengths[r], states, stride, out);
        else if (dim == 64) attend(m, 64, query, path, lengths[r], states, stride, out);
        else if (dim == 128) attend(m, 128, query, path, lengths[r], states, stride, out);
        else attend(m, 0, query, path, lengths[r], states, stride, out);
    }
}

/* -- a call -------------------------------------------------------------------------------------------------------- */

/* The rows' paths to the root into m->path: row r's begins at starts[r] and has lengths[r] nodes, itself the last.
 * A row whose parent is the row before it shares that one's. 0 where memory is short. */
static int trace(struct model *m, long rows, const int32_t *nodes, const int32_t *parent, int32_t *starts,
                 int32_t *lengths)
{
    long used = 0, longest = 0;
    for (long r = 0; r < rows; r++) {
        const int chained = r && parent[nodes[r]] == nodes[r - 1];
        long length = 0;
        if (chained) length = lengths[r - 1] + 1;
        else for (int32_t n = nodes[r]; n; n = parent[n]) length++;
        if (used + length > m->path_room) {
            m->path_room = 2 * (used + length);
            int32_t *grown = realloc(m->path, (size_t)m->path_room * sizeof *grown);
            if (!grown) return m->path_room = 0;
            m->path = grown;
        }
        starts[r] = (int32_t)(chained ? starts[r - 1] : used);
        lengths[r] = (int32_t)length;
        used = starts[r] + length;
        int32_t *end = m->path + used;
        if (chained) end[-1] = nodes[r];
        else for (int32_t n = nodes[r]; n; n = parent[n]) *--end = n;
        longest = length > longest ? length : longest;
    }
    if (longest > m->score_room) {
        m->score_room = padded(2 * longest, LANES);
        free(m->scores);
        if (!(m->scores = floats(m->shape.heads * m->score_room))) return m->score_room = 0;
    }
    return 1;
}

static float maximum(const float *x, long n)
{
    const long whole = n / LANES * LANES;
    vec best = splat(-INFINITY);
    for (long i = 0; i < whole; i += LANES) best = larger(best, load(x + i));
    float top = largest(best);
    for (long i = whole; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* exp((x[i] - top) * scale) of the next LANES elements, or of the `left` that there are; the rest is 0. */
INLINE vec powers(const float *x, long left, float top, float scale)
{
    vec part = {0};
    if (left >= LANES) return exponential((load(x) - top) * scale);
    for (long i = 0; i < left; i++) part[i] = (x[i] - top) * scale;
    part = exponential(part);
    for (long i = left; i < LANES; i++) part[i] = 0;
    return part;
}

/* logits -> log-probabilities, in place */
static void log_softmax(float *x, long n)
{
    const float top = maximum(x, n);
    vec sum = {0};
    for (long i = 0; i < n; i += LANES) sum += powers(x + i, n - i, top, 1.0f);
    const float shift = top + logf(total(sum));
    for (long i = 0; i < n; i++) x[i] -= shift;
}

/* The k largest of x[n], largest first, of equal ones the one with the smaller index first. */
static void best_of(const float *x, long n, long k, int32_t *ids, float *values)
{
    long have = 0;
    for (long i = 0; i < n; i++) {
        if (have == k && !(x[i] > values[k - 1])) continue;
        long at = have < k ? have++ : k - 1;
        for (; at && x[i] > values[at - 1]; at--) values[at] = values[at - 1], ids[at] = ids[at - 1];
        values[at] = x[i], ids[at] = (int32_t)i;
    }
}

/* Compute `count` nodes, ancestors before descendants.
 *
 * pool: keys and values [capacity, layers, 2, kv_heads, head_dim]; parent, token: of every node (0 is the root).
 * keep[i]: the row of `table` [*, vocabulary] that takes node i's next-token log-probabilities, or -1.
 * target[i]: a token whose log-probability after node i goes to scores[i], or -1.
 * values[i]: the value head's output, where there is one. top_ids, top_logprobs [capacity, k]: for nodes that keep a
 * distribution, its k likeliest tokens go to the node's row (NULL: nothing is kept).
 * 0: done; 1: memory is short.
 */
int forward(struct model *m, float *pool, const int32_t *parent, const int32_t *token, int64_t count,
            const int32_t *nodes, const int64_t *keep, const int32_t *target, float *table, float *scores, float *values,
            int32_t *top_ids, float *top_logprobs, int64_t k)
{
    const struct shape s = m->shape;
    const long d = s.width, q = s.heads * s.head_dim;
    int32_t starts[CHUNK], lengths[CHUNK];
    for (long first = 0; first < count; first += CHUNK, nodes += CHUNK) {
        const long rows = count - first < CHUNK ? count - first : CHUNK;
        if (!trace(m, rows, nodes, parent, starts, lengths)) return 1;
        for (long r = 0; r < rows; r++)
            memcpy(m->hidden + r * m->width_pad, m->embedding + token[nodes[r]] * d, (size_t)d * sizeof(float));
        for (long i = 0; i < s.layers; i++) {
            const struct layer *l = &m->layers[i];
            normalise(m, rows, l->norm1);
            multiply(PUT, rows, d, m->qkv_pad / PANEL, m->normed, m->width_pad, l->qkv, m->qkv, m->qkv_pad);
            attention(m, i, rows, pool, nodes, starts, lengths);
            multiply(ADD, rows, q, m->width_pad / PANEL, m->mixed, q, l->out, m->hidden, m->width_pad);
            normalise(m, rows, l->norm2);
            multiply(SWIGLU, rows, d, m->ffn_pad / LANES, m->normed, m->width_pad, l->gate_up, m->ffn, m->ffn_pad);
            multiply(ADD, rows, s.ffn, m->width_pad / PANEL, m->ffn, m->ffn_pad, l->down, m->hidden, m->width_pad);
        }
        normalise(m, rows, m->norm);
        for (long r = 0; m->value && r < rows; r++)
            values[first + r] = 1.0f / (1.0f + expf(-dot(m->normed + r * m->width_pad, m->value, d) - m->value_bias));
        /* Only rows that someone reads go through the head: they move to the front. */
        long read[CHUNK], many = 0;
        for (long r = 0; r < rows; r++)
            if (keep[first + r] >= 0 || target[first + r] >= 0) {
                if (many != r)
                    memcpy(m->normed + many * m->width_pad, m->normed + r * m->width_pad, (size_t)d * sizeof(float));
                read[many++] = r;
            }
        for (long from = 0; from < many; from += HEAD_CHUNK) {
            const long some = many - from < HEAD_CHUNK ? many - from : HEAD_CHUNK;
            multiply(PUT, some, d, m->vocabulary_pad / PANEL, m->normed + from * m->width_pad, m->width_pad, m->head, m->logits,
                m->vocabulary_pad);
            for (long r = 0; r < some; r++) {
                const long i = first + read[from + r];
                float *row = m->logits + r * m->vocabulary_pad;
                log_softmax(row, s.vocabulary);
                if (target[i] >= 0) scores[i] = row[target[i]];
                if (keep[i] < 0) continue;
                memcpy(table + keep[i] * s.vocabulary, row, (size_t)s.vocabulary * sizeof(float));
                if (k) {
                    const int64_t node = nodes[read[from + r]];
                    best_of(row, s.vocabulary, k, top_ids + node * k, top_logprobs + node * k);
                }
            }
        }
    }
    return 0;
}

/* -- reading distributions ------------------------------------------------------------------------------------------ */

/* For each of n draws, a token from row rows[i] of table [*, vocabulary] and its log-probability.
 *
 * temperature 0 takes the likeliest token. Otherwise the token is where uniforms[i] falls in the cumulated
 * exp(log-probability / temperature), in doubles; `work` has room for `vocabulary` of them.
 */
void draw(const float *table, int64_t vocabulary, int64_t n, const int64_t *rows, const double *temperatures,
          const double *uniforms, double *work, int32_t *tokens, float *logprobs)
{
    int64_t last = -1;
    double warm = 0;
    for (int64_t i = 0; i < n; i++) {
        const float *x = table + rows[i] * vocabulary;
        int64_t token = 0;
        if (temperatures[i] == 0) {
            for (int64_t j = 1; j < vocabulary; j++) token = x[j] > x[token] ? j : token;
        } else {
            if (rows[i] != last || temperatures[i] != warm) {
                const float top = maximum(x, vocabulary), scale = (float)(1.0 / temperatures[i]);
                double sum = 0;
                for (int64_t j = 0; j < vocabulary; j += LANES) {
                    const vec part = powers(x + j, vocabulary - j, top, scale);
                    for (long l = 0; l < LANES && j + l < vocabulary; l++) work[j + l] = sum += part[l];
                }
                last = rows[i], warm = temperatures[i];
            }
            const double at = uniforms[i] * work[vocabulary - 1];
            int64_t high = vocabulary - 1; /* the first token whose sum lies above `at` */
            while (token < high) {
                const int64_t middle = (token + high) / 2;
                if (work[middle] > at) high = middle;
                else token = middle + 1;
            }
        }
        tokens[i] = (int32_t)token;
        logprobs[i] = x[token];
    }
}

/* The k largest of each of n rows of table [*, vocabulary]: ids and values [n, k]. */
void top(const float *table, int64_t vocabulary, int64_t n, const int64_t *rows, int64_t k, int32_t *ids, float *values)
{
    for (int64_t i = 0; i < n; i++) best_of(table + rows[i] * vocabulary, vocabulary, k, ids + i * k, values + i * k);
}

/* Ask for large pages: a path's keys lie scattered over the pool. */
void large_pages(void *start, int64_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 1 << 21, from = ((uintptr_t)start + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)start + (uintptr_t)bytes) / page * page;
    if (end > from) madvise((void *)from, end - from, MADV_HUGEPAGE);
#endif
}
