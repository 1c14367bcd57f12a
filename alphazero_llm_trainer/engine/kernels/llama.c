/* The forward of a Llama or a Qwen over the nodes of a prefix tree: products in fp32 or bfloat16, everything else in fp32.
 *
 * A row is a node whose keys, values and (where wanted) next-token log-probabilities are computed. All rows of a call go
 * through each layer together; a row attends to its own path to the root, whose keys and values it reads where the tree
 * keeps them. So nothing is copied, padded or masked, and a row may be the parent of another row of the same call.
 *
 * Every sum runs in an order that depends on the row alone: a node's results are the same bits whatever else is in the
 * call, and on any number of threads. Products are split among threads by panels of weights, the rest by rows.
 */

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "distributions.h"
#include "products.h"
#include "threads.h"

#define CHUNK 128             /* rows that go through the layers together: their activations stay in the second-level cache */
#define HEAD_CHUNK 64         /* rows of logits at a time */

/* -- the model ----------------------------------------------------------------------------------------------------- */

struct shape {
    int64_t layers, width, heads, kv_heads, head_dim, ffn, vocabulary, positions;
    int64_t rank; /* of the adapters over one input together, at most */
    float epsilon;
};

struct layer {
    float *norm1, *norm2;
    float *bias, *query_norm, *key_norm; /* of q, k and v together (Qwen2), of each head (Qwen3); NULL where there is none */
    struct matrix qkv, out, gate_up, down;
    struct matrix low[4]; /* LoRA's A (Hu et al. 2021) before each of the four: the B's are its last rows */
};

struct model {
    struct shape shape;
    long width_pad, qkv_pad, ffn_pad, vocabulary_pad; /* row lengths of the buffers: whole panels */
    long normed_pad, mixed_pad, deep_pad;             /* of those that are multiplied next: with room for adapters' sums */
    enum unit unit;
    float *embedding, *norm, *cos, *sin;
    struct matrix head;
    struct layer *layers;
    float *hidden, *normed, *qkv, *mixed, *ffn, *logits; /* CHUNK (logits: HEAD_CHUNK) rows */
    uint16_t *rounded;                                   /* a product's activations, for the units of bfloat16 */
    float *scores, *inverse;                             /* a thread: heads x longest path; heads */
    int32_t *path;
    long path_capacity, score_capacity;
    int score_threads;
    float *value; /* the value head's `width` weights, or NULL */
    float value_bias;
};

#define CHECK(p) (ok &= ((p) != NULL))
#define MATRIX(b, depth, columns) (ok &= matrix_new(&(b), m->unit, depth, (columns) / PANEL))

static long padded(long n, long to) { return (n + to - 1) / to * to; }

static float *new_floats(long n)
{
    float *p = NULL;
    if (posix_memalign((void **)&p, 64, (size_t)(n ? n : 1) * sizeof(float))) return NULL;
    memset(p, 0, (size_t)n * sizeof(float));
    return p;
}

static float *copy_floats(const float *from, long n)
{
    float *p = new_floats(n);
    if (p) memcpy(p, from, (size_t)n * sizeof(float));
    return p;
}

void model_free(struct model *m)
{
    if (!m) return;
    for (long i = 0; m->layers && i < m->shape.layers; i++) {
        struct layer *l = &m->layers[i];
        free(l->norm1), free(l->norm2), free(l->bias), free(l->query_norm), free(l->key_norm);
        free(l->qkv.packed), free(l->out.packed), free(l->gate_up.packed), free(l->down.packed);
        for (int j = 0; j < 4; j++) free(l->low[j].packed);
    }
    free(m->layers), free(m->embedding), free(m->norm), free(m->head.packed), free(m->cos), free(m->sin);
    free(m->hidden), free(m->normed), free(m->qkv), free(m->mixed), free(m->ffn), free(m->logits), free(m->rounded);
    free(m->scores), free(m->inverse), free(m->path), free(m->value), free(m);
}

