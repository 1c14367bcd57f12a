r"""What a chat model is told before a problem: candidate prompts on GSM8K training rows.

    uv run python benchmarks/prompts.py --model FOLDER --data FOLDER

Greedy answers of a chat model: right ones, tokens, those that were cut, and those that state no answer (`####`, `\boxed{}`,
"the answer is"), for each prompt, over rows that the package calls training. A stopped benchmark goes on at the next prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer import answers  # noqa: E402
from alphazero_llm_trainer.api.search import load  # noqa: E402
from alphazero_llm_trainer.engine.protocol import GenerateRequest  # noqa: E402
from alphazero_llm_trainer.eval.metrics import wilson  # noqa: E402
from alphazero_llm_trainer.policy.student import Student  # noqa: E402
from alphazero_llm_trainer.problems.grading import GRADERS  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.types import Task  # noqa: E402
from benchmarks import provenance  # noqa: E402

# name -> system prompt, worked solutions before the question
PROMPTS = {
    "example and placeholder": (
        "Solve the word problem step by step. Write one short step a line, each with its calculation, for example"
        " `16 - 3 = 13`. Write no headings and no lists. End with one line that holds only `#### N`, where N is the final"
        " answer as a plain number without units.",
        0,
    ),
    "tutor": (
        "You are a careful math tutor. Solve the problem step by step in a few short lines. Then write the last line: ####"
        " and the number that answers the question.",
        0,
    ),
    "four shots": ("Solve the problem step by step. End with #### and the answer.", 4),
    "boxed": (r"Please reason step by step, and put your final answer within \boxed{}.", 0),
    "lines": (
        "Solve the problem step by step, each step with its calculation on a line of its own. The last line is #### followed"
        " by the final number alone.",
        0,
    ),
}


def answered(student: Student, tasks: list[Task], limit: int) -> list[dict[str, Any]]:
    """What is kept of each greedy answer."""
    requests = [
        GenerateRequest(student.prompt_ids(task.problem.question), max_new_tokens=limit, temperature=0.0)
        for task in tasks
    ]
    found = []
    for task, [one] in zip(tasks, asyncio.run(student.engine.generate(requests)), strict=True):
        text = student.decode(one.token_ids)
        stated = answers.extract(text, words=True)
        found.append({
            "id": task.problem.id,
            "correct": GRADERS["numbers"].grade_many([(text, task.gold)])[0].correct,
            "tokens": len(one.token_ids),
            "cut": one.finish == "length",
            "stated": stated is not None and answers.number(stated) is not None,
        })  # fmt: skip
    return found


def row(prompt: str, shots: int, problems: list[dict[str, Any]]) -> dict[str, Any]:
    """A line of the table."""
    count = len(problems)
    right = wilson(sum(one["correct"] for one in problems), count)
    return {
        "system_prompt": prompt,
        "shots": shots,
        "rows": count,
        "accuracy": [right.value, right.low, right.high],
        "tokens": sum(one["tokens"] for one in problems) / count,
        "cut": sum(one["cut"] for one in problems) / count,
        "no_answer": sum(not one["stated"] for one in problems) / count,
        "problems": problems,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a chat model: a name of models.yaml or a folder")
    parser.add_argument("--data", help="a folder with gsm8k/train.jsonl")
    parser.add_argument("--num", type=int, default=32, help="training rows")
    parser.add_argument("--start", type=int, default=2000, help="the first of them")
    parser.add_argument("--limit", type=int, default=400, help="tokens of an answer")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "prompts.json")
    args = parser.parse_args()
    tasks = load_tasks("gsm8k", "train", args.num, start=args.start, path=args.data)
    result: dict[str, Any] = {
        "command": f"uv run python benchmarks/prompts.py --model FOLDER --data FOLDER --num {args.num} --start {args.start}",
        "machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "model": Path(args.model).name, "source": "gsm8k train", "first_row": args.start, "max_tokens": args.limit,
        "seconds": 0.0, "prompts": {},
    }  # fmt: skip
    if args.out.exists():
        kept = json.loads(args.out.read_text(encoding="utf-8"))
        if all(kept[key] == result[key] for key in ("command", "model", "max_tokens")):
            result = kept
    for label, (system, shots) in PROMPTS.items():
        if label in result["prompts"]:
            continue
        problems = {"source": "gsm8k", "system_prompt": system, "shots": shots}
        student = load(args.model, config={"problems": {**problems, "path": args.data}})
        began = time.monotonic()
        line = result["prompts"][label] = row(system, shots, answered(student, tasks, args.limit))
        result["seconds"] += time.monotonic() - began
        provenance.write(args.out, "prompts", result)
        print(
            f"{label:24} {line['accuracy'][0]:.3f} right, {line['tokens']:.0f} tokens, {line['cut']:.0%} cut,"
            f" {line['no_answer']:.0%} without an answer ({time.monotonic() - began:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
