/* Samples on their way through the prefix tree's nodes that are known: one call instead of some of Python's a token. */

#include <stdint.h>

#include "distributions.h"

/* The prefix tree's columns, one entry a node (prefix_tree.py): node i's children are first[i], after[first[i]]... up to 0. */
struct trie {
    const int32_t *first, *after, *token;
    const uint8_t *memoised;
    int64_t *stamp;
};

/* The child of `node` for `token`; 0 (the root) where there is none. */
static int32_t child_of(const struct trie *trie, int32_t node, int32_t token)
{
    int32_t child = trie->first[node];
    while (child && trie->token[child] != token) child = trie->after[child];
    return child;
}

/* The nodes of tokens[n] from the root into `path`, stamped with `clock`; returns how many of them there are. */
int64_t follow(const struct trie *trie, const int32_t *tokens, int64_t n, int64_t clock, int32_t *path)
{
    int32_t node = 0;
    for (int64_t i = 0; i < n; i++) {
        node = child_of(trie, node, tokens[i]);
        if (!node) return i;
        trie->stamp[node] = clock;
        path[i] = node;
    }
    return n;
}

/* Let n samples draw from node to node as long as the next node is there and its whole distribution is known (`known`).
 *
 * Sample i stands on nodes[i], draws with uniforms[i][0...] at temperatures[i] from table [*, vocabulary], rows of which are
 * nodes; it stops after rooms[i] tokens at the latest and after a token with ends[i][token]. What all draw is put down one
 * sample after the other: tokens, their log-probabilities, the nodes they were drawn at; lengths[i] of them are sample i's,
 * and children[i] is the node that its last one leads to, 0 where there is none. `work` is for `draw_token`.
 */
int64_t walk(const struct trie *trie, const float *table, int64_t vocabulary, uint8_t known, int64_t clock, int64_t n,
             const int32_t *nodes, const double *const *uniforms, const double *temperatures, const int64_t *rooms,
             const uint8_t *const *ends, double *work, int32_t *tokens, float *logprobs, int32_t *at, int32_t *lengths,
             int32_t *children)
{
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t length = 0;
        int32_t node = nodes[i], child;
        do {
            const float *x = table + node * vocabulary;
            const int64_t token = draw_token(x, vocabulary, temperatures[i], uniforms[i][length], work, 0);
            trie->stamp[node] = clock;
            tokens[total + length] = (int32_t)token, logprobs[total + length] = x[token], at[total + length] = node;
            child = child_of(trie, node, (int32_t)token);
            length++;
            if (ends[i][token] || length >= rooms[i]) break;
            node = child;
        } while (child && trie->memoised[child] == known);
        lengths[i] = (int32_t)length, children[i] = child, total += length;
    }
    return total;
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
