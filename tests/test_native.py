"""The compiled forward: exact for every shape, the same bits in any company, and transformers where it can't be built."""

from __future__ import annotations

import copy
import faulthandler
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig
from support import (
    STEP_ENDS,
    VOCABULARY,
    check_tree,
    library_logprobs,
    library_scores,
    run,
    tiny_engine,
    tiny_llama,
)
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import EngineConfig
from alphazero_llm_trainer.engine import inprocess, kernel_build, native
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.library_forward import LibraryForward
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.engine.queue_rows import DecodingRow
from alphazero_llm_trainer.engine.sampling import Sampler
from alphazero_llm_trainer.policy.adapters import AdapterView

needs_compiler = pytest.mark.skipif(native.library() is None, reason="no C compiler here")
CLOSE = 1e-5


KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def llama(kind: str = "llama", **shape: Any) -> Any:
    """A random fp32 model, far from uniform. Default: a Llama, sizes that are multiples of no vector."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {
        "vocab_size": 77,
        "hidden_size": 40,
        "intermediate_size": 51,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "attn_implementation": "sdpa",
    }
    of_shape, of_model = KINDS[kind]
    model = of_model(of_shape(**{**sizes, **shape})).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # ones tell nothing, nor do biases of zeros
                weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                weight.normal_(0, 0.5)
    return model


def engine_of(model: LlamaForCausalLM, **settings: Any) -> InProcessEngine:
    limits = {"max_batch": 32, "max_context": 400, "cache_tokens": 8192, **settings}
    return InProcessEngine(model, eos_id=-1, step_ends=STEP_ENDS, settings=EngineConfig(**limits))


SHAPES: dict[str, dict[str, Any]] = {
    "odd sizes": {},
    "one vector a head": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4},
    "heads of 32": {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 3},
    "heads of 32, grouped": {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 2},
    "heads of 64, one key head": {
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
    },
    "heads of 128": {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 128},
    "heads of 6, untied": {"hidden_size": 24, "num_attention_heads": 4, "tie_word_embeddings": False},
    "tied": {"tie_word_embeddings": True},
    "qwen2": {"kind": "qwen2"},
    "qwen2, seven heads a key, tied": {
        "kind": "qwen2",
        "hidden_size": 448,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "initializer_range": 0.05,
    },
    "qwen3, heads wider than the model": {"kind": "qwen3", "head_dim": 32, "num_attention_heads": 4},
    "qwen3, tied": {"kind": "qwen3", "head_dim": 12, "tie_word_embeddings": True},
    "llama 3 positions": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


@needs_compiler
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_equals_the_librarys_forward(name: str) -> None:
    model = llama(**SHAPES[name])
    engine = engine_of(model)
    assert engine.forward.name == "native"
    rng = Random(1)
    # Longer than a chunk of rows and than several vectors of keys; and short ones beside it.
    lengths = [(150, 40), (1, 1), (3, 17), (16, 16), (33, 5), (2, 31)]
    pairs = [tuple(tuple(rng.randrange(77) for _ in range(n)) for n in both) for both in lengths]
    found = run(lambda: engine.score(pairs))
    for pair, values in zip(pairs, found, strict=True):
        assert values == pytest.approx(library_scores(model, *pair), abs=CLOSE)
    [[one]] = run(lambda: engine.generate([GenerateRequest(pairs[0][0], max_new_tokens=50, top_k=5, seed=4)]))
    rows = library_logprobs(model, pairs[0][0] + one.token_ids)[149:-1]
    assert one.logprobs == pytest.approx(rows[range(50), one.token_ids].tolist(), abs=CLOSE)
    assert one.top is not None
    for row, top in zip(rows, one.top, strict=True):
        assert [value for _, value in top] == pytest.approx(row.topk(5).values.tolist(), abs=CLOSE)
    weight = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    engine.set_value(weight, 0.5)
    [value] = run(lambda: engine.values([pairs[0][0]]))
    with torch.inference_mode():
        hidden = model.model(input_ids=torch.tensor([pairs[0][0]])).last_hidden_state[0, -1]
    assert value == pytest.approx(float(torch.sigmoid(hidden @ weight + 0.5)), abs=CLOSE)


@needs_compiler
@pytest.mark.parametrize("name", ["odd sizes", "heads of 32, grouped", "qwen2", "qwen3, heads wider than the model"])
def test_results_are_the_same_bits_in_any_company(name: str) -> None:
    """Alone, with 40 others, beside prompts of other lengths, token by token, in batches of 1, 3 and 64: equal floats."""
    model, rng = llama(**SHAPES[name]), Random(2)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(77) for _ in range(n))

    requests = [GenerateRequest(tokens(rng.randint(1, 60)), n=2, max_new_tokens=12, seed=i) for i in range(20)]
    requests += [GenerateRequest(requests[0].prompt_ids[:1] + tokens(9), max_new_tokens=20, seed=i) for i in range(20)]
    head = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(1))

    def results(engine: InProcessEngine, chosen: list[GenerateRequest]) -> list[Any]:
        engine.set_value(head)
        groups = run(lambda: engine.generate(chosen))
        ends = [
            request.prompt_ids + one.token_ids for request, group in zip(chosen, groups, strict=True) for one in group
        ]
        values = iter(run(lambda: engine.values(ends)))
        return [[(one.token_ids, one.logprobs, next(values)) for one in group] for group in groups]

    alone = [results(engine_of(model), [request])[0] for request in requests]
    for batch in (1, 3, 64):
        assert results(engine_of(model, max_batch=batch), requests) == alone
    assert results(engine_of(model), requests[::-1])[::-1] == alone
    # The same tokens scored in one piece, where each was computed by itself before.
    for request, group in list(zip(requests, alone, strict=True))[::5]:
        token_ids, logprobs, _ = group[0]
        fresh = engine_of(model)
        assert tuple(run(lambda: fresh.score([(request.prompt_ids, token_ids)]))[0]) == logprobs


@needs_compiler
def test_results_are_the_same_bits_after_eviction_and_reuse_of_nodes() -> None:
    """A node's number is used again for another token: nothing of the old one may be read."""
    model, rng = llama(), Random(5)
    small = engine_of(model, max_context=40, cache_tokens=0, max_batch=4)
    for i in range(40):
        request = GenerateRequest(tuple(rng.randrange(77) for _ in range(24)), n=3, max_new_tokens=12, seed=i)
        [found] = run(lambda: small.generate([request]))
        [fresh] = run(lambda: engine_of(model, max_context=40).generate([request]))
        assert [(one.token_ids, one.logprobs) for one in found] == [(one.token_ids, one.logprobs) for one in fresh]
        check_tree(small.tree)
    assert small.tree.used() < 160 < small.stats.computed_tokens  # nodes were dropped