/* A model with its own copy of the weights, which lacks its layers yet (`model_layer`); NULL where memory is short.
 *
 * weights: embedding, final norm, head, cos and sin [positions, head_dim / 2]; each as the library keeps it ([out, in]), fp32
 * and contiguous. unit: how its products are computed, FLOATS or what `bf16_unit` says.
 */
struct model *model_new(const struct shape *shape, const float *const *weights, int unit)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    const struct shape s = m->shape = *shape;
    const long d = s.width, q = s.heads * s.head_dim;
    const long deepest = (s.ffn > d ? (s.ffn > q ? s.ffn : q) : (d > q ? d : q)) + s.rank;
    int ok = 1;
    m->unit = (enum unit)unit;
    m->width_pad = padded(d, PANEL);
    m->qkv_pad = padded(q + 2 * s.kv_heads * s.head_dim, PANEL);
    m->ffn_pad = padded(s.ffn, LANES);
    m->vocabulary_pad = padded(s.vocabulary, PANEL);
    m->normed_pad = m->width_pad + padded(s.rank, PANEL);
    m->mixed_pad = q + padded(s.rank, PANEL);
    m->deep_pad = m->ffn_pad + padded(s.rank, PANEL);
    CHECK(m->embedding = copy_floats(weights[0], s.vocabulary * d));
    CHECK(m->norm = copy_floats(weights[1], d));
    MATRIX(m->head, d, m->vocabulary_pad);
    CHECK(m->cos = copy_floats(weights[3], s.positions * s.head_dim / 2));
    CHECK(m->sin = copy_floats(weights[4], s.positions * s.head_dim / 2));
    CHECK(m->layers = calloc((size_t)s.layers, sizeof *m->layers));
    CHECK(m->hidden = new_floats(CHUNK * m->width_pad));
    CHECK(m->normed = new_floats(CHUNK * m->normed_pad));
    CHECK(m->qkv = new_floats(CHUNK * m->qkv_pad));
    CHECK(m->mixed = new_floats(CHUNK * m->mixed_pad));
    CHECK(m->ffn = new_floats(CHUNK * m->deep_pad));
    if (unit != FLOATS) CHECK(m->rounded = calloc((size_t)(CHUNK * ROUNDED_DEPTH(deepest)), sizeof *m->rounded));
    CHECK(m->logits = new_floats(HEAD_CHUNK * m->vocabulary_pad));
    if (!ok) return model_free(m), NULL;
    pack(&m->head, weights[2], s.vocabulary, 0);
    return m;
}

/* Layer i of a new model: norm1, q, k, v, o, norm2, gate, up, down, the joined biases of q, k and v, the norms of q's and k's
 * heads, and A before qkv, o, gate and up, down (NULL where there is none). A has ranks[] rows, and as many more columns, the
 * B's, are at the end of the matrices behind it. 0 where memory is short. */
int model_layer(struct model *m, int64_t i, const float *const *w, const int64_t *ranks)
{
    const struct shape s = m->shape;
    const long d = s.width, q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    struct layer *l = &m->layers[i];
    int ok = 1;
    CHECK(l->norm1 = copy_floats(w[0], d));
    CHECK(l->norm2 = copy_floats(w[5], d));
    if (w[9]) CHECK(l->bias = copy_floats(w[9], q + 2 * kv));
    if (w[10]) CHECK(l->query_norm = copy_floats(w[10], s.head_dim));
    if (w[11]) CHECK(l->key_norm = copy_floats(w[11], s.head_dim));
    MATRIX(l->qkv, d + ranks[0], m->qkv_pad);
    MATRIX(l->out, q + ranks[1], m->width_pad);
    MATRIX(l->gate_up, d + ranks[2], m->ffn_pad * 2);
    MATRIX(l->down, s.ffn + ranks[3], m->width_pad);
    for (int j = 0; j < 4; j++)
        if (ranks[j]) MATRIX(l->low[j], j == 3 ? s.ffn : j == 1 ? q : d, padded(ranks[j], PANEL));
    if (!ok) return 0;
    for (int j = 0; j < 4; j++)
        if (ranks[j]) pack(&l->low[j], w[12 + j], ranks[j], 0);
    pack(&l->qkv, w[1], q, 0);
    pack(&l->qkv, w[2], kv, q);
    pack(&l->qkv, w[3], kv, q + kv);
    pack(&l->out, w[4], d, 0);
    /* Vector for vector, so that a panel holds a gate and its up. */
    for (long j = 0; j < s.ffn; j += LANES) {
        const long columns = s.ffn - j < LANES ? s.ffn - j : LANES;
        pack(&l->gate_up, w[6] + j * l->gate_up.depth, columns, 2 * j);
        pack(&l->gate_up, w[7] + j * l->gate_up.depth, columns, 2 * j + LANES);
    }
    pack(&l->down, w[8], d, 0);
    return 1;
}

