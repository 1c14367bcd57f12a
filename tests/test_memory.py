"""The memory planner's arithmetic against real models, engines and autograd; `benchmarks/memory.py` holds whole runs to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import STEP_ENDS, VOCABULARY
from transformers import LlamaConfig, LlamaForCausalLM

from alphazero_llm_trainer.cli.plan import memory_plan, read_shape, suggestions
from alphazero_llm_trainer.config.load import Config, load_config
from alphazero_llm_trainer.config.sections import LoraConfig, ModelShape
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.policy.student import PACKAGED, load_student
from alphazero_llm_trainer.training.judge_memory import JudgeForecast
from alphazero_llm_trainer.training.memory import (
    AFTER_LOAD,
    GIB,
    PHASES,
    Counts,
    Forecast,
    doubled,
    nf4_bytes,
    rows_of_a_forward,
)
from alphazero_llm_trainer.training.models import make_trainable

SHAPE = ModelShape(
    layers=3,
    hidden=128,
    heads=4,
    kv_heads=2,
    head_dim=32,
    intermediate=256,
    vocabulary=VOCABULARY,
    tied=True,
    plain=True,
)


def llama(shape: ModelShape = SHAPE, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).to(dtype)


def configured(*overrides: Any) -> Config:
    """A configuration with a student `tiny`, trained whole in fp32 unless overridden."""
    student = {"path": "nowhere", "adapter": "full", "dtype": "float32", "cpu": True, "shape": SHAPE.model_dump()}
    base = {"models": {"tiny": student}, "student": "tiny", "rewards": {"use_student_model": False}}
    return load_config(overrides=[base, "engine.native=off", "engine.max_context=256", *overrides])


def forecast(config: Config, device: str = "cpu", **more: Any) -> Forecast:
    return Forecast(config, config.models["tiny"], SHAPE, device, **more)


def part(forecast: Forecast, name: str, phase: str) -> float:
    parts = forecast.plan(1 << 40).parts
    return sum(one.size for one in parts if one.name == name and phase in one.phases)


def bytes_of(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("tied", [True, False])
def test_full_weights_are_counted_to_the_byte(tied: bool) -> None:
    shape = SHAPE.model_copy(update={"tied": tied})
    assert Counts.of(shape, LoraConfig()).whole == sum(p.numel() for p in llama(shape).parameters())
    config = configured({"models": {"tiny": {"shape": {"tied": tied}}}})
    made = Forecast(config, config.models["tiny"], shape, "cuda")
    assert part(made, "weights", "load") == bytes_of(llama(shape).parameters())


def test_the_engine_holds_what_is_forecast() -> None:
    config = configured("engine.cache_tokens=2000", "engine.max_batch=48", "search.max_tokens=100")
    engine = InProcessEngine(llama().eval(), eos_id=1, step_ends=STEP_ENDS, settings=config.engine)
    made = forecast(config, prompt=50)
    assert part(made, "prefix cache", "search") == bytes_of([engine.tree.states])
    assert part(made, "prefix cache", "train") == part(made, "prefix cache", "load") == 0
    engine.rest()  # as before updates
    assert engine.tree._states is None
    assert engine.tree.next_logprobs is not None
    assert part(made, "next-token table", "search") == bytes_of([engine.tree.next_logprobs])
    held: Any = engine.forward
    assert part(made, "decoding slots", "load") == bytes_of([held.slots.states])
    # 48 rows of 150 tokens: both grow by doubling.
    held.slots.ensure(48, 150)
    assert part(made, "decoding slots", "search") == bytes_of([held.slots.states])
    joined = [weight for layer in held.layers for weight in (layer[1], layer[4])]
    assert part(made, "engine's copy", "search") == bytes_of(joined)


def test_a_cache_too_small_for_whole_distributions_keeps_none() -> None:
    config = configured("engine.cache_tokens=400000", "engine.cache_bytes=4294967296")
    shape = SHAPE.model_copy(update={"vocabulary": 128_256})
    made = Forecast(config, config.models["tiny"], shape, "cuda").plan(1 << 40)
    assert not any(one.name == "next-token table" for one in made.parts)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A real NF4 student with LoRA, and its configuration."""
    pytest.importorskip("bitsandbytes")
    folder = tmp_path_factory.mktemp("nf4")
    shape = SHAPE.model_copy(update={"vocabulary": 192})  # the tokenizer has 169
    llama(shape, torch.bfloat16).save_pretrained(folder)
    for file in PACKAGED.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            shutil.copy(file, folder)
    given = {"path": str(folder), "adapter": "lora", "quantization": "nf4", "dtype": "bfloat16"}
    config = configured({"models": {"tiny": given}}, "engine.cache_tokens=1024")
    student = load_student(config)
    return config, shape, make_trainable(student.model, student.spec, "lora")


