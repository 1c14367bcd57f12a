"""The forecast of memory against real models, engines and autograd."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import STEP_ENDS, VOCABULARY, grpo_config
from transformers import LlamaConfig, LlamaForCausalLM

from alphazero_llm_trainer.config.load import Config, load_config
from alphazero_llm_trainer.config.sections import LoraConfig, ModelShape
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.policy.student import PACKAGED, load_student
from alphazero_llm_trainer.training.critic import Critic
from alphazero_llm_trainer.training.memory import GIB, Counts, Forecast, rows_of_a_forward
from alphazero_llm_trainer.training.models import make_trainable
from alphazero_llm_trainer.training.start import find_shape

SIZES = {"layers": 3, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "intermediate": 256}
SHAPE = ModelShape(**SIZES, vocabulary=VOCABULARY, tied=True)


def llama(shape: ModelShape = SHAPE, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=shape.layers, hidden_size=shape.hidden, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary, tie_word_embeddings=shape.tied, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)


def configured(*overrides: Any) -> Config:
    """A configuration with a student `tiny`, trained whole in fp32 unless overridden."""
    student = {
        "path": "nowhere",
        "adapter": "full",
        "dtype": "float32",
        "cpu": True,
        "shape": SHAPE.model_dump(),
    }
    base = {"models": {"tiny": student}, "student": "tiny", "rewards": {"use_student_model": False}}
    return grpo_config([base, "engine.native=off", "engine.max_context=256", *overrides])


def forecast(
    config: Config, cuda: bool = False, shape: ModelShape = SHAPE, **more: Any
) -> Forecast:
    return Forecast(config, config.models["tiny"], shape, cuda, **more)


def part(forecast: Forecast, name: str, phase: str = "train") -> float:
    return forecast.parts.get(name, (0, 0))[phase == "train"]


def bytes_of(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_to_the_byte(tied: bool) -> None:
    shape = SHAPE.model_copy(update={"tied": tied})
    weights = bytes_of(llama(shape).parameters())
    assert (
        Counts.of(shape, LoraConfig()).whole * 4
        == part(forecast(configured(), shape=shape), "weights")
        == weights
    )
    # PPO's critic is a copy of the backbone (a tied embedding is the output layer's too) and a
    # layer more.
    made, critic = (
        forecast(configured("train.method=ppo")),
        bytes_of(Critic(llama()).backbone.parameters()),
    )
    assert part(made, "critic") == critic
    assert part(made, "optimiser") == 2 * (critic + bytes_of(llama().parameters()))


def test_the_engine_holds_what_is_forecast() -> None:
    config = configured("engine.cache_tokens=2000", "engine.max_batch=48", "search.max_tokens=100")
    engine = InProcessEngine(llama().eval(), eos_id=1, step_ends=STEP_ENDS, settings=config.engine)
    made = forecast(config, prompt=50)
    assert part(made, "prefix cache", "search") == bytes_of([engine.tree.states])
    assert part(made, "prefix cache", "train") == 0
    engine.sleep()  # as before updates
    assert engine.tree._states is None and engine.tree.next_logprobs is not None
    held: Any = engine.forward
    # 48 rows of 150 tokens: both grow by doubling.
    held.slots.ensure(48, 150)
    kept = bytes_of([engine.tree.next_logprobs, held.slots.states])
    assert 0.5 * kept < part(made, "decoding") < 2 * kept


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
    packed, other, trained = 0, 0, 0
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        if parameter.requires_grad:
            trained += bytes_of([parameter])
        elif state is not None:
            packed += bytes_of([parameter, state.absmax, state.state2.absmax])
        else:
            other += bytes_of([parameter])
    made = forecast(config, cuda=True, shape=shape)
    # Blocks of 256 scales are rounded up, which shows at this size; code books don't at a real one.
    assert part(made, "weights") == pytest.approx(packed + other, rel=0.01)
    assert part(made, "adapters") == trained


def kept_a_token(model: Any, rows: int = 4, length: int = 64) -> float:
    """Bytes that autograd keeps of a token for the backward pass, a layer of the backbone,
    parameters left out; embedding and last norm are in it, a few in a hundred.
    """
    tokens = torch.randint(2, VOCABULARY, (rows, length))
    mask = torch.ones_like(tokens)
    mask[0, :7] = 0  # padding, as in a minibatch of unequal prompts
    owned = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}  # by address, held so that no other tensor gets it

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.model(input_ids=tokens, attention_mask=mask, use_cache=False)
    sizes = [tensor.untyped_storage().nbytes() for at, tensor in kept.items() if at not in owned]
    return sum(sizes) / (rows * length * SHAPE.layers)


def test_activations_of_full_weights_are_those_autograd_keeps() -> None:
    model = llama().train().requires_grad_(True)
    assert forecast(configured()).layer_bytes == pytest.approx(kept_a_token(model), rel=0.08)


def test_activations_of_adapters_over_four_bits_are_those_autograd_keeps(quantised: Any) -> None:
    config, shape, model = quantised
    model.train()
    found = kept_a_token(model)
    model.eval()
    assert forecast(config, shape=shape).layer_bytes == pytest.approx(found, rel=0.25)


def test_less_is_forecast_for_what_saves_memory() -> None:
    def peak(*overrides: Any, cuda: bool = True) -> float:
        config = configured(
            "train.optimizer.batch_size=64", "train.gradient_checkpointing=off", *overrides
        )
        return forecast(config, cuda).phases["train"]

    assert peak("train.micro_batch=1") < peak("train.micro_batch=8") < peak()
    assert peak("train.gradient_checkpointing=on") < peak()
    assert peak("train.optimizer.name=adamw_8bit") < peak("train.optimizer.name=adamw")
    assert peak("search.max_tokens=20") < peak()
    assert peak("engine.backend=vllm-server") < peak()
    assert peak("train.method=ppo") > peak()
    # GRPO measures PRE where its advantages are made of it, and has the frozen student beside it
    # then.
    measured = "rewards.use_student_model=true"
    assert peak(measured, "train.reward=combined") > peak(measured) == peak()


def test_the_defaults_fit_the_3b_into_16_gib_and_less_into_8() -> None:
    def peak(gib: int, *flags: str) -> float:
        config = grpo_config(["student=llama-3.2-3b", "problems.source=gsm8k", *flags])
        spec = config.models["llama-3.2-3b"]
        assert spec.shape is not None
        return Forecast(config, spec, spec.shape, True, prompt=200, memory=gib * GIB).peak / GIB

    assert peak(16) <= 16 and peak(8) > 8
    assert (
        peak(
            8,
            "train.micro_batch=1",
            "train.gradient_checkpointing=on",
            "engine.cache_bytes=500000000",
        )
        <= 8
    )


def test_the_shape_of_a_folder_is_read(tmp_path: Path) -> None:
    def read() -> ModelShape | None:
        config = load_config(
            overrides=[{"student": "mine", "models": {"mine": {"path": str(tmp_path)}}}]
        )
        return find_shape(config, config.models["mine"])

    assert read() is None
    llama().save_pretrained(tmp_path)
    assert read() == SHAPE
    (tmp_path / "config.json").write_text("[1]")
    assert read() is None
    # A family that calls a width otherwise (OPT's ffn_dim) has no shape, and no traceback.
    other = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 50272,
        "ffn_dim": 9,
    }
    (tmp_path / "config.json").write_text(json.dumps(other))
    assert read() is None


def test_a_forward_on_a_cpu_takes_what_two_gibibytes_hold() -> None:
    embedded, smollm2 = (3, 128, 384), (30, 576, 1536)
    assert rows_of_a_forward(20, 256, *embedded) == 20
    found = {batch: rows_of_a_forward(batch, 352, *smollm2) for batch in (16, 20, 7, 1)}
    assert found == {16: 4, 20: 4, 7: 1, 1: 1}
    assert forecast(configured("train.micro_batch=2")).rows == 2
    large = SHAPE.model_copy(update={"layers": 30, "hidden": 576, "intermediate": 1536})
    config = configured("train.optimizer.batch_size=16", "search.max_tokens=256")
    assert [forecast(config, cuda=cuda, shape=large).rows for cuda in (False, True)] == [4, 16]