/* The value head sigmoid(weight . h + bias) that goes with every row; NULL removes it. 0 where memory is short. */
int model_value(struct model *m, const float *weight, float bias)
{
    free(m->value);
    m->value = weight ? copy_floats(weight, m->shape.width) : NULL;
    m->value_bias = bias;
    return !weight || m->value;
}

/* The unit of bfloat16 that this process may use, or FLOATS: see products.h. */
int bf16_unit(void) { return (int)best_bf16(); }

/* -- loops that threads share -------------------------------------------------------------------------------------- */

/* A call's chunk of rows on its way through the layers. */
struct pass {
    struct model *m;
    int threads;
    long rows;
    const int32_t *nodes, *starts, *lengths;
};

struct product {
    enum kind kind;
    const struct matrix *b;
    long rows, a_stride, c_stride;
    const float *a;
    uint16_t *rounded;
    float *c;
};

static void round_part(void *loop, int thread, long from, long to)
{
    const struct product *p = loop;
    (void)thread;
    round_rows(p->a, p->a_stride, p->b->depth, from, to, p->rounded);
}

static void multiply_part(void *loop, int thread, long from, long to)
{
    const struct product *p = loop;
    (void)thread;
    multiply(p->kind, p->b, from, to, p->rows, p->rounded ? (void *)p->rounded : (void *)p->a, p->a_stride, p->c, p->c_stride);
}

/* c = a b, c += a b or the feed-forward's gate, see `enum kind`. */
static void product(const struct pass *x, enum kind kind, const struct matrix *b, long rows, const float *a, long a_stride,
                    float *c, long c_stride)
{
    struct product p = {kind, b, rows, a_stride, c_stride, a, x->m->rounded, c};
    if (p.rounded) split(x->threads, rows, 8, round_part, &p);
    const long share = b->panels / (x->threads * 8L); /* several parts a thread: one that is late has little left */
    split(x->threads, b->panels, share ? share : 1, multiply_part, &p);
}

/* A layer's product of a row of x->m's buffer `a`; adapters' sums are written behind the row first, and b goes on over them. */
static void project(const struct pass *x, enum kind kind, const struct matrix *low, const struct matrix *b, float *a,
                    long a_stride, float *c, long c_stride)
{
    if (low->packed) product(x, ASSIGN, low, x->rows, a, a_stride, a + low->depth, a_stride);
    product(x, kind, b, x->rows, a, a_stride, c, c_stride);
}

struct norm {
    const struct model *m;
    const float *weight;
};

static void norm_part(void *loop, int thread, long from, long to)
{
    const struct norm *norm = loop;
    const struct model *m = norm->m;
    const float *weight = norm->weight;
    const long d = m->shape.width;
    (void)thread;
    for (long r = from; r < to; r++) {
        const float *x = m->hidden + r * m->width_pad;
        float *y = m->normed + r * m->normed_pad;
        vec squares = {0};
        for (long i = 0; i < d; i += LANES) squares += load(x + i) * load(x + i); /* padding is zero */
        const float scale = 1.0f / sqrtf(lane_sum(squares) / (float)d + m->shape.epsilon);
        for (long i = 0; i < d; i++) y[i] = x[i] * scale * weight[i];
    }
}