def test_four_bit_weights_and_adapters_are_counted(quantised: Any) -> None:
    config, shape, model = quantised
    counts, packed, other, trained = Counts.of(shape, LoraConfig()), 0, 0, 0
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        if parameter.requires_grad:
            trained += bytes_of([parameter])
        elif state is not None:
            packed += bytes_of(
                [parameter, state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code]
            )
        else:
            other += bytes_of([parameter])
    # Blocks of 256 scales are rounded up, which shows at this size.
    assert nf4_bytes(counts) == pytest.approx(packed, rel=0.01)
    made = Forecast(config, config.models["tiny"], shape, "cuda")
    assert part(made, "weights, rest", "train") == other
    assert part(made, "adapters", "train") == trained


class Saved:
    """Bytes of the storages that autograd keeps for the backward pass, parameters left out."""

    def __init__(self, model: Any) -> None:
        owned = [*model.parameters(), *model.buffers()]
        self.known = {p.untyped_storage().data_ptr() for p in owned}
        self.found: dict[int, int] = {}
        self.kept: list[torch.Tensor] = []

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        at = tensor.untyped_storage().data_ptr()
        if at not in self.known and at not in self.found:
            self.found[at] = tensor.untyped_storage().nbytes()
            self.kept.append(tensor)  # so that no other tensor gets this address
        return tensor

    def of(self, model: Any, tokens: torch.Tensor, mask: torch.Tensor) -> int:
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor):
            model(input_ids=tokens, attention_mask=mask, use_cache=False)
        return sum(self.found.values())


def kept_a_token(model: Any, rows: int = 4, length: int = 64) -> float:
    """Bytes that the backbone keeps of a token, a layer; embedding and last norm are in it, a few in a hundred."""
    tokens = torch.randint(2, VOCABULARY, (rows, length))
    mask = torch.ones_like(tokens)
    mask[0, :7] = 0  # padding, as in a minibatch of unequal prompts
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return Saved(model).of(base.model, tokens, mask) / (rows * length * SHAPE.layers)


def test_activations_of_full_weights_are_those_autograd_keeps() -> None:
    model = llama().train().requires_grad_(True)
    assert forecast(configured()).layer_bytes() == pytest.approx(kept_a_token(model), rel=0.08)


def test_activations_of_adapters_over_four_bits_are_those_autograd_keeps(quantised: Any) -> None:
    config, shape, model = quantised
    model.train()
    found = kept_a_token(model)
    model.eval()
    assert Forecast(config, config.models["tiny"], shape, "cpu").layer_bytes() == pytest.approx(found, rel=0.15)


def test_less_is_forecast_for_what_saves_memory() -> None:
    def peak(*overrides: Any, device: str = "cuda") -> float:
        plan = forecast(configured("train.grpo.batch_size=64", "train.gradient_checkpointing=off", *overrides), device)
        return plan.plan(1 << 40).at("train")

    assert peak("train.micro_batch=1") < peak("train.micro_batch=8") < peak()
    assert peak("train.gradient_checkpointing=on") < peak()
    assert peak("train.optimizer=adamw_8bit") < peak("train.optimizer=adamw")
    assert peak("engine.cache_tokens=1024") < peak()
    assert peak("search.max_tokens=20") < peak()
    assert peak("engine.backend=vllm-server") < peak()
    assert peak("train.method=ppo", "train.ppo.batch_size=64") > peak()
    assert peak("rewards.use_student_model=true") > peak()


def test_ppo_s_critic_and_samples_are_counted() -> None:
    settings = (
        "search.concurrent=4",
        "train.eval_size=0",
        "train.validation_size=1",
        "search.samples=1",
        "train.samples=1",
    )
    made = forecast(configured("train.method=ppo", "train.ppo.samples=16", *settings))
    assert made.rows == 64
    assert forecast(configured("train.ppo.samples=16", *settings)).rows == 4
    # As `make_ppo_trainer` builds it: a copy of the backbone (its embeddings are the output layer's too) and a layer more.
    from alphazero_llm_trainer.training.ppo import EXTRA_LAYERS, Critic

    critic = bytes_of(Critic(llama(), EXTRA_LAYERS).backbone.parameters())
    for phase in AFTER_LOAD:
        assert part(made, "critic", phase) == critic
    assert part(made, "optimiser", "train") == 2 * (critic + bytes_of(llama().parameters()))


