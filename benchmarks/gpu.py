"""First contact with a CUDA machine, in ten minutes and without a network: what works, how fast, in
how much memory.

    scripts/gpu.sh [--out results.json]

A random model of Llama 3.2 3B's shape is made on the device. Parts, each of which may fail alone:

- `device`: memory bandwidth of a copy and bfloat16 products, which the rest is held against;
- `tests`: `pytest -m gpu`;
- `inprocess`, `vllm`: tokens a second at 1, 32 and 256 rows of 128 tokens after 128, and the share
  of the bandwidth that reading the weights once a step takes; of vLLM also memory that sleep gives
  back, and seconds to wake;
- `trees`: ten token-level PUCT trees side by side;
- `grpo`: a round in 4 bits with LoRA, its peak of memory.

Without CUDA everything runs at a tiny size, vLLM left out: that shows that the script is whole, and
no figure means anything.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import provenance
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import alphazero_llm_trainer as az
from alphazero_llm_trainer.answering.searches import answer_search
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import Engine, GenerateRequest
from alphazero_llm_trainer.mcts.seeds import derive_seed
from alphazero_llm_trainer.policy.student import PACKAGED, Student, load_student
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.runs.folder import RunFolder

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
GB = 1e9
LLAMA_3B = {
    "num_hidden_layers": 28,
    "hidden_size": 3072,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "vocab_size": 128_256,
}
TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 256,
}
SHAPE = LLAMA_3B if CUDA else TINY
ROWS = (1, 32, 256) if CUDA else (1, 4)
TOKENS = 128 if CUDA else 16
TREES = 10 if CUDA else 2


def timed(work: Callable[[], Any]) -> float:
    """Seconds of a second call; the first one warms up."""
    work()
    if CUDA:
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def device() -> dict[str, Any]:
    """What the device is and what it reaches."""
    size = 1 << (31 if CUDA else 24)  # bytes
    source = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    side = 8192 if CUDA else 256
    left = torch.randn(side, side, dtype=torch.bfloat16, device=DEVICE)
    name = torch.cuda.get_device_name() if CUDA else "cpu"
    memory = torch.cuda.get_device_properties(0).total_memory if CUDA else 0
    return {
        "name": name,
        "memory_gb": memory / GB,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "copy_gb_per_second": 2 * size / timed(lambda: target.copy_(source)) / GB,
        "bf16_tflops": 2 * side**3 / timed(lambda: left @ left) / 1e12,
    }


def tests() -> dict[str, Any]:
    """The tests that need a GPU."""
    words = "-m pytest -q -m gpu -n 0 tests/contract/test_gpu.py"
    command = [sys.executable, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"exit_code": done.returncode, "said": done.stdout.strip().splitlines()[-3:]}


def make_model(folder: Path) -> None:
    """A random model of `SHAPE` with the embedded student's tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE, tie_word_embeddings=True, max_position_embeddings=4096)
    with torch.device(DEVICE):
        save_random(LlamaForCausalLM(config), folder)


def save_random(model: PreTrainedModel, folder: Path) -> None:
    """A model's folder, in bfloat16 and with the embedded student's tokenizer."""
    model.to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]
    for file in PACKAGED.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            shutil.copy(file, folder)


def entry(folder: Path, quantization: str = "none") -> dict[str, Any]:
    """The configuration of the student in `folder`."""
    model = {
        "path": str(folder),
        "adapter": "lora",
        "quantization": quantization,
        "dtype": "bfloat16",
        "cpu": True,
        "step": "line",
        "max_tokens": 64,
        "max_depth": 8,
    }
    return {"models": {"random": model}, "student": "random"}


def rates(engine: Engine, weights: int, bandwidth: float) -> dict[str, Any]:
    """Tokens a second at each number of rows; `weights` bytes are read once a step."""
    prompt, rows = tuple(5 + i % 90 for i in range(TOKENS)), {}
    for count in ROWS:
        requests = [
            GenerateRequest((*prompt, 5 + number % 90), max_new_tokens=TOKENS, seed=number)
            for number in range(count)
        ]
        drawn = 0

        def draw() -> None:
            nonlocal drawn
            answers = asyncio.run(engine.generate(requests))
            drawn = sum(len(sample.token_ids) for [sample] in answers)
            engine.reset_prefix_cache()

        seconds = timed(draw)
        steps = TOKENS / seconds
        rows[str(count)] = {
            "tokens_per_second": drawn / seconds,
            "share_of_bandwidth": steps * weights / GB / bandwidth,
        }
    return rows


