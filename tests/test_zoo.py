"""Tiny random models of the architectures that the field uses: each is computed as transformers
computes it, in the engine and in training, past every window; or it is refused by its name.
"""

import asyncio

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from alphazero_llm_trainer.config.sections import EngineConfig
from alphazero_llm_trainer.engine import masks, miniature
from alphazero_llm_trainer.engine.device import tell_once
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.last_layer import LastLayer
from alphazero_llm_trainer.engine.masks import FULL
from alphazero_llm_trainer.engine.miniature import check_forward, randomise
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.training.critic import Critic
from alphazero_llm_trainer.training.critic_data import Example, State, state_rows
from alphazero_llm_trainer.training.critic_run import sequence_classifier
from alphazero_llm_trainer.training.packing import plan
from alphazero_llm_trainer.training.rows import TrainRow
from alphazero_llm_trainer.training.scoring import TOGETHER, Scorer, check_packs, computed, packs

from support import STEP_ENDS  # isort: skip

CLOSE = 1e-4  # nats
WINDOW, LENGTH, CONTEXT = 7, 40, 48
PROMPT = 5
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", FULL, "sliding_attention"]}

WORDS = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
OLDER = {
    **WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
SHAPE = {**OLDER, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
GPT2 = {**WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48}
EYE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
}


def longrope(length):
    """Rotary factors that change where a sequence has more than `length` tokens."""
    rope = {"rope_type": "longrope", "long_factor": [4.0, 3.0, 2.0, 1.0], "short_factor": [1.0] * 4}
    return {**SHAPE, "rope_scaling": rope, "original_max_position_embeddings": length}


# name: model type and configuration
RIGHT = {
    "llama": ("llama", SHAPE),
    "qwen2": ("qwen2", SHAPE),
    "qwen2 with a window": ("qwen2", {**SHAPE, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("qwen3", SHAPE),
    "smollm3": ("smollm3", {**SHAPE, "no_rope_layers": [1, 0, 1]}),
    "mistral": ("mistral", {**SHAPE, "sliding_window": WINDOW}),
    "mixtral": ("mixtral", {**SHAPE, **EXPERTS, "sliding_window": WINDOW}),
    "ministral": ("ministral", {**SHAPE, **MIXED}),
    "gemma": ("gemma", SHAPE),
    "gemma2": ("gemma2", {**SHAPE, **MIXED, "final_logit_softcapping": 1.0}),
    "gemma3_text": ("gemma3_text", {**SHAPE, **MIXED}),
    "phi": ("phi", OLDER),
    "phi3 with a window": ("phi3", {**SHAPE, "sliding_window": WINDOW}),
    "phi3 within its factors' length": ("phi3", longrope(CONTEXT)),
    "phimoe": ("phimoe", {**SHAPE, **EXPERTS, "sliding_window": WINDOW}),
    "olmo2": ("olmo2", SHAPE),
    "olmo3": ("olmo3", {**SHAPE, **MIXED}),
    "granite": ("granite", {**SHAPE, "logits_scaling": 0.3, "embedding_multiplier": 2.0, "residual_multiplier": 0.5}),
    "cohere": ("cohere", {**SHAPE, "logit_scale": 0.3}),
    "cohere2": ("cohere2", {**SHAPE, **MIXED, "logit_scale": 0.3}),
    "starcoder2": ("starcoder2", {**SHAPE, "sliding_window": WINDOW}),
    "stablelm": ("stablelm", SHAPE),
    "gpt2": ("gpt2", GPT2),
    "gpt_neox": ("gpt_neox", OLDER),
    "gptj": ("gptj", {**GPT2, "rotary_dim": 4}),
    "gpt_bigcode": ("gpt_bigcode", {**GPT2, "multi_query": True}),
    "opt": ("opt", {**OLDER, "ffn_dim": 48, "word_embed_proj_dim": 16}),
    "qwen2_moe": ("qwen2_moe", {**SHAPE, **EXPERTS}),
    "qwen3_moe": ("qwen3_moe", {**SHAPE, **EXPERTS, "use_sliding_window": True, "sliding_window": WINDOW}),
    "gpt_oss": ("gpt_oss", {**SHAPE, **EXPERTS, **MIXED}),
    "falcon with rotary positions": ("falcon", {**OLDER, "multi_query": True, "new_decoder_architecture": False}),
    "falcon 40b": ("falcon", {**OLDER, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "exaone4": ("exaone4", {**SHAPE, **MIXED}),
    "glm4": ("glm4", SHAPE),
    "gemma3 with eyes": ("gemma3", {"text_config": {**SHAPE, **MIXED}, "vision_config": EYE}),
}  # fmt: skip
# Right in the engine, and in training row by row alone: a token's place in a packed row says how
# far it is from another.
FLAT = {"mpt": ("mpt", {**WORDS, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64})}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 4,
}
DEEPSEEK = {
    **LATENT,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
}
MAMBA = {**WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "conv_kernel": 4}
MAMBA2 = {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 1, "expand": 2, "chunk_size": 8}
BAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "attn_layer_indices": [1],
}
LINEAR = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
HYBRID = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_experts": 2,
    "use_mamba_kernels": False,
    "mamba_d_state": 8,
}
NEO = {
    **WORDS,
    "window_size": 8,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "max_position_embeddings": 64,
}
REFUSED = {
    "bert": ("bert", OLDER),
    "bloom": ("bloom", {**WORDS, "hidden_size": 32, "n_head": 4, "n_layer": 2}),
    "falcon with alibi": ("falcon", {**OLDER, "alibi": True, "multi_query": False, "new_decoder_architecture": False}),
    "gpt_neo": ("gpt_neo", {**NEO, "attention_types": [[["global", "local"], 1]]}),
    "deepseek_v3": ("deepseek_v3", {**OLDER, "num_key_value_heads": 4, **DEEPSEEK, "first_k_dense_replace": 1}),
    "llama4_text": ("llama4_text", {**SHAPE, **EXPERTS, "attention_chunk_size": 8, "intermediate_size_mlp": 48}),
    "mamba": ("mamba", MAMBA),
    "mamba2": ("mamba2", MAMBA2),
    "jamba": ("jamba", {**OLDER, "num_key_value_heads": 2, **HYBRID}),
    "bamba": ("bamba", {**OLDER, "num_key_value_heads": 2, **BAMBA}),
    "lfm2": ("lfm2", {**SHAPE, "layer_types": ["conv", FULL, "conv"], "conv_L_cache": 3}),
    "qwen3_next": ("qwen3_next", {**SHAPE, **EXPERTS, **LINEAR, "layer_types": ["linear_attention", FULL, FULL]}),
    "qwen3_5_text": ("qwen3_5_text", {**SHAPE, **LINEAR, "layer_types": ["linear_attention", FULL, FULL]}),
    "recurrent_gemma": ("recurrent_gemma", {**SHAPE, "attention_window_size": WINDOW, "lru_width": 32}),
    "phi3 past its factors' length": ("phi3", longrope(16)),
}  # fmt: skip
PACKED = {"deepseek_v3", "llama4_text"}  # that training packs none the less
# BERT sees what comes after; the longest row of a batch decides which factors all have.
UNTRAINED = {"bert", "phi3 past its factors' length"}


def made(name, zoo):
    """A random model whose tokens tell much of each other."""
    kind, shape = zoo[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**shape)).float().eval()
    randomise(model)
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
    apart, made = plan(some, None), plan(some, TOGETHER if pack else None)
    assert (made.tokens < apart.tokens) == pack
    with torch.no_grad():
        return computed(Scorer(model), model.config, made, dtype, "cpu").logprobs


def check_training(model, pack):
    for row, got in zip(words(), trained_logprobs(model, words(), pack), strict=True):
        right = own(model, row)
        torch.testing.assert_close(got[: len(right)], right, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("name", RIGHT)
def test_engine_and_training_equal_transformers(name):
    model = made(name, RIGHT)
    check_engine(model)
    check_training(model, pack=False)
    assert packs(model)
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
    assert not packs(model)
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
        assert packs(model) == (name in PACKED)


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


@pytest.mark.parametrize("name", ["qwen2 with a window", "mistral", "gemma2", "gpt_oss"])
def test_a_window_that_is_ignored_is_seen(name, monkeypatch):
    model = made(name, RIGHT)
    monkeypatch.setattr(masks, "spans", lambda config: {FULL: None})
    monkeypatch.setattr(miniature, "_tried", {})
    with pytest.raises(
        EngineError, match=f"a {type(model).__name__} .*nats from transformers' own"
    ):
        check_forward(model, CONTEXT)
    assert not packs(model)


@pytest.mark.parametrize("name", ["gemma2", "granite", "cohere"])
def test_a_scale_of_logits_that_is_left_out_is_seen(name, monkeypatch):
    model = made(name, RIGHT)
    monkeypatch.setattr(LastLayer, "__call__", lambda self, hidden: self.model.lm_head(hidden))
    monkeypatch.setattr(miniature, "_tried", {})
    with pytest.raises(
        EngineError, match=f"a {type(model).__name__} .*nats from transformers' own"
    ):
        check_forward(model, CONTEXT)
    assert not packs(model)


def test_a_window_that_no_sequence_exceeds_is_no_reason():
    """GPT-Neo's local layers are right as long as they see all."""
    model = made("gpt_neo", REFUSED)
    model.config.window_size = 256
    check_forward(model, CONTEXT)


@pytest.mark.parametrize("name", ["qwen2 with a window", "mistral", "gemma2"])
def test_critics_see_states_past_the_window(name):
    """A network's numbers at states of a tree are those of each state's own forward."""
    policy, rows = made(name, RIGHT), words()
    critic = Critic(policy, extra_layers=0, start=0.0)
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


def test_a_kind_without_a_sequence_classifier_is_refused_for_a_prm():
    with pytest.raises(
        ConfigError, match="no sequence classifier of granite models: use another student"
    ):
        sequence_classifier(Critic(made("granite", RIGHT)))
