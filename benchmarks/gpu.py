"""The real student's shape on a GPU: load, generate, search, train; speed and memory against the forecast.

    uv run --extra gpu python benchmarks/gpu.py            # a CUDA device of 12 GiB or more, some minutes
    uv run python benchmarks/gpu.py --tiny                 # the same code on any machine; its figures mean nothing

Random weights of a named student's shape (nothing is downloaded; they are written once as bf16 to a temporary folder of the
model's size), loaded as 4-bit NF4 through the very path of `train`, LoRA on the seven projections. Tokens/s of the engine at
batch 1, 32 and 64, decoding's share of the memory bandwidth (bytes of weights and of keys and values that a step must read
at least, by the device's measured copy rate), GRPO rows/s flat and packed, simulations/s of step and token search, and
each phase's peak of torch's allocator beside the forecast. Then the same generation through vLLM where it is installed, and
the embedded student on the GPU against the CPU: log-probabilities, greedy answers, a search and a short GRPO run.
Each stage is a process of its own. Writes benchmarks/results/gpu_<device>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.collect import Collector  # noqa: E402
from alphazero_llm_trainer.config.load import Config, load_config  # noqa: E402
from alphazero_llm_trainer.config.sections import ModelShape  # noqa: E402
from alphazero_llm_trainer.engine.device import device_memory  # noqa: E402
from alphazero_llm_trainer.engine.protocol import GenerateRequest  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.eval.methods import answer_search  # noqa: E402
from alphazero_llm_trainer.policy.student import PACKAGED, Student, load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.training.grpo import make_grpo_trainer  # noqa: E402
from alphazero_llm_trainer.training.loop import Run  # noqa: E402
from alphazero_llm_trainer.training.memory import Counts, Forecast  # noqa: E402
from alphazero_llm_trainer.training.models import Economy, make_trainable  # noqa: E402
from alphazero_llm_trainer.training.rows import TrainRow  # noqa: E402
from alphazero_llm_trainer.training.run import RunFolder  # noqa: E402
from alphazero_llm_trainer.training.start import read_shape  # noqa: E402
from benchmarks import provenance  # noqa: E402

QUIET = {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # libraries' notices about themselves

CUDA = torch.cuda.is_available()
BATCHES = (1, 32, 64)
TINY = ModelShape(
    layers=2, hidden=128, heads=2, kv_heads=1, head_dim=64, intermediate=256, vocabulary=512, tied=True, plain=True
)
# Prompt tokens, response tokens, rows of a training step, rows of a group, updates, trees, simulations.
SIZES = {False: (256, 128, 16, 4, 4, 16, 16), True: (24, 8, 4, 2, 2, 2, 4)}
# fp32 on both devices: what remains is the order of sums.
LOGPROB_TOLERANCE, ACCURACY_TOLERANCE = 1e-3, 0.1


def build(shape: ModelShape, folder: Path) -> None:
    """Random bf16 weights with the embedded student's tokenizer."""
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
        max_position_embeddings=4096,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if CUDA else "cpu"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(before)
    model.save_pretrained(folder)
    for file in PACKAGED.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            shutil.copy(file, folder)


def configuration(folder: Path, tiny: bool, backend: str = "inprocess") -> Config:
    _, response, rows, _, _, trees, simulations = SIZES[tiny]
    student = {
        "path": str(folder),
        "cpu": True,
        "adapter": "lora",
        "quantization": "nf4",
        "dtype": "bfloat16",
    }
    return load_config(
        overrides=[
            {
                "models": {"random": student},
                "student": "random",
                "engine": {
                    "backend": backend,
                    "max_batch": max(BATCHES),
                    "max_context": 1024,
                    "cache_bytes": (256 << 20) if tiny else (4 << 30),
                    "cache_tokens": 32_768,
                },
                "rewards": {"use_student_model": False},
                "search": {"max_tokens": response, "concurrent": trees, "iterations": simulations},
                "train": {
                    "eval_size": 0,
                    "validation_size": 0,
                    "iterations": simulations,
                    "extend": "none",
                    "grpo": {"batch_size": rows, "epochs": 1},
                },
            }
        ]
    )


# -- measuring ---------------------------------------------------------------------------------------------------------


