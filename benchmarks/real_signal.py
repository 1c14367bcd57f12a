"""Where a real language model has something to learn from its own samples: SFT rows against tasks.

    uv run alphazero-llm-trainer fetch smollm2-135m
    uv run python benchmarks/real_signal.py --data FOLDER

For each task the model goes on through growing numbers of worked solutions, each row once. After each of them: greedy accuracy,
pass@8 and the mean at temperature 1, and the share of groups of eight samples that hold right and wrong ones, which is what
GRPO and rejection sampling learn from. All on validation problems, because the figures choose where to teach. A task of
reasoning-gym without worked solutions teaches its answer alone (`#### ANSWER`). gsm-symbolic is answered a second time with
a calculator that writes the result after each `a op b =`. A stopped benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import provenance  # noqa: E402

SOURCES = {
    "embedded, levels 1-2": ["problems.levels=[1,2]"],
    "embedded, levels 1-3": ["problems.levels=[1,2,3]"],
    "embedded, level 4": ["problems.levels=[4]"],
    "gsm-symbolic": ["problems.source=gsm-symbolic"],
    "chain_sum": ["problems.source=reasoning-gym:chain_sum"],
    "simple_equations": ["problems.source=reasoning-gym:simple_equations"],
    "leg_counting": ["problems.source=reasoning-gym:leg_counting"],
    "gcd": ["problems.source=reasoning-gym:gcd"],
    "GSM8K": ["problems.source=gsm8k"],
}
WITH_TOOL = ("gsm-symbolic",)
BATCH, RATE, WARMUP, SEED, SAMPLES = 16, 1e-4, 6, 7, 8
LIMIT = 160  # tokens of an answer


def measure(task: str, out: Path, args: argparse.Namespace) -> None:
    """All row counts of one task in this process; `out` is written after each of them."""
    from alphazero_llm_trainer.config.load import load_config
    from alphazero_llm_trainer.eval.attempt import MethodContext
    from alphazero_llm_trainer.eval.cells import Benchmark, run_cell
    from alphazero_llm_trainer.eval.greedy import answer
    from alphazero_llm_trainer.eval.metrics import wilson
    from alphazero_llm_trainer.policy.student import load_student
    from alphazero_llm_trainer.problems.load import opening, tasks_of
    from alphazero_llm_trainer.problems.step_checks import Calculator
    from alphazero_llm_trainer.training.models import Economy, make_trainable
    from alphazero_llm_trainer.training.sft import SftSettings, sft_rows, train_student

    settings = [f"student={args.model}", f"seed={SEED}", f"search.max_tokens={LIMIT}", *SOURCES[task]]
    config = load_config(overrides=[*settings, f"dataset.path={args.data}"])
    student = load_student(config, opening=opening(config))
    model = make_trainable(student.model, student.spec, "full")
    demonstrations = tasks_of(config, "train", max(args.rows))
    worked = [one if one.solution else replace(one, solution=f"#### {one.gold}") for one in demonstrations]
    problems = tasks_of(config, "validation", args.problems)
    grouped = problems[: args.grouped]
    found: list[dict[str, Any]] = []
    known, minutes = 0, 0.0
    for rows in args.rows:
        updates = (min(rows, len(worked)) - known) // BATCH
        if rows and not updates:
            break  # the data set has no more
        if updates:
            chosen = SftSettings(steps=updates, batch_size=BATCH, learning_rate=RATE, warmup_steps=WARMUP, seed=SEED)
            examples = sft_rows(worked[known : known + updates * BATCH], student, 0.0)
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                economy = Economy.of(config, student.spec, student.model)
                train_student(model, examples, student.tokenizer, chosen, out_dir=Path(folder), economy=economy)
            known, minutes = known + updates * BATCH, minutes + (time.monotonic() - began) / 60
        student.engine.set_policy(None, student.engine.version + 1)
        greedy = answer(student, problems, max_tokens=LIMIT)
        sampled = answer(student, grouped, max_tokens=LIMIT, n=SAMPLES, temperature=1.0, seed=SEED).correct
        tool = None
        if task in WITH_TOOL:
            context = MethodContext(student, Calculator(), config)
            benchmark = Benchmark(task, tuple(problems))
            cell = asyncio.run(run_cell(context, benchmark, "calculator-tool", LIMIT, lambda: False, lambda _: None))
            tool = wilson(cell.outcomes.count("1"), len(problems))
        student.engine.rest()
        right = [sum(row) for row in sampled]
        best = wilson(sum(greedy.first), len(problems))
        passed = wilson(sum(count > 0 for count in right), len(right))
        mixed = wilson(sum(0 < count < SAMPLES for count in right), len(right))
        found.append(
            {
                "rows": known,
                "minutes": round(minutes, 1),
                "greedy": [best.value, best.low, best.high],
                "mean": sum(right) / len(right) / SAMPLES,
                "pass_at_8": [passed.value, passed.low, passed.high],
                "mixed_groups": [mixed.value, mixed.low, mixed.high],
                "tokens_an_answer": greedy.tokens / len(problems),
                "correct": "".join(str(int(one)) for one in greedy.first),
                "right_samples": "".join(map(str, right)),
                **({} if tool is None else {"with_calculator": [tool.value, tool.low, tool.high]}),
            }
        )
        out.write_text(json.dumps(found))
        print(f"{task:24} {known:5} rows, greedy {best.value:.3f}, pass@8 {passed.value:.3f}, mixed {mixed.value:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", required=True, help="a folder with gsm8k/train.jsonl")
    parser.add_argument("--tasks", nargs="+", default=list(SOURCES), choices=list(SOURCES), metavar="TASK")
    parser.add_argument("--rows", type=int, nargs="+", default=[0, 500, 1000, 2000], help="worked solutions, growing")
    parser.add_argument("--problems", type=int, default=200, help="validation problems answered greedily")
    parser.add_argument("--grouped", type=int, default=100, help="those of them that get eight samples")
    parser.add_argument("--work", type=Path, default=Path("runs") / "signal")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "real_signal.json")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        measure(args.one[0], Path(args.one[1]), args)
        return
    args.work.mkdir(parents=True, exist_ok=True)
    sizes = ["--rows", *map(str, args.rows), "--problems", str(args.problems), "--grouped", str(args.grouped)]
    found = {}
    for task in args.tasks:
        named = "-".join([task.replace(",", ""), Path(args.model).name, *sizes[1:]]).replace(" ", "-").replace("--", "")
        kept = args.work / f"{named}.json"
        if not kept.exists():
            part = kept.with_suffix(".part")
            command = [sys.executable, __file__, "--one", task, str(part), "--model", args.model, "--data", args.data]
            subprocess.run([*command, *sizes], check=True)
            part.rename(kept)
        found[task] = json.loads(kept.read_text())
    named = "" if args.tasks == list(SOURCES) else f" --tasks {shlex.join(args.tasks)}"
    result = {
        "command": f"uv run python benchmarks/real_signal.py --data FOLDER {' '.join(sizes)}{named}",
        "machine": platform.machine(), "cores": os.cpu_count(), "model": args.model, "seed": SEED, "batch": BATCH,
        "learning_rate": RATE, "max_tokens": LIMIT, "problems": args.problems, "grouped": args.grouped, "samples": SAMPLES,
        "tasks": found,
    }  # fmt: skip
    provenance.write(args.out, "real_signal", result)


if __name__ == "__main__":
    main()
