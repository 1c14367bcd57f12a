"""What needs a CUDA device (`-m gpu`; written without one at hand), and the GPU benchmark's own code on any machine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from alphazero_llm_trainer.config.sections import ModelShape
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.training.memory import Forecast
from alphazero_llm_trainer.training.models import make_trainable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import gpu

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# Large enough that activations, not the allocator's rounding, make the peak.
SMALL = ModelShape(
    layers=8,
    hidden=1024,
    heads=16,
    kv_heads=4,
    head_dim=64,
    intermediate=2816,
    vocabulary=32_000,
    tied=True,
    plain=True,
)


def test_the_benchmark_runs_on_any_machine(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    gpu.build(gpu.TINY, tmp_path)
    rows = {row["stage"]: row for row in gpu.inprocess(tmp_path, tiny=True)}
    assert {f"generate, batch {batch}" for batch in gpu.BATCHES} < set(rows)
    assert all(rows[f"generate, batch {batch}"]["tokens_per_second"] > 0 for batch in gpu.BATCHES)
    assert rows["GRPO, flat"]["rows_per_second"] > 0 and rows["GRPO, packed"]["rows_per_second"] > 0
    assert rows["search, steps"]["simulations"] > 0 and rows["search, tokens"]["simulations"] > 0
    assert rows["GRPO, flat"]["forecast"] > rows["load"]["forecast"] > 0


def test_devices_agree_or_not() -> None:
    one: dict[str, Any] = {
        "device": "cpu",
        "logprobs": [-1.0, -2.0],
        "greedy_correct": [True, False],
        "search_answers": ["1", "2"],
        "validation": [0.5],
    }
    assert gpu.agreement(one, one)["agrees"]
    assert not gpu.agreement(one, one | {"logprobs": [-1.0, -2.1]})["agrees"]
    assert not gpu.agreement(one, one | {"validation": [0.8]})["agrees"]
    assert gpu.agreement(one, one | {"greedy_correct": [True, True]})["same_greedy"] == 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    gpu.build(SMALL, made)
    return made


@pytest.mark.gpu
@CUDA
def test_four_bit_weights_load_on_cuda(folder: Path) -> None:
    student = load_student(gpu.configuration(folder, tiny=False))
    packed = [p for p in student.model.parameters() if getattr(p, "quant_state", None) is not None]
    assert len(packed) == 7 * SMALL.layers and all(p.device.type == "cuda" and p.dtype == torch.uint8 for p in packed)
    assert student.engine.tree.states.device.type == "cuda"


@pytest.mark.gpu
@CUDA
def test_the_engine_s_log_probabilities_are_the_library_s_in_bf16(folder: Path) -> None:
    student = load_student(gpu.configuration(folder, tiny=False))
    prompt = tuple(range(5, 45))
    requests = [GenerateRequest(prompt, n=4, max_new_tokens=32, seed=3)]
    [made] = asyncio.run(student.engine.generate(requests))
    model: Any = student.model
    for one in made:
        ids = torch.tensor([[*prompt, *one.token_ids]], device="cuda")
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
        there = [float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(one.token_ids)]
        gaps = [abs(a - b) for a, b in zip(one.logprobs, there, strict=True)]
        assert max(gaps) < 0.25 and sum(gaps) / len(gaps) < 0.03


@pytest.mark.gpu
@CUDA
def test_peaks_on_cuda_are_within_30_percent_of_the_forecast_and_updates_move_the_adapters(folder: Path) -> None:
    config = gpu.configuration(folder, tiny=False)
    plan = Forecast(config, config.models["random"], SMALL, True, prompt=gpu.SIZES[False][0])
    student = load_student(config)
    model = make_trainable(student.model, student.spec, "lora")
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    row = gpu.updates(student, model, config, SMALL, False, "off", gpu.allocated(plan, "train"))
    assert row["allocated"] == pytest.approx(gpu.allocated(plan, "train"), rel=0.3)
    after = dict(model.named_parameters())
    assert all(torch.isfinite(after[name]).all() for name in before)
    assert any(not torch.equal(after[name], old) for name, old in before.items())
    row = gpu.search(student, config, "step", gpu.allocated(plan, "search"))
    assert row["allocated"] == pytest.approx(gpu.allocated(plan, "search"), rel=0.3)
