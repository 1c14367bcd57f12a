"""The in-process engine on a real model: fp32 and bfloat16, one thread and all, beside torch's forward.

    ALPHAZERO_DATA_DIR=FOLDER uv run python benchmarks/real_engine.py --model FOLDER

GSM8K questions, one response each of exactly `--new-tokens` tokens, sampled at temperature 1 with log-probabilities, all at
once. The fastest of the repeats counts, by wall clock and by CPU time each, and the ways take turns, so that a busy machine
slows all of them. Beside it the floor: the same tokens if the linear layers' products (torch.mm on their true shapes, in
that precision, at a decode step's rows) were all there is. Ratios hold, absolute times are this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.sections import EngineConfig  # noqa: E402
from alphazero_llm_trainer.engine.inprocess import InProcessEngine  # noqa: E402
from alphazero_llm_trainer.engine.protocol import GenerateRequest  # noqa: E402
from alphazero_llm_trainer.engine.step_ends import StepEnds  # noqa: E402
from alphazero_llm_trainer.policy.backend import QUESTION, ROUNDED, check_numerics  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from benchmarks import provenance  # noqa: E402

WAYS = {
    "kernels, bfloat16": {"dtype": "bfloat16"},
    "kernels, fp32": {"dtype": "float32"},
    "torch, fp32": {"native": "off"},
}


def measure(model: Any, prompts: list[tuple[int, ...]], new_tokens: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Seconds by clock and CPU of one fresh engine: nothing is remembered, and no token ends a response."""
    engine = InProcessEngine(model, eos_id=-1, step_ends=StepEnds(frozenset()), settings=EngineConfig(**settings))
    requests = [GenerateRequest(prompt, max_new_tokens=new_tokens, seed=i) for i, prompt in enumerate(prompts)]
    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(engine.generate(requests))
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "products": engine.facts["forward"]["products"],
        "forward": engine.stats.forward_seconds / engine.stats.step_seconds,
    }


def floor(model: Any, rows: int, dtype: torch.dtype) -> tuple[float, float]:
    """Tokens/s and GFLOP/s of a decode step's products alone, by CPU time."""
    weights = [
        module.weight.detach().to(dtype).t() for module in model.modules() if isinstance(module, torch.nn.Linear)
    ]
    pairs = [(torch.randn(rows, weight.shape[0]).to(dtype), weight) for weight in weights]
    best = float("inf")
    with torch.inference_mode():
        for _ in range(10):
            began = time.process_time()
            for left, right in pairs:
                torch.mm(left, right)
            best = min(best, time.process_time() - began)
    return rows / best, 2e-9 * rows * sum(weight.numel() for weight in weights) / best


def table(model: Any, prompts: list[tuple[int, ...]], args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    tokens = len(prompts) * args.new_tokens
    print(f"{'way':20} {'threads':>7} {'a CPU s':>9} {'a second':>9} {'floor':>9} {'GFLOP/s':>9} {'in model':>9}")
    for threads in args.threads:
        torch.set_num_threads(threads)
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(args.repeats):
            for way, settings in WAYS.items():
                runs[way].append(measure(model, prompts, args.new_tokens, settings))
        for way, found in runs.items():
            limit, speed = floor(model, len(prompts), torch.bfloat16 if "bfloat16" in way else torch.float32)
            row = {
                "way": way,
                "threads": threads,
                "products": found[0]["products"],
                "tokens_per_cpu_second": tokens / min(one["cpu"] for one in found),
                "tokens_per_second": tokens / min(one["wall"] for one in found),
                "floor_tokens_per_cpu_second": limit,
                "floor_gflops": speed,
                "forward_share": min(one["forward"] for one in found),
            }
            rows.append(row)
            print(
                f"{way:20} {threads:7} {row['tokens_per_cpu_second']:9,.0f} {row['tokens_per_second']:9,.0f} {limit:9,.0f}"
                f" {speed:9,.0f} {row['forward_share']:9.0%}",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or hub id of a Llama")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "real_engine.json")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)

    def prompt(question: str) -> tuple[int, ...]:
        turn = [{"role": "user", "content": question}]
        return tuple(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)["input_ids"])

    prompts = [prompt(task.problem.question) for task in load_tasks("gsm8k", "test", args.questions)]
    rows = table(model, prompts, args)
    engine = InProcessEngine(model, eos_id=-1, step_ends=StepEnds(frozenset()), settings=EngineConfig(dtype="bfloat16"))
    numerics = check_numerics(engine, model, prompt(QUESTION), ROUNDED)
    print("log-probabilities in bfloat16 against the model's forward in fp32, nats:", numerics)
    flags = f"--model FOLDER --threads {' '.join(map(str, args.threads))} --questions {args.questions}"
    result = {
        "command": f"python benchmarks/real_engine.py {flags} --new-tokens {args.new_tokens} --repeats {args.repeats}",
        "model": Path(args.model).name,
        "parameters": model.num_parameters(),
        "torch": torch.__version__,
        "questions": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "new_tokens": args.new_tokens,
        "rows": rows,
        "numerics": numerics,
    }
    provenance.write(args.out, "real_engine", result)


if __name__ == "__main__":
    main()
