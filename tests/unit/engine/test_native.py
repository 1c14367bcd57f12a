"""The compiled forward: exact for every shape, the same bits in any company and on any threads, in
fp32 and in bfloat16.
"""

import copy
from random import Random
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig
from scripted import run
from support import STEP_ENDS, library_logprobs, library_scores, tiny_engine, tiny_llama
from tables import table
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import EngineConfig
from alphazero_llm_trainer.engine import inprocess, kernel_build, native, precision
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.library_forward import LibraryForward
from alphazero_llm_trainer.engine.precision import (
    FLOATS,
    LARGE,
    UNITS,
    kernel_threads,
    product_unit,
    unit_name,
)
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.policy import backend
from alphazero_llm_trainer.policy.adapters import AdapterView
from alphazero_llm_trainer.policy.student import load_student

LIBRARY = native.load_library()
BEST = FLOATS if LIBRARY is None else LIBRARY.bf16_unit()
needs_compiler = pytest.mark.skipif(LIBRARY is None, reason="no C compiler here")
needs_bf16 = pytest.mark.skipif(BEST == FLOATS, reason="neither AMX nor AVX512-BF16 here")
HALVES = [pytest.param(unit, id=UNITS[unit]) for unit in UNITS if unit <= BEST]
CLOSE = 5e-5  # nats: a hundred roundings of fp32 at 5 nats
# Sums in another order round an activation to its other neighbour now and then, a 256th of it away.
ROUNDED = 2e-2
KINDS = ["llama", "qwen2", "qwen3"]


def llama(kind="llama", **shape):
    """A random fp32 model, far from uniform. Default: a Llama, sizes that are multiples of no
    vector.
    """
    torch.manual_seed(3)
    sizes = {
        "vocab_size": 77, "hidden_size": 40, "intermediate_size": 51, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "initializer_range": 0.1, "attn_implementation": "sdpa",
    }  # fmt: skip
    config = CONFIG_MAPPING[kind](**{**sizes, **shape})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # ones tell nothing, nor do biases of zeros
                weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                weight.normal_(0, 0.5)
    return model


def with_lora(model, rank=5):
    """The model with a random adapter on its seven projections, active."""
    model.add_adapter(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=r".*_proj"), "default")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.1)
    return model.eval()


def engine_of(model, **settings):
    limits = {"max_batch": 32, "max_context": 400, "cache_tokens": 8192, **settings}
    return InProcessEngine(model, eos_id=-1, step_ends=STEP_ENDS, settings=EngineConfig(**limits))


CASES = table("native")
SHAPES = CASES["shapes"]


def tokens(rng, count):
    return tuple(rng.randrange(77) for _ in range(count))


def pairs_of(*lengths):
    rng = Random(1)
    return [(tokens(rng, a), tokens(rng, b)) for a, b in lengths]


def scores(engine, pairs):
    return run(lambda: engine.score(pairs))


def check_scores(model, pairs, found, close=CLOSE):
    """Fail where scores aren't the library's."""
    for pair, values in zip(pairs, found, strict=True):
        assert values == pytest.approx(library_scores(model, *pair), abs=close)


def drawn(engine, requests):
    return [
        [(one.token_ids, one.logprobs) for one in group]
        for group in run(lambda: engine.generate(requests))
    ]


@needs_compiler
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_equals_the_librarys_forward(name):
    model = llama(**SHAPES[name])
    engine = engine_of(model)
    assert engine.forward.name == "native"
    # Longer than a chunk of rows and than several vectors of keys; and short ones beside it.
    pairs = pairs_of((150, 40), (1, 1), (3, 17), (16, 16), (33, 5), (2, 31))
    check_scores(model, pairs, scores(engine, pairs))
    request = GenerateRequest(pairs[0][0], max_new_tokens=50, top_k=5, seed=4)
    [[one]] = run(lambda: engine.generate([request]))
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turns", CASES["turns"])
def test_rotary_positions_of_every_kind_are_the_librarys(turns, kind):
    """In the kernels or in torch."""
    model = llama(kind, rope_parameters=CASES["turns"][turns])
    pairs = pairs_of((150, 40), (3, 17))
    check_scores(model, pairs, scores(engine_of(model), pairs), 2e-5)


