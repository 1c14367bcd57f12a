"""Packed rows against rows of their own: the same log-probabilities, entropies and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny_llama
from tables import table
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import BlockMask as Blocks

from alphazero_llm_trainer.engine.device import tell_once
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.learning.critic_network import CriticNetwork
from alphazero_llm_trainer.learning.packing import Work, plan_rows
from alphazero_llm_trainer.learning.scoring import Scorer, choose_packing, score_plan
from alphazero_llm_trainer.learning.train_row import TrainRow

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
    scores = score_plan(Scorer(model), model.config, plan_rows(rows, work), torch.float32, "cpu")
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


def test_flex_attention_has_the_dense_masks_gradients(monkeypatch):
    """Without its kernel: torch's own formula of it, which a CPU computes when it isn't checked."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    some = torch.Generator().manual_seed(2)
    words = torch.randint(5, 50, (6, 100), generator=some).tolist()
    # Three blocks of 128 tokens: some are seen wholly, some in part, some not at all.
    rows, model = rows_of([(words[0][:70], each[:60]) for each in words]), tiny_llama(2)
    weights, found = torch.randn(6, 60, generator=some), []
    for attention in ("sdpa", "flex_attention"):
        model.set_attn_implementation(attention)
        [made] = plan_rows(rows, FREE_PAIRS).forwards
        blocks = isinstance(
            made.inputs(model.config, torch.float32, "cpu")["attention_mask"], Blocks
        )
        assert blocks == (attention == "flex_attention") and made.width > 3 * 128
        model.zero_grad()
        with torch.compiler.set_stance("force_eager"):
            logprobs, entropies = by_training(model, rows, FREE_PAIRS)
            (weights * logprobs).sum().backward()
        found.append((logprobs.detach(), entropies, *(p.grad.clone() for p in model.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention, wanted, device, expected, said", table("rows")["packing"])
def test_what_packs_where(attention, wanted, device, expected, said, caplog):
    tell_once.cache_clear()
    policy = tiny_llama(2)
    policy.config._attn_implementation = attention
    for _ in range(2):
        assert choose_packing(policy, wanted, torch.device(device)) == expected
    assert len(caplog.messages) == (said is not None)
    assert said is None or (
        said in caplog.text and "attn_implementation flex_attent" in caplog.text
    )


def test_flash_attention_is_refused_where_rows_are_to_be_packed():
    policy = tiny_llama(2)
    policy.config._attn_implementation = "flash_attention_2"
    with pytest.raises(
        ConfigError, match=r"train\.pack is on and flash_attention_2 takes no masks"
    ):
        choose_packing(policy, "on", torch.device("cuda"))
    # Its rows have sequences of their own, and its layers flash attention.
    critic = CriticNetwork(policy)
    assert critic.work is None and critic.config._attn_implementation == "flash_attention_2"


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
    made = plan_rows(rows_of(pairs), FREE_PAIRS)
    whole = [((*prompt, *response), len(prompt)) for prompt, response in pairs]
    beginnings = {tuple(ids[:end]) for ids, _ in whole for end in range(1, len(ids) + 1)}
    assert sum(len(trie.tokens) for one in made.forwards for trie in one.tries) == len(beginnings)
    predicted = {tuple(ids[:end]) for ids, start in whole for end in range(start + 1, len(ids) + 1)}
    assert sum(len(one.labels) for one in made.forwards) == len(predicted)