@needs_compiler
def test_a_prefix_that_several_rows_need_is_computed_once_in_one_call() -> None:
    engine = engine_of(llama())
    prefix = tuple(range(5, 45))
    requests = [GenerateRequest((*prefix, i), max_new_tokens=1, seed=i) for i in range(10)]
    run(lambda: engine.generate(requests))
    assert (engine.stats.forwards, engine.stats.computed_tokens) == (1, 50)


@needs_compiler
def test_weights_are_packed_again_by_set_policy_and_only_then() -> None:
    model, other = tiny_llama(), tiny_llama(seed=1)
    engine = tiny_engine(model)
    pair = ((5, 6, 7), (8, 9))
    before = run(lambda: engine.score([pair]))
    model.load_state_dict(other.state_dict())
    engine.tree.clear()
    assert run(lambda: engine.score([pair])) == before  # a copy: half-trained weights are never mixed in
    engine.set_policy(None, version=1)
    assert run(lambda: engine.score([pair]))[0] == pytest.approx(library_scores(other, *pair), abs=CLOSE)


# -- where it doesn't fit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_working_compiler_transformers_computes_the_same(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = GenerateRequest((5, 6, 7), n=4, max_new_tokens=20, seed=1, top_k=3)
    [expected] = run(lambda: tiny_engine().generate([request]))
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(native, "kernels", kernel_build.load_kernels)
    library = native.library.__wrapped__
    for module in (native, inprocess):
        monkeypatch.setattr(module, "library", library)
    assert native.library() is None
    engine = tiny_engine()
    assert isinstance(engine.forward, LibraryForward)
    [found] = run(lambda: engine.generate([request]))
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert [one.logprobs for one in found] == [pytest.approx(one.logprobs, abs=CLOSE) for one in expected]
    assert [[[token for token, _ in top] for top in one.top or ()] for one in found] == [
        [[token for token, _ in top] for top in one.top or ()] for one in expected
    ]