static void rms_norm(const struct pass *x, const float *weight)
{
    struct norm norm = {x->m, weight};
    split(x->threads, x->rows, 8, norm_part, &norm);
}

/* -- attention ----------------------------------------------------------------------------------------------------- */

INLINE float dot(const float *a, const float *b, long n)
{
    vec sum = {0};
    long i = 0;
    for (; i + LANES <= n; i += LANES) sum += load(a + i) * load(b + i);
    float rest = 0;
    for (; i < n; i++) rest += a[i] * b[i];
    return lane_sum(sum) + rest;
}

/* query . key of LANES nodes; node j's key is `dim` floats at keys[j] + offset. */
INLINE vec score_keys(const long dim, const float *query, const float *const *keys, long offset)
{
    vec sums[LANES];
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++) {
        const float *key = keys[j] + offset;
        sums[j] = load(query) * load(key);
        for (long i = LANES; i < dim; i += LANES) sums[j] += load(query + i) * load(key + i);
    }
    return lane_sums(sums);
}

/* `count` vectors of the output from the vector `first` on: the values of a path's nodes, weighted by their scores. */
INLINE void weigh_values(const int count, const long dim, long first, long group, const float *scores, long capacity,
                         const int32_t *path, long length, const float *values, long stride, const float *inverse,
                         float *out)
{
    const long head_vectors = dim / LANES; /* vectors that a head's output is */
    vec sums[8];
    const float *weight[8];
    long offset[8];
#pragma GCC unroll 8
    for (int c = 0; c < count; c++) {
        const long head = (first + c) / head_vectors;
        sums[c] = (vec){0};
        weight[c] = scores + head * capacity;
        offset[c] = head / group * dim + (first + c) % head_vectors * LANES;
    }
    for (long j = 0; j < length; j++) {
        const float *value = values + path[j] * stride;
#pragma GCC unroll 8
        for (int c = 0; c < count; c++) sums[c] += weight[c][j] * load(value + offset[c]);
    }
#pragma GCC unroll 8
    for (int c = 0; c < count; c++) store(out + (first + c) * LANES, sums[c] * inverse[(first + c) / head_vectors]);
}

/* softmax(q k) v over a path. Node j's keys begin at states + j * stride, its values follow them.
 *
 * Queries are scaled already. `dim` is the head size as a constant (a multiple of LANES: the loops over it are written
 * out), or 0 for any other head size, which is computed without vectors of nodes.
 */
INLINE void attend(const struct model *m, int thread, const long dim, const float *query, const int32_t *path, long length,
                   const float *states, long stride, float *out)
{
    const long size = m->shape.head_dim, heads = m->shape.heads, group = heads / m->shape.kv_heads;
    const long capacity = m->score_capacity, node_bytes = 2 * m->shape.kv_heads * size * (long)sizeof(float);
    const float *values = states + m->shape.kv_heads * size;
    float *scores = m->scores + thread * heads * capacity, *inverse = m->inverse + thread * heads;
    for (long j = 0; dim && j < length; j += LANES) {
        const float *keys[LANES];
        /* Beyond the end the last node is read again: those scores are not used. */
        for (long i = 0; i < LANES; i++) keys[i] = states + path[j + i < length ? j + i : length - 1] * stride;
        /* Nodes lie scattered: what comes next, each with its values, is fetched while these are computed. */
        for (long i = j + LANES; i < j + 2 * LANES && i < length; i++) {
            const char *node = (const char *)(states + path[i] * stride);
            for (long line = 0; line < node_bytes; line += 64) __builtin_prefetch(node + line, 0, 2);
        }
        for (long h = 0; h < heads; h++)
            store(scores + h * capacity + j, score_keys(dim, query + h * dim, keys, h / group * dim));
    }
    for (long j = 0; !dim && j < length; j++)
        for (long h = 0; h < heads; h++)
            scores[h * capacity + j] = dot(query + h * size, states + path[j] * stride + h / group * size, size);
    for (long h = 0; h < heads; h++) {
        float *s = scores + h * capacity;
        for (long j = length; j % LANES; j++) s[j] = -INFINITY;
        vec best = load(s), sum = {0};
        for (long j = LANES; j < length; j += LANES) best = vector_max(best, load(s + j));
        const float top = lane_max(best);
        for (long j = 0; j < length; j += LANES) {
            const vec e = exponential(load(s + j) - top); /* 1e-38 for the padding */
            store(s + j, e);
            sum += e;
        }
        inverse[h] = 1.0f / lane_sum(sum);
    }
    if (dim) {
        const long all = heads * (dim / LANES);
        long first = 0;
#define WEIGH(n) \
    for (; first + n <= all; first += n) \
        weigh_values(n, dim, first, group, scores, capacity, path, length, values, stride, inverse, out);
        WEIGH(8) WEIGH(4) WEIGH(1)
#undef WEIGH
    } else {
        for (long h = 0; h < heads; h++)
            for (long i = 0; i < size; i++) {
                const float *value = values + h / group * size + i;
                float sum = 0;
                for (long j = 0; j < length; j++) sum += scores[h * capacity + j] * value[path[j] * stride];
                out[h * size + i] = sum * inverse[h];
            }
    }
}

