"""Packed rows against rows of their own: the same log-probabilities, entropies and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny_llama

from alphazero_llm_trainer.training.packing import Work, plan
from alphazero_llm_trainer.training.rows import TrainRow
from alphazero_llm_trainer.training.scoring import Scorer, computed

FREE_PAIRS = Work(1.0, 0.0)  # never splits a trie
DEAR_PAIRS = Work(1.0, 10.0)  # splits where it can

token = st.integers(2, 5)  # few tokens: much is shared
ids = st.lists(token, min_size=1, max_size=5)
batch = st.lists(st.tuples(ids, ids), min_size=1, max_size=10)
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


def rows_of(pairs):
    return [TrainRow(tuple(prompt), tuple(response), (), ()) for prompt, response in pairs]


def by_library(model, rows):
    """Log-probabilities and entropies `[B, T]` of each row alone, by the library's own forward."""
    longest = max(len(row.completion_ids) for row in rows)
    logprobs, entropies = [], []
    for row in rows:
        logits = (
            model(input_ids=torch.tensor([[*row.prompt_ids, *row.completion_ids]]))
            .logits[0]
            .log_softmax(-1)
        )
        logits, labels = logits[len(row.prompt_ids) - 1 : -1], torch.tensor(row.completion_ids)
        pad = (0, longest - len(labels))
        logprobs.append(torch.nn.functional.pad(logits.gather(1, labels[:, None])[:, 0], pad))
        entropies.append(torch.nn.functional.pad(-(logits.exp() * logits).sum(-1), pad))
    return torch.stack(logprobs), torch.stack(entropies)


def by_training(model, rows, work):
    scores = computed(Scorer(model), model.config, plan(rows, work), torch.float32, "cpu")
    return scores.logprobs, scores.entropy


@pytest.fixture(scope="module")
def model():
    return tiny_llama(2)


@pytest.mark.parametrize("work", [None, FREE_PAIRS, DEAR_PAIRS])
def test_gradients_equal_the_librarys(model, work):
    rows, found = rows_of(ROWS), []
    weights = torch.randn(len(rows), 5, generator=torch.Generator().manual_seed(0))
    for logprobs, entropies in (by_library(model, rows), by_training(model, rows, work)):
        model.zero_grad()
        (weights * logprobs.exp()).sum().backward()
        found.append(
            (logprobs.detach(), entropies.detach(), *(p.grad.clone() for p in model.parameters()))
        )
    assert max(grad.abs().max() for grad in found[0][2:]) > 1e-2
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(batch, st.sampled_from([None, FREE_PAIRS, DEAR_PAIRS]))
def test_any_batch_has_the_librarys_log_probabilities(model, pairs, work):
    rows = rows_of(pairs)
    with torch.no_grad():
        for found, expected in zip(
            by_training(model, rows, work), by_library(model, rows), strict=True
        ):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@given(batch)
def test_each_beginning_is_computed_once_and_predicted_once(pairs):
    made = plan(rows_of(pairs), FREE_PAIRS)
    whole = [((*prompt, *response), len(prompt)) for prompt, response in pairs]
    beginnings = {tuple(ids[:end]) for ids, _ in whole for end in range(1, len(ids) + 1)}
    assert sum(len(trie.tokens) for one in made.forwards for trie in one.tries) == len(beginnings)
    predicted = {tuple(ids[:end]) for ids, start in whole for end in range(start + 1, len(ids) + 1)}
    assert sum(len(one.labels) for one in made.forwards) == len(predicted)