def test_off_is_off() -> None:
    assert tiny_engine(native="off").forward.name == "transformers"
    assert load_config(overrides=["engine.native=off"]).engine.native == "off"  # YAML's `off` is false


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: llama(attention_bias=True), "no biases but those of Qwen2"),
        (lambda: llama("qwen3", attention_bias=True), "no biases but those of Qwen2"),
        (lambda: llama("qwen2", use_sliding_window=True, max_window_layers=1), "no sliding window"),
        (lambda: llama(hidden_act="gelu"), "no gelu"),
        (
            lambda: llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "rotary .* dynamic",
        ),
        (lambda: llama().double(), "float32, bfloat16 or float16 on the CPU"),
        (lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=4)), "llama, qwen2, qwen3 and not gpt2"),
    ],
)
def test_what_the_kernels_dont_compute_is_said_with_the_reason(
    model: Callable[[], Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    inprocess.tell_once.cache_clear()
    made = model().eval()
    for _ in range(2):
        assert isinstance(engine_of(made).forward, LibraryForward)
    [said] = caplog.messages
    assert re.search(reason, said)


def with_lora(model: Any, rank: int = 5) -> Any:
    """The model with a random adapter on its seven projections, active."""
    model.add_adapter(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=r".*_proj"), "default")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.1)
    return model.eval()


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_are_computed_and_the_base_is_a_view(kind: str) -> None:
    rng = Random(1)
    pairs = [tuple(tuple(rng.randrange(77) for _ in range(n)) for n in both) for both in ((150, 40), (1, 1), (33, 5))]
    base, model = llama(kind), with_lora(llama(kind))
    adapted, bare, plain = (engine_of(one) for one in (model, AdapterView(model, None), base))
    found, before, expected = (run(lambda engine=engine: engine.score(pairs)) for engine in (adapted, bare, plain))
    assert before == expected and all(engine.forward.name == "native" for engine in (adapted, bare))
    for pair, values in zip(pairs, found, strict=True):
        assert values == pytest.approx(library_scores(model, *pair), abs=CLOSE)
    assert max(abs(a - b) for a, b in zip(found[0], before[0], strict=True)) > 0.1
    assert run(lambda: engine_of(AdapterView(model, "default")).score(pairs[1:]))[::-1] == found[:0:-1]


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_bfloat16_are_computed_in_float32(kind: str) -> None:
    half, pair = llama(kind).bfloat16(), ((3, 4, 5), (6, 7, 8, 9))
    engines = [engine_of(model) for model in (half, copy.deepcopy(half).float())]
    assert engines[0].tree.states.dtype == torch.float32
    first, second = (run(lambda engine=engine: engine.score([pair])) for engine in engines)
    assert first == second