def test_vllm_takes_its_share_unless_it_sleeps() -> None:
    def share(sleep: str, phase: str) -> float:
        made = forecast(
            configured("engine.backend=vllm", "engine.vllm.gpu_memory=0.5", f"engine.vllm.sleep={sleep}"), "cuda"
        )
        return sum(one.size for one in made.plan(8 * GIB, 10 * GIB).parts if one.name == "vLLM" and phase in one.phases)

    assert [share("off", phase) for phase in PHASES] == [5 * GIB] * 3
    assert [share("on", phase) for phase in PHASES] == [5 * GIB, 5 * GIB, 0]


@pytest.mark.parametrize(("wanted", "size"), [(1, 32), (32, 32), (33, 64), (200, 256)])
def test_slots_double(wanted: int, size: int) -> None:
    assert doubled(32, wanted) == size


def test_a_row_is_no_longer_than_the_context() -> None:
    made = forecast(configured("search.max_tokens=160"), prompt=5000)
    assert made.prompt == 255 and made.length == 256


def test_what_does_not_fit_gets_suggestions_that_save_what_they_say() -> None:
    config = load_config(overrides=["student=llama-3.2-3b", "problems.source=gsm8k"])
    made = memory_plan(config, "llama-3.2-3b", 6.0)
    assert made is not None
    plan, source = made
    assert source == "models.yaml" and not plan.fits
    lines = suggestions(config, "llama-3.2-3b", plan, 6.0, None)
    fitting = [line for line in lines if line.endswith(", fits")]
    assert fitting
    flags = fitting[0].partition(":")[0].replace("--set ", "").split()
    again = memory_plan(
        load_config(overrides=["student=llama-3.2-3b", "problems.source=gsm8k", *flags]), "llama-3.2-3b", 6.0
    )
    assert again is not None and again[0].fits
    assert f"{again[0].peak / GIB:.1f} GiB" in fitting[0]


def test_the_defaults_fit_the_3b_into_16_gib() -> None:
    made = memory_plan(load_config(overrides=["student=llama-3.2-3b", "problems.source=gsm8k"]), "llama-3.2-3b", 16.0)
    assert made is not None and made[0].fits


def test_a_smaller_student_is_named_where_no_setting_helps() -> None:
    config = load_config(overrides=["student=llama-3.1-8b", "problems.source=gsm8k"])
    made = memory_plan(config, "llama-3.1-8b", 6.0)
    assert made is not None and not made[0].fits
    named = [line for line in suggestions(config, "llama-3.1-8b", made[0], 6.0, None) if line.startswith("--student")]
    assert named and all(line.endswith(", fits") for line in named)


def test_the_shape_of_a_folder_is_read(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    assert read_shape(tmp_path / "config.json") == SHAPE
    (tmp_path / "config.json").write_text("[1]")
    assert read_shape(tmp_path / "config.json") is None
    assert read_shape(tmp_path / "absent.json") is None
    # Families that call a width otherwise (OPT's ffn_dim) have no shape, and no traceback.
    for other in ('{"ffn_dim": 3072}', '{"intermediate_size": 9, "vocab_size": 9, "num_attention_heads": 0}'):
        named = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 50272}
        (tmp_path / "config.json").write_text(json.dumps(named | json.loads(other)))
        assert read_shape(tmp_path / "config.json") is None


def test_phases_hold_what_they_add_up_to() -> None:
    plan = forecast(configured()).plan(1 << 40)
    for phase in PHASES:
        assert plan.at(phase) == sum(one.size for one in plan.parts if phase in one.phases)
        assert plan.allocated(phase) <= plan.at(phase)
    assert plan.peak == max(plan.at(phase) for phase in PHASES) and set(AFTER_LOAD) < set(PHASES)


def test_a_forward_on_a_cpu_takes_what_two_gibibytes_hold() -> None:
    embedded, smollm2 = (3, 128, 384), (30, 576, 1536)
    assert rows_of_a_forward(20, 256, *embedded) == 20
    found = {batch: rows_of_a_forward(batch, 352, *smollm2) for batch in (16, 20, 7, 1)}
    assert found == {16: 4, 20: 4, 7: 1, 1: 1}
    config = configured("train.micro_batch=2")
    assert forecast(config, "cpu").micro_batch == 2
    large = SHAPE.model_copy(update={"layers": 30, "hidden": 576, "intermediate": 1536})
    made = Forecast(
        configured("train.grpo.batch_size=16", "search.max_tokens=256"), config.models["tiny"], large, "cpu"
    )
    assert made.micro_batch == 4
    assert Forecast(configured("train.grpo.batch_size=16"), config.models["tiny"], large, "cuda").micro_batch == 16