/* RMS norm of each of `heads` heads, where there is one. */
static void norm_heads(float *x, long heads, long dim, const float *weight, float epsilon)
{
    for (long h = 0; weight && h < heads; h++, x += dim) {
        const float scale = 1.0f / sqrtf(dot(x, x, dim) / (float)dim + epsilon);
        for (long i = 0; i < dim; i++) x[i] *= scale * weight[i];
    }
}

/* The rotary embedding (Su et al. 2021) of one head, times `scale`. */
INLINE void rotate(const float *from, float *to, const float *cos, const float *sin, long half, float scale)
{
    for (long i = 0; i < half; i++) {
        const float a = from[i], b = from[i + half];
        to[i] = (a * cos[i] - b * sin[i]) * scale;
        to[i + half] = (b * cos[i] + a * sin[i]) * scale;
    }
}

struct attention {
    const struct pass *x;
    const struct layer *l;
    float *states; /* of the layer: a node's keys and values lie `stride` floats after the one's before it */
    long stride;
};

/* Add biases to rows' queries, keys and values, norm and rotate queries and keys, and put keys and values where the tree
 * keeps them. */
static void keep_part(void *loop, int thread, long from, long to)
{
    const struct attention *layer = loop;
    const struct pass *x = layer->x;
    const struct model *m = x->m;
    const struct layer *l = layer->l;
    const struct shape s = m->shape;
    const long dim = s.head_dim, q = s.heads * dim, kv = s.kv_heads * dim;
    const float scale = 1.0f / sqrtf((float)dim);
    (void)thread;
    for (long r = from; r < to; r++) {
        float *qkv = m->qkv + r * m->qkv_pad, *keep = layer->states + x->nodes[r] * layer->stride;
        const long position = x->lengths[r] - 1;
        const float *cos = m->cos + position * (dim / 2), *sin = m->sin + position * (dim / 2);
        for (long i = 0; l->bias && i < q + 2 * kv; i++) qkv[i] += l->bias[i];
        norm_heads(qkv, s.heads, dim, l->query_norm, s.epsilon);
        norm_heads(qkv + q, s.kv_heads, dim, l->key_norm, s.epsilon);
        for (long h = 0; h < s.heads; h++) rotate(qkv + h * dim, qkv + h * dim, cos, sin, dim / 2, scale);
        for (long h = 0; h < s.kv_heads; h++) rotate(qkv + q + h * dim, keep + h * dim, cos, sin, dim / 2, 1.0f);
        memcpy(keep + kv, qkv + q + kv, (size_t)kv * sizeof(float));
    }
}