def size_of(student: Student) -> int:
    """Bytes of the weights."""
    return sum(p.numel() * p.element_size() for p in student.model.parameters())


def in_process(folder: Path, bandwidth: float) -> dict[str, Any]:
    student = load_student(
        load_config(overrides=[entry(folder), "engine.backend=inprocess"]), inference=True
    )
    return rates(student.engine, size_of(student), bandwidth)


def vllm(folder: Path, bandwidth: float) -> dict[str, Any]:
    """vLLM's rates with the same weights, and its sleep."""
    if find_spec("vllm") is None or not CUDA:
        return {"skipped": "vLLM is not here, or no CUDA device is"}
    began = time.perf_counter()
    student = load_student(load_config(overrides=[entry(folder), "engine.backend=vllm"]))
    figures: dict[str, Any] = {"start_seconds": time.perf_counter() - began}
    engine: Any = student.engine
    try:
        figures["rows"] = rates(engine, size_of(student), bandwidth)
        awake = torch.cuda.mem_get_info()[0]
        engine.sleep()
        figures["sleep_frees_gb"] = (torch.cuda.mem_get_info()[0] - awake) / GB
        began = time.perf_counter()
        asyncio.run(engine.generate([GenerateRequest((5,), max_new_tokens=1)]))
        figures["wake_seconds"] = time.perf_counter() - began
        engine.set_policy(None, 1)
        figures["numerics"] = engine.facts["numerics"]
    finally:
        engine.close()
    return figures


def trees(folder: Path) -> dict[str, Any]:
    """Token-level PUCT trees side by side."""
    settings = ["search.mode=token", "search.rollout=greedy", "search.simulations=24"]
    config = load_config(overrides=[entry(folder), *settings, "engine.backend=inprocess"])
    student = load_student(config, inference=True)
    search = answer_search(student, config)
    problems = [task.problem for task in load_tasks("embedded", "test", TREES)]

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(
            *(search.run(problem, derive_seed(1, problem.id)) for problem in problems)
        )

    began = time.perf_counter()
    results = asyncio.run(all_of_them())
    seconds = time.perf_counter() - began
    return {
        "trees_per_second": len(results) / seconds,
        "simulations": sum(len(result.tree.simulations) for result in results),
        "sampled_tokens": sum(result.cost.sampled_tokens for result in results),
    }


def parity(problem: az.Problem, response: str, task: az.Task) -> float:
    """A reward that a random model's responses differ in."""
    return float(len(response) % 2)


def grpo(folder: Path, out: Path) -> dict[str, Any]:
    """A round of GRPO: 4 bits and LoRA on CUDA, its peak of memory."""
    config = {
        **entry(folder, "nf4" if CUDA or find_spec("bitsandbytes") else "none"),
        "engine.backend": "inprocess",
        "train.preflight": 0,
        "train.questions_per_round": 8,
        "train.validation_size": 0,
        "train.demonstrations": 0,
        "search.simulations": 2,
        "rewards.use_student_model": False,
    }
    if CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    run = az.train(
        "embedded",
        parity,
        model="random",
        method="grpo",
        num_examples=8,
        eval_size=1,
        config=config,
        out=out,
        progress=False,
    )
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "rounds": RunFolder(run.folder).read_metrics(),
        "peak_gb": torch.cuda.max_memory_allocated() / GB if CUDA else None,
    }


def main() -> None:
    parser = provenance.make_parser(__doc__)
    parser.set_defaults(out=Path("gpu.json"))
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    with TemporaryDirectory() as place:
        folder = Path(place) / "model"

        def bandwidth() -> float:
            return float(figures["device"]["copy_gb_per_second"])

        parts: dict[str, Callable[[], Any]] = {
            "device": device,
            "tests": tests,
            "model": lambda: make_model(folder),
            "inprocess": lambda: in_process(folder, bandwidth()),
            "vllm": lambda: vllm(folder, bandwidth()),
            "trees": lambda: trees(folder),
            "grpo": lambda: grpo(folder, Path(place) / "run"),
        }
        for name, part in parts.items():
            began = time.perf_counter()
            try:
                figures[name] = part() or {}
            except Exception as error:  # noqa: BLE001 - a part that fails is a finding
                figures[name] = {"failed": f"{type(error).__name__}: {error}"[:1000]}
            figures[name]["part_seconds"] = time.perf_counter() - began
            print(name, figures[name], flush=True)
            provenance.write(args.out, figures)


if __name__ == "__main__":
    main()
