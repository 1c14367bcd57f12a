"""Tiny random models of the architectures that the field uses: each is computed as transformers
computes it, in the engine and in training, past every window; or it is refused by its name.
"""

import asyncio
from copy import deepcopy

import pytest
import torch
from tables import table
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from alphazero_llm_trainer.config.sections import EngineConfig
from alphazero_llm_trainer.engine import masks, miniature
from alphazero_llm_trainer.engine.device import tell_once
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.last_layer import LastLayer
from alphazero_llm_trainer.engine.masks import FULL
from alphazero_llm_trainer.engine.miniature import check_forward, randomise_weights
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.learning.critic_network import CriticNetwork
from alphazero_llm_trainer.learning.packing import plan_rows
from alphazero_llm_trainer.learning.scoring import (
    TOGETHER,
    Scorer,
    can_pack,
    check_packs,
    score_plan,
)
from alphazero_llm_trainer.learning.train_row import TrainRow
from alphazero_llm_trainer.runs.critic_data import Example, State, state_rows

from support import STEP_ENDS  # isort: skip

CLOSE = 1e-4  # nats
LENGTH, CONTEXT = 40, 48
PROMPT = 5
ZOO = table("zoo")
RIGHT, FLAT, REFUSED = ZOO["right"], ZOO["flat"], ZOO["refused"]
PACKED = {"deepseek_v3", "llama4_text"}  # that training packs none the less
# BERT sees what comes after; the longest row of a batch decides which factors all have.
UNTRAINED = {"bert", "phi3 past its factors' length"}


def made(name, zoo):
    """A random model whose tokens tell much of each other."""
    kind, shape = deepcopy(zoo[name])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**shape)).float().eval()
    randomise_weights(model)
    return model


def words():
    """Three sequences: two go on from a common beginning after their prompt, one is short."""
    some = torch.randint(1, 60, (3, LENGTH), generator=torch.Generator().manual_seed(3))
    some[1, : PROMPT + 6] = some[0, : PROMPT + 6]
    some[2, :PROMPT] = some[0, :PROMPT]
    return [
        tuple(some[0].tolist()),
        tuple(some[1, : LENGTH - 3].tolist()),
        tuple(some[2, :12].tolist()),
    ]


@torch.no_grad()
def own(model, tokens, start=PROMPT):
    """Log-probabilities of the tokens from `start` on by the model's own forward and nothing
    else.
    """
    rows = (
        model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().log_softmax(-1)
    )
    return rows[start - 1 : -1].gather(1, torch.tensor(tokens[start:])[:, None])[:, 0]


def engine_of(model):
    limits = {
        "max_batch": 8,
        "max_context": CONTEXT,
        "cache_tokens": 4096,
        "native": "off",
    }
    return InProcessEngine(model, eos_id=-1, step_ends=STEP_ENDS, settings=EngineConfig(**limits))


def check_engine(model):
    engine, rows = engine_of(model), words()

    async def ask():
        scored = await engine.score([(row[:PROMPT], row[PROMPT:]) for row in rows])
        return scored, await engine.generate(
            [GenerateRequest(rows[0][:9], n=3, max_new_tokens=30, seed=1)]
        )

    scored, [drawn] = asyncio.run(ask())
    for row, got in zip(rows, scored, strict=True):
        torch.testing.assert_close(torch.tensor(got), own(model, row), rtol=0, atol=CLOSE)
    for sample in drawn:
        right = own(model, rows[0][:9] + sample.token_ids, 9)
        torch.testing.assert_close(torch.tensor(sample.logprobs), right, rtol=0, atol=CLOSE)


def trained_logprobs(model, rows, pack, dtype=torch.float32):
    """Log-probabilities `[B, T]` of the rows' responses as training computes them."""
    some = [TrainRow(row[:PROMPT], row[PROMPT:], (), ()) for row in rows]
    apart, made = plan_rows(some, None), plan_rows(some, TOGETHER if pack else None)
    assert (made.tokens < apart.tokens) == pack
    with torch.no_grad():
        return score_plan(Scorer(model), model.config, made, dtype, "cpu").logprobs