class Stage:
    """Seconds and peak bytes of what runs inside; the peaks are None without CUDA."""

    def __enter__(self) -> Stage:
        if CUDA:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self.began = time.perf_counter()
        return self

    def __exit__(self, *_: Any) -> None:
        if CUDA:
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.began
        self.allocated = torch.cuda.max_memory_allocated() if CUDA else None
        self.reserved = torch.cuda.max_memory_reserved() if CUDA else None

    def row(self, name: str, forecast: float | None = None, **more: Any) -> dict[str, Any]:
        ratio = forecast / self.allocated if forecast is not None and self.allocated else None
        memory = {"allocated": self.allocated, "reserved": self.reserved, "forecast": forecast, "ratio": ratio}
        return {"stage": name, "seconds": self.seconds, **more, **memory}


def allocated(plan: Forecast, phase: str) -> float:
    """Bytes that torch itself is forecast to allocate."""
    return sum(part.size for part in plan.parts() if phase in part.phases and part.name != "CUDA itself")


def copy_bandwidth() -> float:
    """Bytes/s read and written by a copy on the device."""
    count = (1 << 30) if CUDA else (64 << 20)
    source = torch.zeros(count, dtype=torch.uint8, device="cuda" if CUDA else "cpu")
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(6):
        with Stage() as stage:
            target.copy_(source)
        best = min(best, stage.seconds)
    return 2 * count / best


def generation(student: Student, shape: ModelShape, tiny: bool, bandwidth: float) -> list[dict[str, Any]]:
    """Tokens/s at each batch; distinct random prompts, every row runs to its end."""
    prompt, response, *_ = SIZES[tiny]
    generator = torch.Generator().manual_seed(1)
    counts = Counts.of(shape, student.spec.lora)
    # The output layer is bf16; of the embedding a step reads its rows alone.
    weights = counts.nf4_bytes + shape.vocabulary * shape.hidden * 2
    states = 2 * shape.layers * shape.kv_heads * shape.head_dim * 2
    rows = []
    for batch in BATCHES:
        ids = [tuple(torch.randint(2, shape.vocabulary, (prompt,), generator=generator).tolist()) for _ in range(batch)]
        seconds = {}
        for tokens in (1, response):
            # No second run finds the first one's keys and values: the engine forgets at new weights.
            student.engine.set_policy(None, student.engine.version + 1)
            requests = [GenerateRequest(one, max_new_tokens=tokens, seed=i) for i, one in enumerate(ids)]
            with Stage() as stage:
                made = asyncio.run(student.engine.generate(requests))
            seconds[tokens] = stage.seconds
        sampled = sum(len(one.token_ids) for group in made for one in group)
        decoding = max(seconds[response] - seconds[1], 1e-9)
        steps = max(len(one.token_ids) for group in made for one in group) - 1
        read = steps * (weights + batch * (prompt + response / 2) * states)
        rows.append(
            stage.row(
                f"generate, batch {batch}",
                tokens_per_second=sampled / seconds[response],
                decode_tokens_per_second=(sampled - batch) / decoding,
                bandwidth_share=read / decoding / bandwidth,
            )
        )
    return rows