# -- judges ------------------------------------------------------------------------------------------------------------


def judge_forecast(judge: Any, *overrides: str, adapter: str = "full") -> JudgeForecast:
    config = load_config(overrides=["student=embedded", *overrides])
    spec = config.models["embedded"].model_copy(update={"adapter": adapter, "lora": LoraConfig(rank=4)})
    return JudgeForecast(judge, config, spec, SHAPE, "cpu", 40, tree=300)


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_a_judges_weights_and_states_are_those_that_its_training_holds(adapter: str, tmp_path: Path) -> None:
    from alphazero_llm_trainer.training.value import new_network

    made = judge_forecast("value", adapter=adapter)
    network = make_trainable(new_network(llama(), made.extra_layers), made.spec, adapter, task="TOKEN_CLS")
    trained = [parameter for name, parameter in network.named_parameters() if parameter.requires_grad]
    score = 2 * (SHAPE.hidden + 1) if adapter == "lora" else SHAPE.hidden + 1  # not planned: a number a unit
    parts = {part.name: part.size for part in made.training()}
    assert sum(parameter.numel() for parameter in trained) - made.trained_parameters[0] in range(score + 1)
    assert parts["optimiser"] == made.trained_parameters[0] * 3 * 4
    assert made.extra_layers == (2 if adapter == "full" else 0)


def test_a_prm_that_computes_logits_keeps_them() -> None:
    implicit, plain = (
        judge_forecast("prm"),
        judge_forecast("prm", "train.prm.kind=classifier", "train.prm.logprob=false"),
    )
    output = {part.name: part.size for part in implicit.step()}["output layer"]
    assert output == implicit.micro_batch * 300 * VOCABULARY * 16
    assert {part.name: part.size for part in plain.step()}["output layer"] == 0
    assert implicit.extra_layers == 0 and plain.extra_layers == 2
    every = {part.name: part.size for part in judge_forecast("prm", "train.prm.kind=all").training()}
    assert every["judge"] == 3 * judge_forecast("prm", "train.prm.kind=all").whole * 4


def test_a_heads_states_are_counted_and_nothing_else_of_it() -> None:
    made = judge_forecast("value", "train.value.kind=head", "train.value.collect.questions=10")
    assert made.training() == [] and {part.name for part in made.step()} == {"activations", "states"}
    assert next(part.size for part in made.step() if part.name == "states") == 10 * 300 * SHAPE.hidden * 3 * 4


def test_fewer_questions_a_forward_take_less() -> None:
    sizes = [
        judge_forecast("value", f"train.value.micro_batch={size}").plan(1 << 40).at("train") for size in (1, 4, 32)
    ]
    assert sizes == sorted(sizes) and sizes[0] < sizes[2]


def test_a_small_devices_cache_is_an_eighth_of_it() -> None:
    engine, share = configured().engine, GIB
    assert engine.cache_bytes is None and engine.cache(8 * GIB) == share and engine.cache(1 << 40) == 4 * GIB
    assert configured("engine.cache_bytes=5").engine.cache(8 * GIB) == 5
    large = SHAPE.model_copy(update={"layers": 30, "hidden": 576, "kv_heads": 3, "head_dim": 64})
    config = configured("engine.cache_tokens=400000")
    laptop, server = (
        Forecast(config, config.models["tiny"], large, "cpu", memory=memory) for memory in (8 * GIB, 64 * GIB)
    )
    assert laptop.capacity * laptop.token_bytes <= share < server.capacity * server.token_bytes <= 4 * GIB
    assert laptop.batch < server.batch


def test_processes_share_what_is_trained_and_search_with_whole_weights() -> None:
    """The table of docs/guides/train.md: bytes a parameter beside the weights, 12 in one process and 16 / N under FSDP."""

    def beside_weights(shards: int, *overrides: str, dtype: str = "float32") -> float:
        config = configured(*overrides)
        spec = config.models["tiny"].model_copy(update={"adapter": "full", "dtype": dtype})
        made = Forecast(config, spec, SHAPE, "cuda", shards=shards)
        kept = {part.name: part.size for part in made.training()}
        if shards > 1:
            layer = made.counts.linear / SHAPE.layers
            assert kept.pop("gathered layer") == 2 * layer * made.trained
        return (sum(kept.values()) + made.counts.whole * made.trained / shards) / made.counts.whole

    assert beside_weights(1) == 12 and beside_weights(4) == 4
    assert beside_weights(4, dtype="bfloat16") == 4  # accelerate shards fp32 weights
    assert beside_weights(4, "train.precision=float32", dtype="bfloat16") == 2
