"""Which student ships? Small Llamas of several sizes from scratch on the same worked solutions, on
validation problems alone.

    uv run python benchmarks/students.py

A line of the table is a shape, a seed, a mix of levels, and how many solutions and updates: greedy
accuracy and one of eight samples at temperature 1 on 300 validation problems of each level, with
the curve of greedy accuracy while it learnt. A student that is in the JSON isn't trained again. No
test problem is read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from alphazero_llm_trainer.config.load import Config, load_config  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.policy.student import Student  # noqa: E402
from alphazero_llm_trainer.problems.load import tasks_of  # noqa: E402
from alphazero_llm_trainer.problems.source import open_source  # noqa: E402
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer  # noqa: E402
from alphazero_llm_trainer.training.models import MemoryOptions  # noqa: E402
from alphazero_llm_trainer.training.sft import (  # noqa: E402
    QUESTION_WEIGHT,
    settings_of,
    sft_rows,
    student_from_scratch,
    train_student,
    worked_solutions,
)
from alphazero_llm_trainer.types import Task  # noqa: E402
from benchmarks import provenance  # noqa: E402

EACH, AFTER = (
    300,
    600,
)  # validation problems of a level, and the first of them: those before choose the weights
SAMPLES = 8


def shape(layers: int, hidden: int) -> dict[str, Any]:
    """Heads of 32, which vLLM computes on a CPU too; three times the width in the MLP, tied
    embeddings.
    """
    heads = hidden // 32
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": 32}
    return sizes | {"intermediate": 3 * hidden, "vocabulary": 130, "tied": True}


def configured(args: argparse.Namespace, seed: int, size: str, levels: list[int]) -> Config:
    layers, hidden = map(int, size.split("x"))
    optimizer = {"warmup": args.warmup, "weight_decay": args.decay, "learning_rate": args.rate}
    train = {
        "demonstrations": args.solutions,
        "validation_size": EACH,
        "evaluate_every": 300,
        "optimizer": optimizer,
    }
    train["sft"] = {"steps": args.steps}
    overrides: dict[str, Any] = {
        "student": "small",
        "seed": seed,
        "problems": {"levels": levels},
        "train": train,
    }
    overrides["models"] = {"small": {"shape": shape(layers, hidden)}}
    return load_config(None, overrides=[overrides])


def student_of(config: Config, levels: list[int]) -> tuple[Student, dict[str, Any]]:
    """A student from scratch, and how it learnt."""
    source = open_source(config)
    student = student_from_scratch(config, build_tokenizer(source))
    rows = sft_rows(worked_solutions(config, source), student, QUESTION_WEIGHT)
    memory = MemoryOptions.of(config, student.spec, student.model)
    checked = tasks_of(config, "validation", EACH)

    def accuracy() -> float:
        return fmean(measure(student, checked, config))

    return student, train_student(
        student.model,
        rows,
        settings_of(config, len(rows)),
        config.library_seed,
        memory,
        evaluate=accuracy,
    )


def measure(student: Student, tasks: list[Task], config: Config, samples: int = 1) -> list[bool]:
    """Whether a greedy answer is right, or one of several samples, by problem."""
    student.model.eval()
    student.engine.set_policy(None, student.engine.version + 1)
    temperature = 0.0 if samples == 1 else 1.0
    answers = answer(
        student, tasks, max_tokens=config.search.max_tokens, n=samples, temperature=temperature
    )
    student.engine.sleep()
    return [any(row) for row in answers.correct]


def line(args: argparse.Namespace, seed: int, size: str, levels: list[int]) -> dict[str, Any]:
    config = configured(args, seed, size, levels)
    student, trained = student_of(config, levels)
    row: dict[str, Any] = {
        "parameters": sum(weight.numel() for weight in student.model.parameters())
    }
    row["seconds"] = trained["seconds"]
    row["curve"] = [[point["step"], point["accuracy"]] for point in trained["evaluations"]]
    for level in levels:
        own = load_config(None, overrides=[{"problems": {"levels": [level]}}])
        tasks = tasks_of(own, "validation", EACH, AFTER)
        greedy, one_of = measure(student, tasks, config), measure(student, tasks, config, SAMPLES)
        row[f"level {level}"] = {"greedy": fmean(greedy), "one_of_8": fmean(one_of)}
    for key in ("greedy", "one_of_8"):
        row[key] = fmean(row[f"level {level}"][key] for level in levels)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = ["2x64", "1x64", "2x32", "2x96", "3x64", "2x128"]
    parser.add_argument("--sizes", nargs="+", default=sizes, help="layers x width")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8])
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--solutions", type=int, default=500, help="worked solutions that it learns from"
    )
    parser.add_argument("--steps", type=int, default=4000, help="updates of 16 rows")
    parser.add_argument("--rate", type=float, default=8e-3, help="learning rate of AdamW")
    parser.add_argument("--warmup", type=int, default=500, help="updates over which it rises")
    parser.add_argument("--decay", type=float, default=0.3, help="weight decay")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "students.json"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in args.seeds:
        for size in args.sizes:
            key = {"size": size, "seed": seed, "levels": args.levels, "solutions": args.solutions}
            key |= {
                "steps": args.steps,
                "decay": args.decay,
                "rate": args.rate,
                "warmup": args.warmup,
            }
            rows = (
                json.loads(args.out.read_text(encoding="utf-8"))["students"]
                if args.out.exists()
                else []
            )
            if any(key.items() <= row.items() for row in rows):
                continue
            row = key | line(args, seed, size, args.levels)
            rows = (
                json.loads(args.out.read_text(encoding="utf-8"))["students"]
                if args.out.exists()
                else []
            )
            provenance.write(args.out, {"problems": EACH, "students": [*rows, row]})
            print(
                f"{size:6} seed {seed}: {row['greedy']:.3f}, one of eight {row['one_of_8']:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