def check_training(model, pack):
    for row, got in zip(words(), trained_logprobs(model, words(), pack), strict=True):
        right = own(model, row)
        torch.testing.assert_close(got[: len(right)], right, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("name", RIGHT)
def test_engine_and_training_equal_transformers(name):
    model = made(name, RIGHT)
    check_engine(model)
    check_training(model, pack=False)
    assert can_pack(model)
    check_training(model, pack=True)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gemma3_text", "llama4_text"])
def test_flex_attention_sees_what_the_models_own_layers_see(name, caplog):
    """Packed rows by its blocks, windows and chunks too; the engine computes in sdpa, and says
    so.
    """
    tell_once.cache_clear()
    model = made(name, RIGHT if name in RIGHT else REFUSED)
    right = [own(model, row) for row in words()]
    model.set_attn_implementation("flex_attention")
    with torch.compiler.set_stance("force_eager"):
        packed_rows = trained_logprobs(model, words(), pack=True)
        for got, expected in zip(packed_rows, right, strict=True):
            torch.testing.assert_close(got[: len(expected)], expected, rtol=0, atol=CLOSE)
        if name in RIGHT:
            check_engine(model)
            assert "attn_implementation is flex_attention in training alone" in caplog.text
    assert model.config._attn_implementation == "flex_attention"


@pytest.mark.parametrize("name", FLAT)
def test_what_cannot_be_packed_is_trained_row_by_row(name):
    model = made(name, FLAT)
    check_engine(model)
    check_training(model, pack=False)
    assert not can_pack(model)
    with pytest.raises(
        ConfigError, match=f"PPO's critic needs packed rows.*{type(model).__name__}"
    ):
        check_packs(model, "PPO's critic", "set train.method=grpo")


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_a_sentence_with_the_architectures_name(name):
    model = made(name, REFUSED)
    with pytest.raises(
        EngineError, match=f"a {type(model).__name__} can't be searched by the in-process engine"
    ) as caught:
        engine_of(model)
    assert "\n" not in str(caught.value)
    if name not in UNTRAINED:  # another engine may search it: what is trained is right
        check_training(model, pack=False)
        assert can_pack(model) == (name in PACKED)


@pytest.mark.parametrize("name", ["mistral", "gpt_oss", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_models_own(name, dtype):
    """To what its own forward loses against fp32: windows past the least number of float16 are
    windows still.
    """
    model = made(name, RIGHT).to(dtype)
    exact, rows = made(name, RIGHT), words()
    engine = engine_of(model)
    assert engine.tree.dtype == dtype
    scored = asyncio.run(engine.score([(row[:PROMPT], row[PROMPT:]) for row in rows]))
    packed_rows = trained_logprobs(model, rows, True, dtype)
    for row, got, trained in zip(rows, scored, packed_rows, strict=True):
        right = own(exact, row)
        lost = (own(model, row) - right).abs().mean()
        for found in (torch.tensor(got), trained[: len(right)]):
            assert (found - right).abs().mean() <= 2 * lost + 1e-3


# -- that the start-up check sees what it is for ---------------------------------------------------


NO_WINDOW = masks, "layer_spans", lambda config: {FULL: None}
NO_SCALE = LastLayer, "__call__", lambda self, hidden: self.model.lm_head(hidden)
FAULTS = {"qwen2 with a window": NO_WINDOW, "mistral": NO_WINDOW, "gpt_oss": NO_WINDOW}
FAULTS |= {"gemma2": NO_SCALE, "granite": NO_SCALE, "cohere": NO_SCALE}


@pytest.mark.parametrize("name", FAULTS)
def test_a_window_or_a_scale_of_logits_that_is_left_out_is_seen(name, monkeypatch):
    model = made(name, RIGHT)
    monkeypatch.setattr(*FAULTS[name])
    monkeypatch.setattr(miniature, "_tried", {})
    with pytest.raises(EngineError, match=f"a {type(model).__name__} "):
        check_forward(model, CONTEXT)
    assert not can_pack(model)


def test_a_window_that_no_sequence_exceeds_is_no_reason():
    """GPT-Neo's local layers are right as long as they see all."""
    model = made("gpt_neo", REFUSED)
    model.config.window_size = 256
    check_forward(model, CONTEXT)


@pytest.mark.parametrize("name", ["llama", "qwen2 with a window", "mistral", "gemma2"])
def test_critics_see_states_past_the_window(name):
    """A network's numbers at states of a tree are those of each state's own forward."""
    policy, rows = made(name, RIGHT), words()
    critic = CriticNetwork(policy, extra_layers=0, start=0.0)
    torch.nn.init.normal_(critic.score.weight, generator=torch.Generator().manual_seed(0))
    states = {tuple(row[PROMPT:]): State(0.5, 1.0, 0.5) for row in rows}
    made_rows, places = state_rows(Example(tuple(rows[0][:PROMPT]), states))
    numbers = critic(made_rows).detach()
    for row in rows:
        hidden = policy.base_model(torch.tensor([row])).last_hidden_state[0, -1]
        expected = (hidden @ critic.score.weight[0]).detach()
        torch.testing.assert_close(
            numbers[places[tuple(row[PROMPT:])]], expected, rtol=0, atol=CLOSE
        )
