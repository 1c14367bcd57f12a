"""The C kernels in bfloat16: exact for what they multiply, the same bits in any company, chosen where they pay."""

from __future__ import annotations

import copy
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from support import library_scores, run, tiny_engine
from test_native import SHAPES, engine_of, llama, with_lora
from torch import nn
from transformers import LlamaForCausalLM

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine import native, precision
from alphazero_llm_trainer.engine.precision import LARGE, UNITS, kernel_threads, product_unit, unit_name
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.policy import backend
from alphazero_llm_trainer.policy.student import load_student

BEST = 0 if native.library() is None else native.library().bf16_unit()  # type: ignore[union-attr]
needs_bf16 = pytest.mark.skipif(BEST == 0, reason="neither AMX nor AVX512-BF16 here")
units = pytest.mark.parametrize("unit", [unit for unit in UNITS if unit <= BEST] or [1], ids=UNITS.get)
# Sums in another order round an activation to its other neighbour now and then, a 256th of it away.
CLOSE = 2e-2


def rounded(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The model as bfloat16 products with fp32 sums see it: rounded matrices, and activations rounded before each."""
    model = copy.deepcopy(model)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())  # the embedding of a tied model isn't multiplied
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.bfloat16().float()
            module.register_forward_pre_hook(lambda module, given: (given[0].bfloat16().float(),))
    return model


@pytest.fixture
def forced(unit: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Engines whose products this unit computes."""
    monkeypatch.setattr(native, "product_unit", lambda wanted, parameters: unit)
    return unit


@needs_bf16
@units
@pytest.mark.parametrize("name", [*SHAPES, "adapted"])
def test_every_shape_is_the_rounded_models_forward(name: str, forced: int) -> None:
    model = with_lora(llama("qwen2")) if name == "adapted" else llama(**SHAPES[name])
    engine = engine_of(model)
    assert engine.facts["forward"]["products"] == unit_name(forced)
    rng = Random(1)
    # Alone, in one tile, in two, in two and a bit, and in more than a chunk of rows.
    lengths = [(150, 40), (1, 1), (3, 14), (16, 17), (33, 5), (2, 31)]
    pairs = [tuple(tuple(rng.randrange(77) for _ in range(n)) for n in both) for both in lengths]
    reference = rounded(model)
    gaps: dict[str, list[float]] = {"rounded": [], "fp32": []}
    for pair in pairs:
        [values] = run(lambda pair=pair: engine.score([pair]))
        for kind, other in (("rounded", reference), ("fp32", model)):
            gaps[kind] += [abs(a - b) for a, b in zip(values, library_scores(other, *pair), strict=True)]
    mean = {kind: sum(found) / len(found) for kind, found in gaps.items()}
    assert mean["rounded"] < mean["fp32"] / 4 and max(gaps["rounded"]) < CLOSE


@needs_bf16
@units
def test_results_in_bfloat16_are_the_same_bits_in_any_company(forced: int) -> None:
    model, rng = with_lora(llama("qwen2", **SHAPES["heads of 32, grouped"])), Random(2)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(77) for _ in range(n))

    requests = [GenerateRequest(tokens(rng.randint(1, 60)), n=2, max_new_tokens=12, seed=i) for i in range(24)]

    def results(chosen: list[GenerateRequest], **settings: Any) -> list[Any]:
        engine = engine_of(model, **settings)
        return [[(one.token_ids, one.logprobs) for one in group] for group in run(lambda: engine.generate(chosen))]

    alone = [results([request])[0] for request in requests]
    for batch in (1, 9, 20, 64):
        assert results(requests, max_batch=batch) == alone
    assert results(requests[::-1])[::-1] == alone
    token_ids, logprobs = alone[0][0]
    fresh = engine_of(model)
    assert tuple(run(lambda: fresh.score([(requests[0].prompt_ids, token_ids)]))[0]) == logprobs


# -- the choice -----------------------------------------------------------------------------------------------------------


def test_the_small_student_stays_in_fp32_and_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "kernels", lambda: pytest.fail("nothing to ask the processor for"))
    assert product_unit("auto", LARGE - 1) == product_unit("float32", 10 * LARGE) == 0
    assert [kernel_threads(n, 8) for n in (1000, LARGE - 1, LARGE)] == [1, 1, 8]


def test_large_models_take_what_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for unit, name in ((1, "bfloat16 (AVX512-BF16)"), (2, "bfloat16 (AMX)")):
        library = SimpleNamespace(bf16_unit=lambda unit=unit: unit)
        monkeypatch.setattr(precision, "kernels", lambda library=library: SimpleNamespace(library=library))
        assert unit_name(product_unit("auto", LARGE)) == unit_name(product_unit("bfloat16", 1)) == name


def test_where_bfloat16_cant_be_had_it_is_fp32_or_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    none = SimpleNamespace(library=SimpleNamespace(bf16_unit=lambda: 0))
    monkeypatch.setattr(precision, "kernels", lambda: none)
    assert product_unit("auto", LARGE) == 0 and unit_name(0) == "float32"
    with pytest.raises(ConfigError, match="neither AMX nor AVX512-BF16: set it to auto or float32"):
        tiny_engine(dtype="bfloat16")
    monkeypatch.setattr(
        precision, "kernels", lambda: SimpleNamespace(library=None, status="transformers instead of C: x")
    )
    assert product_unit("auto", LARGE) == 0
    with pytest.raises(ConfigError, match=r"engine\.dtype is 'bfloat16', and transformers instead of C: x"):
        product_unit("bfloat16", 1)


@needs_bf16
def test_a_trainers_student_says_how_far_its_engine_is_from_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(overrides=["student=embedded", "engine.dtype=bfloat16"])
    facts = load_student(config).engine.facts
    assert facts["forward"]["products"] == unit_name(BEST)
    assert 0 < facts["numerics"]["sampled_mean"] < backend.ROUNDED.gap_mean
    assert "numerics" not in load_student(config, inference=True).engine.facts
    assert "numerics" not in load_student(load_config(overrides=["student=embedded"])).engine.facts
    monkeypatch.setattr(backend, "ROUNDED", backend.Gaps(1e-6, 1.0, "FIX"))
    with pytest.raises(EngineError, match=r"log-probabilities that inprocess sampled differ .* FIX"):
        load_student(config)
