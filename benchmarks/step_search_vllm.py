"""Step search of a real model: the in-process engine against vLLM's CPU build that is driven by the same search.

    ALPHAZERO_DATA_DIR=FOLDER uv run python benchmarks/step_search_vllm.py --env-dir ENV

`train`'s search, `--simulations` of them a question with four samples each, over GSM8K questions in bfloat16 on one thread.
ENV is the environment of `scripts/vllm_cpu.py` (vLLM and this project's dependencies). vLLM runs behind `engine.backend=vllm`,
with its prefix cache; CPU seconds count its processes. The engines draw from random numbers of their own, so the trees are not
the same: figures are by simulation and by sampled token. The first round of questions warms up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import provenance  # noqa: E402

MARK = "RESULT "  # vLLM prints lines of its own to stdout
SEED = 7


def cpu_seconds() -> float:
    """Of this process and those that it started."""
    import psutil

    me = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in [me, *me.children(recursive=True)])


def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    """Rounds of one engine in this process; the first one is left out."""
    import torch

    from alphazero_llm_trainer.config.load import load_config
    from alphazero_llm_trainer.policy.student import load_student
    from alphazero_llm_trainer.problems.load import load_tasks
    from alphazero_llm_trainer.rollouts import Collector

    overrides: list[Any] = [f"student={args.model}", "rewards.use_student_model=false"]
    overrides += [f"search.simulations={args.simulations}", f"engine.backend={args.engine}"]
    if args.engine == "vllm":
        overrides.append({"models": {args.model: {"dtype": "bfloat16"}}})
    else:
        overrides.append("engine.dtype=bfloat16")
    config = load_config(overrides=overrides)
    student: Any = load_student(config)
    torch.set_num_threads(1)  # a real model's student takes all cores
    rounds = []
    for number in range(args.rounds + 1):
        tasks = load_tasks("gsm8k", "test", args.questions, start=args.questions * number)
        keyed = [(task.problem.id, task) for task in tasks]

        async def grow(keyed: list[Any] = keyed, seed: int = SEED + number) -> list[Any]:
            return [tree async for tree in Collector(student, config, None).collect(keyed, seed)]

        cpu, wall = cpu_seconds(), time.perf_counter()
        trees = asyncio.run(grow())
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
        rounds.append({
            "cpu_seconds": cpu, "seconds": wall,
            "simulations": sum(int(one.tree.N[0]) for one in trees),
            "tokens": sum(one.cost.sampled_tokens for one in trees),
        })  # fmt: skip
    if args.engine == "vllm":
        student.engine.close()
    return rounds[1:]


def run(engine: str, python: str | Path, args: argparse.Namespace) -> dict[str, float]:
    """Sums over the rounds of one engine, measured by `python`."""
    from scripts.vllm_cpu import SETTINGS

    command = [
        str(python),
        "-P",
        __file__,
        "--engine",
        engine,
        "--model",
        args.model,
        "--questions",
        str(args.questions),
    ]
    command += ["--simulations", str(args.simulations), "--rounds", str(args.rounds)]
    done = subprocess.run(command, env={**os.environ, **SETTINGS}, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            rounds = json.loads(line.removeprefix(MARK))
            return {key: sum(one[key] for one in rounds) for key in rounds[0]}
    print(f"step_search_vllm: {engine} ended without a result: {done.stderr[-2000:]}", file=sys.stderr)
    raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-dir", type=Path, help="vLLM's environment, kept (default: a temporary folder)")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--simulations", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2, help="of so many questions, after one that warms up")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "step_search_vllm.json")
    parser.add_argument("--engine", choices=["inprocess", "vllm"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine is not None:
        print(MARK + json.dumps(measure(args)), flush=True)
        return
    from scripts.vllm_cpu import EnvironmentMissingError, dependencies, environment_python, versions

    with tempfile.TemporaryDirectory() as scratch:
        try:
            python = environment_python((args.env_dir or Path(scratch) / "env").absolute(), dependencies())
        except EnvironmentMissingError as error:
            print(f"step_search_vllm: {error}", file=sys.stderr)
            raise SystemExit(2) from error
        engines = {"inprocess": run("inprocess", sys.executable, args), "vllm": run("vllm", python, args)}
        used = versions(python)
    for name, one in engines.items():
        one["simulations_per_cpu_second"] = one["simulations"] / one["cpu_seconds"]
        one["tokens_per_cpu_second"] = one["tokens"] / one["cpu_seconds"]
        speed = f"{one['simulations_per_cpu_second']:6.2f} simulations {one['tokens_per_cpu_second']:6.0f} tokens"
        print(f"{name:10} {speed} a CPU second")
    ratios = {
        key: engines["inprocess"][key] / engines["vllm"][key]
        for key in ("simulations_per_cpu_second", "tokens_per_cpu_second")
    }
    options = (
        f"--model {args.model} --questions {args.questions} --simulations {args.simulations} --rounds {args.rounds}"
    )
    result = {
        "command": f"python benchmarks/step_search_vllm.py {options}", "device": f"{platform.machine()} CPU, 1 thread",
        "model": args.model, "dtype": "bfloat16", "questions": args.questions, "simulations": args.simulations,
        "rounds": args.rounds, "seed": SEED, "versions": used, "engines": engines, "ratios": ratios,
    }  # fmt: skip
    provenance.write(args.out, "step_search_vllm", result)


if __name__ == "__main__":
    main()