class Steps(TrainerCallback):
    """When each update began and ended."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if CUDA:
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.began)


def training_rows(shape: ModelShape, tiny: bool) -> list[TrainRow]:
    """Groups that share a prompt and half of their responses, as a tree's do."""
    prompt, response, count, group, *_ = SIZES[tiny]
    generator = torch.Generator().manual_seed(2)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(2, shape.vocabulary, (length,), generator=generator).tolist())

    rows = []
    for _ in range(count // group):
        asked, common = draw(prompt), draw(response // 2)
        for i in range(group):
            ids = common + draw(response - response // 2)
            rows.append(TrainRow(asked, ids, (-10.0,) * response, (1.0 if i % 2 else -1.0,) * response))
    return rows


def updates(
    student: Student, model: Any, config: Config, shape: ModelShape, tiny: bool, pack: str, forecast: float
) -> dict[str, Any]:
    """GRPO updates through the run's own trainer; the first one warms up."""
    rows, watch = training_rows(shape, tiny), Steps()
    economy = Economy.of(config, student.spec)
    student.model.train()
    with tempfile.TemporaryDirectory() as place, Stage() as stage:
        trainer = make_grpo_trainer(
            model,
            student.tokenizer,
            config.train.grpo.model_copy(update={"pack": pack}),
            rounds=SIZES[tiny][4],
            rows_per_round=len(rows),
            rows_of_round=lambda number: rows,
            output_dir=Path(place),
            save_every_rounds=1000,
            seed=config.seed,
            max_completion=config.search.max_tokens,
            callbacks=[watch],
            economy=economy,
        )
        trainer.train()
    student.model.eval()
    seconds = statistics.median(watch.seconds[1:])
    tokens = sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    return stage.row(
        f"GRPO, {'packed' if pack == 'on' else 'flat'}",
        forecast,
        rows_per_second=len(rows) / seconds,
        tokens_per_second=tokens / seconds,
    )


def search(student: Student, config: Config, mode: str, forecast: float) -> dict[str, Any]:
    """Simulations/s of training trees over embedded questions."""
    settings = config.search.model_copy(update={"mode": mode, "rollout": "sample"})
    config = config.model_copy(update={"search": settings})
    tasks = load_tasks("embedded", "train", config.search.concurrent, start=5000)
    student.engine.set_policy(None, student.engine.version + 1)

    async def grow() -> list[Any]:
        collector = Collector(student, config, None)
        return [tree async for tree in collector.collect([(t.problem.id, t) for t in tasks], config.seed)]

    with Stage() as stage:
        trees = asyncio.run(grow())
    simulations = sum(tree.tree.N[0] for tree in trees)
    sampled = sum(tree.cost.sampled_tokens for tree in trees)
    return stage.row(
        f"search, {mode}s",
        forecast,
        simulations=simulations,
        simulations_per_second=simulations / stage.seconds,
        tokens_per_second=sampled / stage.seconds,
    )


# -- the stages' processes ---------------------------------------------------------------------------------------------


def inprocess(folder: Path, tiny: bool) -> list[dict[str, Any]]:
    """Load, generate, train, search with the in-process engine; the search finds the optimiser's states in memory."""
    config, bandwidth = configuration(folder, tiny), copy_bandwidth()
    if CUDA:
        torch.cuda.empty_cache()
    shape = read_shape(folder / "config.json")
    assert shape is not None
    prompt = SIZES[tiny][0]
    plan = Forecast(config, config.models["random"], shape, CUDA, prompt=prompt, memory=device_memory()[2])
    with Stage() as stage:
        student = load_student(config)
    rows = [stage.row("load", bandwidth=bandwidth)]
    rows += generation(student, shape, tiny, bandwidth)
    model = make_trainable(student.model, student.spec, "lora")
    rows += [updates(student, model, config, shape, tiny, pack, allocated(plan, "train")) for pack in ("off", "on")]
    rows += [search(student, config, mode, allocated(plan, "search")) for mode in ("step", "token")]
    return rows


def vllm(folder: Path, tiny: bool) -> list[dict[str, Any]]:
    """The same generation through vLLM, for the comparison of engines."""
    config, bandwidth = configuration(folder, tiny, "vllm"), copy_bandwidth()
    shape = read_shape(folder / "config.json")
    assert shape is not None
    student = load_student(config)
    return [{**row, "stage": f"vLLM: {row['stage']}"} for row in generation(student, shape, tiny, bandwidth)]


def embedded(folder: Path, tiny: bool) -> list[dict[str, Any]]:
    """The embedded student on this process's device: what another device's must agree with."""
    count = 8 if tiny else 200
    config = load_config(
        overrides=[
            "student=embedded",
            "engine.native=off",
            "rewards.use_student_model=false",
            "search.iterations=8",
            "train.eval_size=0",
            f"train.validation_size={count}",
            f"train.num_examples={12 if tiny else 192}",
            f"train.save_every={12 if tiny else 192}",
            f"train.questions_per_round={6 if tiny else 48}",
        ]
    )
    student = load_student(config)
    tasks = load_tasks("embedded", "test", count)
    greedy = answer(student, tasks, max_tokens=config.search.max_tokens)
    worked = [
        (student.prompt_ids(task.problem.question), tuple(student.encode(task.solution or "")))
        for task in load_tasks("embedded", "train", count)
    ]
    scored = asyncio.run(student.engine.score(worked))

    async def grow() -> list[Any]:
        pairs = [(task.problem, config.seed) for task in tasks[: max(count // 10, 4)]]
        return [found async for _, found in answer_search(student, config, None).run_many(pairs)]

    found = asyncio.run(grow())
    run = Run(config)
    run.load()
    (folder / "run").mkdir()
    began = time.perf_counter()
    card = run.execute(RunFolder(folder / "run"))
    assert card is not None
    metrics = RunFolder(folder / "run").read_metrics()
    return [
        {
            "stage": "embedded",
            "device": str(next(student.model.parameters()).device),
            "greedy_correct": greedy.first,
            "logprobs": [one for row in scored for one in row],
            "search_answers": sorted(str(None if one.choice is None else one.choice.answer) for one in found),
            "validation": [line["validation_accuracy"] for line in metrics if "validation_accuracy" in line],
            "run_seconds": time.perf_counter() - began,
        }
    ]


STAGES = {"inprocess": inprocess, "vllm": vllm, "embedded": embedded}


def in_process_of_its_own(stage: str, folder: Path, tiny: bool, device: str | None = None) -> list[dict[str, Any]]:
    """A stage's rows; `device` "cpu" hides the GPU from it."""
    command = [sys.executable, __file__, "--stage", stage, str(folder), *(["--tiny"] if tiny else [])]
    environment = dict(os.environ) | QUIET | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return [{"stage": stage, "failed": done.returncode}]
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def agreement(here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """Two devices' results of the embedded student."""
    gap = max(abs(a - b) for a, b in zip(here["logprobs"], there["logprobs"], strict=True))
    same = [a == b for a, b in zip(here["greedy_correct"], there["greedy_correct"], strict=True)]
    searched = [a == b for a, b in zip(here["search_answers"], there["search_answers"], strict=True)]
    last = [one["validation"][-1] for one in (here, there)]
    return {
        "stage": f"embedded, {here['device']} and {there['device']}",
        "logprob_gap": gap,
        "same_greedy": sum(same) / len(same),
        "same_search": sum(searched) / len(searched),
        "validation_after": last,
        "agrees": gap < LOGPROB_TOLERANCE and abs(last[0] - last[1]) <= ACCURACY_TOLERANCE,
    }


def show(row: dict[str, Any]) -> None:
    def number(key: str, scale: float = 1.0, text: str = "12,.1f") -> str:
        value = row.get(key)
        return f"{'-':>12}" if value is None else f"{value * scale:{text}}"

    rate = next((key for key in ("rows_per_second", "simulations_per_second") if key in row), "")
    print(
        f"{row['stage']:28} {number('tokens_per_second')} {number(rate, text='12,.2f')}"
        f" {number('bandwidth_share', text='12.1%')} {number('allocated', 2**-30, '12.2f')}"
        f" {number('reserved', 2**-30, '12.2f')} {number('forecast', 2**-30, '12.2f')} {number('ratio', text='12.2f')}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model, for a test of this script")
    parser.add_argument("--student", default="llama-3.2-3b", help="whose shape (a name of models.yaml with a shape)")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/gpu_<device>.json")
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        name, folder = args.stage
        print(json.dumps(STAGES[name](Path(folder), args.tiny)))
        return
    if not CUDA and not args.tiny:
        parser.error("there is no CUDA device: run it on one, or with --tiny")
    shape = TINY if args.tiny else load_config().models[args.student].shape
    if shape is None:
        parser.error(f"{args.student} has no shape in models.yaml")
    device = torch.cuda.get_device_name() if CUDA else "cpu"
    print(f"{args.student if not args.tiny else 'tiny'} in NF4 with LoRA on {device}; memory in GiB")
    heads = ("tokens/s", "rows, sims/s", "bandwidth", "allocated", "reserved", "forecast", "ratio")
    print(f"{'stage':28} " + " ".join(f"{head:>12}" for head in heads))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        build(shape, folder)
        if CUDA:
            torch.cuda.empty_cache()
        rows = in_process_of_its_own("inprocess", folder, args.tiny)
        if CUDA and importlib.util.find_spec("vllm") is not None:
            rows += in_process_of_its_own("vllm", folder, args.tiny)
        for row in rows:
            print(f"{row['stage']} FAILED") if "failed" in row else show(row)
        ends = []
        for where in ("cpu", "cuda") if CUDA else ("cpu", "cpu"):
            (Path(place) / f"{where}{len(ends)}").mkdir()
            ends += in_process_of_its_own("embedded", Path(place) / f"{where}{len(ends)}", args.tiny, where)
        if not any("failed" in end for end in ends):
            rows.append(agreement(*ends))
            print(json.dumps(rows[-1]))
    result = {"command": " ".join(sys.argv), "device": device, "torch": torch.__version__, "rows": rows}
    name = "".join(c if c.isalnum() else "-" for c in device).strip("-").lower()
    out = args.out or ROOT / "benchmarks" / "results" / f"gpu_{'tiny_' if args.tiny else ''}{name}.json"
    provenance.write(out, "gpu", result)
    if any("failed" in row for row in [*rows, *ends]) or not rows[-1].get("agrees", True):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