static void attend_part(void *loop, int thread, long from, long to)
{
    const struct attention *layer = loop;
    const struct pass *x = layer->x;
    const struct model *m = x->m;
    const long dim = m->shape.head_dim, stride = layer->stride;
    const float *states = layer->states;
    for (long r = from; r < to; r++) {
        const float *query = m->qkv + r * m->qkv_pad;
        const int32_t *path = m->path + x->starts[r];
        const long length = x->lengths[r];
        float *out = m->mixed + r * m->mixed_pad;
        if (dim == 32) attend(m, thread, 32, query, path, length, states, stride, out);
        else if (dim == 64) attend(m, thread, 64, query, path, length, states, stride, out);
        else if (dim == 128) attend(m, thread, 128, query, path, length, states, stride, out);
        else attend(m, thread, 0, query, path, length, states, stride, out);
    }
}

/* One layer's attention for rows whose q, k and v are in m->qkv. Keys and values go to the rows' nodes in the pool before
 * any row attends, so that a row may attend to another one of the call. */
static void attention(const struct pass *x, long layer, float *pool, long capacity)
{
    const struct shape s = x->m->shape;
    const long node = 2 * s.kv_heads * s.head_dim;
    struct attention loop = {x, &x->m->layers[layer], pool + layer * capacity * node, node};
    split(x->threads, x->rows, 4, keep_part, &loop);
    split(x->threads, x->rows, 1, attend_part, &loop);
}

/* -- a call -------------------------------------------------------------------------------------------------------- */

/* The rows' paths from the root into m->path: row r's begins at starts[r] and has lengths[r] nodes, itself the last.
 * A row whose parent is the row before it shares that one's. Makes room for the scores of such paths. 0 where memory is
 * short. */
