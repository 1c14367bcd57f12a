"""Packed rows against the flat batch: the same log-probabilities, entropies and gradients, through TRL's own forward."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny_llama
from trl.trainer import add_fused_lm_head

from alphazero_llm_trainer.training.packing import IGNORED, Work, plan, spread, tensors, together

FREE_PAIRS = Work(1.0, 0.0)  # never splits a trie
DEAR_PAIRS = Work(1.0, 10.0)  # splits where it can

token = st.integers(2, 5)  # few tokens: much is shared
prompt = st.lists(token, min_size=1, max_size=4)
completion = st.lists(token, min_size=1, max_size=6)
batch = st.lists(st.tuples(prompt, completion), min_size=1, max_size=10)
ROWS = [
    ([7, 8, 9], [10, 11, 12, 13]),
    ([7, 8, 9], [10, 11, 12, 13]),  # a duplicate
    ([7, 8, 9], [10, 11]),  # the beginning of another row
    ([7, 8, 9], [10, 11, 14]),
    ([7, 8, 9], [10, 11, 15, 16, 17]),
    ([7, 8, 9], [20]),  # branches at the prompt's end
    ([7, 8, 9, 10], [11, 12, 13]),  # all tokens as in the first row, another prompt
    ([5], [6, 7]),  # a prompt of one token
    ([30, 31, 32, 33, 34, 35], [36, 37, 38]),
]


def flat(model, rows):
    """Log-probabilities and entropies `[B, T]` of each row alone, by the library's own forward."""
    longest = max(len(c) for _, c in rows)
    logps, entropies = [], []
    for start, rest in rows:
        logits = model(input_ids=torch.tensor([start + rest])).logits[0].log_softmax(-1)[len(start) - 1 : -1]
        pad = (0, longest - len(rest))
        logps.append(torch.nn.functional.pad(logits.gather(1, torch.tensor(rest)[:, None])[:, 0], pad))
        entropies.append(torch.nn.functional.pad(-(logits.exp() * logits).sum(-1), pad))
    return torch.stack(logps), torch.stack(entropies)


def packed(model, rows, work=FREE_PAIRS):
    made = plan([np.array(p) for p, _ in rows], [np.array(c) for _, c in rows], max(len(c) for _, c in rows), work)
    outputs = [
        model(**tensors(one, torch.float32, torch.device("cpu"), model.config), fused_lm_head=True)
        for one in made.batches
    ]
    return (
        spread([out.log_probs for out in outputs], made.where),
        spread([out.entropy for out in outputs], made.where),
        made,
    )


@pytest.fixture(scope="module")
def model():
    model = tiny_llama(2)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


@pytest.mark.parametrize("work", [FREE_PAIRS, DEAR_PAIRS])
def test_gradients_equal_the_flat_batchs(model, work):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(len(ROWS), 5, generator=generator)
    found = []
    for way in (lambda: flat(model, ROWS), lambda: packed(model, ROWS, work)[:2]):
        model.zero_grad()
        logps, entropies = way()
        (weights * (logps.exp() + 0.3 * entropies)).sum().backward()
        found.append((logps.detach(), entropies.detach(), [p.grad.clone() for p in model.parameters()]))
    (a, ea, ga), (b, eb, gb) = found
    assert torch.allclose(a, b, atol=1e-5) and torch.allclose(ea, eb, atol=1e-5)
    largest = max(g.abs().max().item() for g in ga)
    assert largest > 1e-2
    for one, other in zip(ga, gb, strict=True):
        assert (one - other).abs().max() < 1e-5 * max(largest, 1.0)


@settings(max_examples=40, deadline=None)
@given(batch, st.sampled_from([FREE_PAIRS, DEAR_PAIRS]))
def test_any_batch_has_the_flat_log_probabilities(model, rows, work):
    with torch.no_grad():
        expected, entropies = flat(model, rows)
        logps, other, made = packed(model, rows, work)
    assert torch.allclose(logps, expected, atol=1e-5)
    assert torch.allclose(other, entropies, atol=1e-5)
    assert [len(c) for _, c in rows] == (made.where >= 0).sum(1).tolist()


@given(batch)
def test_each_prefix_is_computed_once(rows):
    made = plan([np.array(p) for p, _ in rows], [np.array(c) for _, c in rows], 6, FREE_PAIRS)
    tries = [trie for batch in made.batches for trie in batch]
    prefixes = {(tuple(p), *c[:end]) for p, c in rows for end in range(1, len(c) + 1)}
    prompts = {tuple(p) for p, _ in rows}
    assert len(tries) == len(prompts)
    twins = sum(len(trie.twins) for trie in tries)
    assert sum(map(len, tries)) == len(prefixes) + sum(map(len, prompts)) + twins
    # Each prefix is a label once.
    assert sum(label != IGNORED for trie in tries for label in trie.labels) == len(prefixes)


@given(st.integers(1, 4), st.data())
def test_together_is_an_order_that_keeps_groups(batches, data):
    size = data.draw(st.integers(1, 6))
    groups = data.draw(st.lists(st.integers(0, 5), min_size=batches * size, max_size=batches * size))
    order = together(groups, batches)
    assert sorted(order) == list(range(len(groups)))
    whole = [groups[row] for row in order if groups.count(groups[row]) > 1]
    assert sum(a != b for a, b in pairwise(whole)) == max(len(set(whole)) - 1, 0)
    alone = [sum(groups.count(groups[r]) == 1 for r in order[i * size : (i + 1) * size]) for i in range(batches)]
    assert max(alone) - min(alone) <= 1