# -- distributions that don't fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["auto", "off"])
def test_where_whole_distributions_dont_fit_the_likeliest_tokens_stay_free(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy walks and k <= 32 read what is kept; more than that, and draws, compute the node again."""
    monkeypatch.setattr(inprocess, "MEMO_BYTES", 0)
    model = tiny_llama()
    engine = tiny_engine(model, native=kind)
    assert engine.tree.next_logprobs is None and engine.tree.top_tokens == 32 < VOCABULARY
    greedy = GenerateRequest((5, 6, 7), max_new_tokens=30, temperature=0.0, top_k=4)
    [[first]] = run(lambda: engine.generate([greedy]))
    computed = engine.stats.computed_tokens
    assert run(lambda: engine.generate([greedy]))[0][0].token_ids == first.token_ids
    prefixes = [(5, 6, 7, *first.token_ids[:i]) for i in range(len(first.token_ids))]
    tops = run(lambda: engine.next_token_topk(prefixes, 32))
    assert engine.stats.computed_tokens == computed
    for prefix, top in zip(prefixes, tops, strict=True):
        values, ids = library_logprobs(model, prefix)[-1].topk(32)
        assert [value for _, value in top] == pytest.approx(values.tolist(), abs=CLOSE)
        assert [token for token, _ in top] == ids.tolist()
    [more] = run(lambda: engine.next_token_topk(prefixes[:1], 33))
    assert len(more) == 33 and engine.stats.computed_tokens == computed + 1
    # Greedy and drawing samples at one node: the one walks, the other waits for it to be computed.
    mixed = [greedy, GenerateRequest((5, 6, 7), n=3, max_new_tokens=12, seed=3)]
    [[walked], drawn] = run(lambda: engine.generate(mixed))
    assert walked.token_ids == first.token_ids
    for one in drawn:
        assert one.logprobs == pytest.approx(library_scores(model, (5, 6, 7), one.token_ids), abs=CLOSE)
    assert [locks for locks in engine.tree.locks if locks] == []


# -- draws --------------------------------------------------------------------------------------------------------------


@needs_compiler
def test_draws_and_top_k_in_c_are_numpys() -> None:
    rng = np.random.default_rng(7)
    table = np.log(rng.dirichlet(np.full(83, 0.3), size=30) + 1e-12).astype(np.float32)
    table[3, 40] = table[3, 50] = 0.0  # a tie: the first one wins
    rows = sorted(rng.integers(0, 30, 4000).tolist())
    temperatures = rng.choice([0.0, 0.001, 0.7, 1.0, 2.0], 4000).tolist()
    uniforms = rng.random(4000).tolist()
    ours, numpys = Sampler(native.library()), Sampler(None)
    tokens, logprobs = ours.draw(table, rows, temperatures, uniforms)
    others, others_logprobs = numpys.draw(table, rows, temperatures, uniforms)
    assert sum(a != b for a, b in zip(tokens, others, strict=True)) <= 2  # where a draw falls on a boundary
    assert logprobs == [table[row, token] for row, token in zip(rows, tokens, strict=True)]
    assert len(others_logprobs) == 4000
    for row, temperature, token in zip(rows, temperatures, tokens, strict=True):
        if temperature <= 0.001:
            assert table[row, token] >= table[row].max() - 0.02
    for k in (1, 5, 83, 200):
        assert ours.top(table, range(30), k) == numpys.top(table, range(30), k)


@needs_compiler
def test_uniform_numbers_in_c_are_numpys() -> None:
    ours, numpys = Sampler(native.library()), Sampler(None)
    for seed, index, count in [(0, 0, 1), (1, 0, 7), (2**63 - 1, 3, 8), (2**40 + 5, 200, 161), (7, 1, 4)]:
        assert ours.uniforms(seed, index, count) == numpys.uniforms(seed, index, count)


# -- under sanitizers (scripts/sanitize.sh) -----------------------------------------------------------------------------


def token_outside() -> None:
    engine = tiny_engine()
    engine.forward.compute([DecodingRow(engine.tree.walk((5, VOCABULARY)), 0)])


def table_outside() -> None:
    table = np.lib.stride_tricks.as_strided(np.zeros((1, 80), np.float32), (1, 200))
    Sampler(native.library()).draw(table, [0], [1.0], [0.9])


@pytest.mark.skipif("sanitize" not in os.environ.get("ALPHAZERO_KERNEL_FLAGS", ""), reason="for scripts/sanitize.sh")
@pytest.mark.parametrize(
    ("read", "words"),
    [
        (token_outside, "Assertion `token[nodes[r]] >= 0 && token[nodes[r]] < s.vocabulary' failed"),
        (table_outside, "AddressSanitizer: heap-buffer-overflow"),
    ],
)
def test_sanitizers_end_a_process_that_reads_outside(read: Callable[[], None], words: str, tmp_path: Path) -> None:
    """The kernels under test are the instrumented ones: past the checks in Python, they look for themselves."""
    child = os.fork()  # a new process would import torch under the sanitizers, which takes half a minute
    if not child:
        try:
            faulthandler.disable()
            os.dup2(os.open(tmp_path / "stderr", os.O_WRONLY | os.O_CREAT), 2)
            read()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] != 0
    assert words in (tmp_path / "stderr").read_text()