static int find_paths(struct model *m, int threads, long rows, const int32_t *nodes, const int32_t *parent,
                      int32_t *starts, int32_t *lengths)
{
    long used = 0, longest = 0;
    for (long r = 0; r < rows; r++) {
        const int chained = r && parent[nodes[r]] == nodes[r - 1];
        long length = 0;
        if (chained) length = lengths[r - 1] + 1;
        else for (int32_t n = nodes[r]; n; n = parent[n]) length++;
        if (used + length > m->path_capacity) {
            m->path_capacity = 2 * (used + length);
            int32_t *grown = realloc(m->path, (size_t)m->path_capacity * sizeof *grown);
            if (!grown) return m->path_capacity = 0;
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
    if (longest > m->score_capacity || threads > m->score_threads) {
        const long heads = m->shape.heads * threads;
        if (longest > m->score_capacity) m->score_capacity = padded(2 * longest, LANES);
        m->score_threads = threads;
        free(m->scores), free(m->inverse);
        m->scores = new_floats(heads * m->score_capacity), m->inverse = new_floats(heads);
        if (!m->scores || !m->inverse) return m->score_threads = 0;
    }
    return 1;
}

/* What becomes of the logits of the rows in `wanted`. */
struct output {
    const struct pass *x;
    const long *wanted;
    const int64_t *keep;
    const int32_t *target;
    float *table, *scores;
    int32_t *top_ids;
    float *top_logprobs;
    int64_t k;
};

static void output_part(void *loop, int thread, long from, long to)
{
    const struct output *o = loop;
    const struct model *m = o->x->m;
    const long vocabulary = m->shape.vocabulary;
    (void)thread;
    for (long r = from; r < to; r++) {
        const long i = o->wanted[r];
        const float *logits = m->logits + r * m->vocabulary_pad;
        const float shift = log_sum_exp(logits, vocabulary);
        if (o->target[i] >= 0) o->scores[i] = logits[o->target[i]] - shift;
        if (o->keep[i] < 0) continue;
        float *row = o->table + o->keep[i] * vocabulary;
        for (long j = 0; j < vocabulary; j++) row[j] = logits[j] - shift;
        const int64_t place = o->x->nodes[i] * o->k;
        if (o->k) top_k(row, vocabulary, o->k, o->top_ids + place, o->top_logprobs + place);
    }
}

/* Compute `count` nodes, ancestors before descendants.
 *
 * pool: keys and values [layers, capacity, 2, kv_heads, head_dim]; parent, token: of every node (0 is the root).
 * keep[i]: the row of `table` [*, vocabulary] that takes node i's next-token log-probabilities, or -1.
 * target[i]: a token whose log-probability after node i goes to scores[i], or -1.
 * values[i]: the value head's output, where there is one. top_ids, top_logprobs [capacity, k]: for nodes that keep a
 * distribution, its k likeliest tokens go to the node's row (NULL: nothing is kept).
 * threads: at most so many compute it. 0: done; 1: memory is short.
 */
int forward(struct model *m, float *pool, int64_t capacity, const int32_t *parent, const int32_t *token, int64_t count,
            const int32_t *nodes, const int64_t *keep, const int32_t *target, float *table, float *scores, float *values,
            int32_t *top_ids, float *top_logprobs, int64_t k, int threads)
{
    const struct shape s = m->shape;
    const long d = s.width;
    int32_t starts[CHUNK], lengths[CHUNK];
    int failed = 0;
    threads = take_threads(threads);
    if (m->unit == TILES) tiles_on();
    for (long first = 0; first < count; first += CHUNK, nodes += CHUNK) {
        const long rows = count - first < CHUNK ? count - first : CHUNK;
        const struct pass x = {m, threads, rows, nodes, starts, lengths};
        if ((failed = !find_paths(m, threads, rows, nodes, parent, starts, lengths))) break;
        for (long r = 0; r < rows; r++) {
            assert(nodes[r] > 0 && lengths[r] <= s.positions && target[first + r] < s.vocabulary);
            assert(token[nodes[r]] >= 0 && token[nodes[r]] < s.vocabulary);
            memcpy(m->hidden + r * m->width_pad, m->embedding + token[nodes[r]] * d, (size_t)d * sizeof(float));
        }
        for (long i = 0; i < s.layers; i++) {
            const struct layer *l = &m->layers[i];
            rms_norm(&x, l->norm1);
            project(&x, ASSIGN, &l->low[0], &l->qkv, m->normed, m->normed_pad, m->qkv, m->qkv_pad);
            attention(&x, i, pool, capacity);
            project(&x, ADD, &l->low[1], &l->out, m->mixed, m->mixed_pad, m->hidden, m->width_pad);
            rms_norm(&x, l->norm2);
            project(&x, SWIGLU, &l->low[2], &l->gate_up, m->normed, m->normed_pad, m->ffn, m->deep_pad);
            project(&x, ADD, &l->low[3], &l->down, m->ffn, m->deep_pad, m->hidden, m->width_pad);
        }
        rms_norm(&x, m->norm);
        for (long r = 0; m->value && r < rows; r++)
            values[first + r] = 1.0f / (1.0f + expf(-dot(m->normed + r * m->normed_pad, m->value, d) - m->value_bias));
        /* Only rows whose distribution is wanted go through the head: they move to the front. */
        long wanted[CHUNK], wanted_rows = 0;
        for (long r = 0; r < rows; r++)
            if (keep[first + r] >= 0 || target[first + r] >= 0) {
                if (wanted_rows != r)
                    memcpy(m->normed + wanted_rows * m->normed_pad, m->normed + r * m->normed_pad,
                           (size_t)d * sizeof(float));
                wanted[wanted_rows++] = r;
            }
        for (long from = 0; from < wanted_rows; from += HEAD_CHUNK) {
            const long head_rows = wanted_rows - from < HEAD_CHUNK ? wanted_rows - from : HEAD_CHUNK;
            struct output o = {&x, wanted + from, keep + first, target + first, table, scores + first, top_ids, top_logprobs, k};
            product(&x, ASSIGN, &m->head, head_rows, m->normed + from * m->normed_pad, m->normed_pad, m->logits,
                    m->vocabulary_pad);
            split(threads, head_rows, 1, output_part, &o);
        }
    }
    if (m->unit == TILES) tiles_off();
    give_threads(threads);
    return failed;
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