def rounded(model):
    """The model as bfloat16 products with fp32 sums see it: rounded matrices, and activations
    rounded before each.
    """
    model = copy.deepcopy(model)
    # The embedding of a tied model isn't multiplied.
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.bfloat16().float()
            module.register_forward_pre_hook(lambda module, given: (given[0].bfloat16().float(),))
    return model


@needs_bf16
@pytest.mark.parametrize("unit", HALVES)
@pytest.mark.parametrize("name", [*SHAPES, "adapted"])
def test_every_shape_in_bfloat16_is_the_rounded_models_forward(name, unit, monkeypatch):
    monkeypatch.setattr(native, "product_unit", lambda wanted, parameters: unit)
    model = with_lora(llama("qwen2")) if name == "adapted" else llama(**SHAPES[name])
    engine, reference = engine_of(model), rounded(model)
    assert engine.facts["forward"]["products"] == unit_name(unit)
    gaps = {"rounded": [], "fp32": []}
    # Alone, in one tile, in two, in two and a bit, and in more than a chunk of rows.
    for pair in pairs_of((150, 40), (1, 1), (3, 14), (16, 17), (33, 5), (2, 31)):
        [values] = scores(engine, [pair])
        for kind, other in (("rounded", reference), ("fp32", model)):
            gaps[kind] += [
                abs(a - b) for a, b in zip(values, library_scores(other, *pair), strict=True)
            ]
    mean = {kind: sum(found) / len(found) for kind, found in gaps.items()}
    assert mean["rounded"] < mean["fp32"] / 4 and max(gaps["rounded"]) < ROUNDED


@needs_compiler
@pytest.mark.parametrize("unit", [pytest.param(FLOATS, id="float32"), *HALVES])
@pytest.mark.parametrize(
    "name",
    ["odd sizes", "qwen3, heads wider than the model",
     *(pytest.param(name, marks=pytest.mark.slow) for name in ("heads of 32, grouped", "qwen2"))],
)  # fmt: skip
def test_results_are_the_same_bits_in_any_company_and_on_any_threads(name, unit, monkeypatch):
    """Alone, with others, beside prompts of other lengths, token by token, in small and large
    batches: equal floats.
    """
    monkeypatch.setattr(native, "product_unit", lambda wanted, parameters: unit)
    model, rng = with_lora(llama(**SHAPES[name])), Random(2)
    requests = [
        GenerateRequest(tokens(rng, rng.randint(1, 60)), n=2, max_new_tokens=12, seed=i)
        for i in range(16)
    ]
    requests += [
        GenerateRequest((*requests[0].prompt_ids[:1], *tokens(rng, 9)), max_new_tokens=20)
        for _ in range(8)
    ]
    head = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(1))

    def results(chosen, **settings):
        engine = engine_of(model, **settings)
        engine.set_value(head)
        groups = drawn(engine, chosen)
        ends = [
            request.prompt_ids + group[0][0] for request, group in zip(chosen, groups, strict=True)
        ]
        return list(zip(groups, run(lambda: engine.values(ends)), strict=True))

    alone = [results([request])[0] for request in requests]
    for batch in (1, 9, 64):
        assert results(requests, max_batch=batch) == alone
    assert results(requests[::-1])[::-1] == alone
    # The same tokens scored in one piece, where each was computed by itself before.
    for request, (group, _) in list(zip(requests, alone, strict=True))[::5]:
        ids, logprobs = group[0]
        assert tuple(scores(engine_of(model), [(request.prompt_ids, ids)])[0]) == logprobs
    # More than there are, fewer than before, more than the pool has.
    for threads in (2, 3, 8, 2, 100):
        monkeypatch.setattr(
            native, "kernel_threads", lambda parameters, available, threads=threads: threads
        )
        assert engine_of(model).facts["forward"]["threads"] == threads
        assert results(requests) == alone


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_are_computed_the_base_is_a_view_and_half_weights_are_widened(kind):
    pairs = pairs_of((150, 40), (1, 1), (33, 5))
    base, model = llama(kind), with_lora(llama(kind))

    def found(of, some=pairs):
        return scores(engine_of(of), some)

    adapted, before = found(model), found(AdapterView(model, None))
    assert before == found(base)
    check_scores(model, pairs, adapted)
    assert adapted[0] != pytest.approx(before[0], abs=0.1)
    assert found(AdapterView(model, "default"), pairs[::-1]) == adapted[::-1]
    half = base.bfloat16()
    engine = engine_of(half)
    assert engine.tree.states.dtype == torch.float32 and engine.forward.name == "native"
    assert scores(engine, pairs) == found(copy.deepcopy(half).float())


# -- where it doesn't fit, and what it chooses -----------------------------------------------------


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_working_compiler_transformers_computes(compiler, monkeypatch):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(native, "open_kernels", kernel_build.load_kernels)
    anew = native.load_library.__wrapped__
    for module in (native, inprocess):
        monkeypatch.setattr(module, "load_library", anew)
    engine = tiny_engine()
    assert isinstance(engine.forward, LibraryForward)
    [[(ids, logprobs)]] = drawn(engine, [GenerateRequest((5, 6, 7), max_new_tokens=20)])
    assert logprobs == pytest.approx(library_scores(tiny_llama(), (5, 6, 7), ids), abs=CLOSE)


@pytest.mark.parametrize("shape, reason", CASES["refused"])
def test_what_the_kernels_dont_compute_is_said_once_with_the_reason(shape, reason, caplog):
    inprocess.tell_once.cache_clear()
    if shape == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=4)).eval()
    else:
        dtype = getattr(torch, shape.pop("dtype", "float32"))
        model = llama(**shape).to(dtype)
    for _ in range(2):
        assert isinstance(engine_of(model).forward, LibraryForward)
    [said] = caplog.messages
    assert reason in said


def test_units_and_threads_are_those_that_pay(monkeypatch):
    def processor(unit):
        library = None if unit is None else SimpleNamespace(bf16_unit=lambda: unit)
        monkeypatch.setattr(
            precision,
            "open_kernels",
            lambda: SimpleNamespace(library=library, status="no compiler"),
        )

    assert [kernel_threads(n, 8) for n in (1000, LARGE - 1, LARGE)] == [1, 1, 8]
    for unit in UNITS:
        processor(unit)
        assert product_unit("auto", LARGE) == product_unit("bfloat16", 1) == unit
        assert product_unit("auto", LARGE - 1) == product_unit("float32", 10 * LARGE) == FLOATS
    for unit, reason in ((FLOATS, "neither AMX nor AVX512-BF16"), (None, "no compiler")):
        processor(unit)
        assert product_unit("auto", LARGE) == FLOATS
        with pytest.raises(ConfigError, match=reason):
            tiny_engine(dtype="bfloat16")


@needs_bf16
def test_a_trainers_student_says_how_far_its_engine_is_from_its_model(
    monkeypatch,
):
    config = load_config(overrides=["student=embedded", "engine.dtype=bfloat16"])
    facts = load_student(config).engine.facts
    assert facts["forward"]["products"] == unit_name(BEST)
    assert 0 < facts["numerics"]["sampled_mean"] < backend.GAP_MEAN
    assert "numerics" not in load_student(config, inference=True).engine.facts
    assert "numerics" not in load_student(load_config(overrides=["student=embedded"])).engine.facts
    monkeypatch.setattr(backend, "GAP_MEAN", 1e-6)
    with pytest.raises(EngineError, match=r"set engine\.dtype=float32"):
        load_student(config)
