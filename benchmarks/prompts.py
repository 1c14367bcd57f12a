r"""What a chat model is told before a problem: candidate prompts on GSM8K training rows.

    uv run python benchmarks/prompts.py --model FOLDER --data FOLDER

Greedy answers of a chat model by transformers in bfloat16: right ones, tokens, those that were cut, and those that state no
answer (`####`, `\boxed{}`, "the answer is"), for each prompt, over rows that the package calls training. Batches go through
all prompts before the next rows. The JSON is written after each batch, and a stopped benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
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
from alphazero_llm_trainer.eval.metrics import wilson  # noqa: E402
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


def chat(system: str, shots: list[Task], question: str) -> list[dict[str, str]]:
    """The messages of one question."""
    turns = [(one.problem.question, one.solution or "") for one in shots]
    told = [("system", system), *((r, t) for turn in turns for r, t in zip(("user", "assistant"), turn, strict=True))]
    return [{"role": role, "content": text} for role, text in (*told, ("user", question))]


@torch.inference_mode()
def greedy(model: Any, prompts: list[list[int]], ends: set[int], limit: int, pad: int) -> list[list[int]]:
    """Token ids of greedy answers, at most `limit` each. What all prompts begin with is read once; a row that ended leaves."""
    shortest = min(map(len, prompts)) - 1
    shared = next((at for at in range(shortest) if len({row[at] for row in prompts}) > 1), shortest)
    cache = model(torch.tensor([prompts[0][:shared]]), use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(len(prompts))
    rests = [row[shared:] for row in prompts]
    width = max(map(len, rests))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rests])
    mask = torch.tensor([[1] * shared + [0] * (width - len(row)) + [1] * len(row) for row in rests])
    found: list[list[int]] = [[] for _ in prompts]
    alive = list(range(len(prompts)))
    for _ in range(limit):
        places = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(
            ids, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        cache, drawn = out.past_key_values, out.logits[:, -1].argmax(-1)
        for row, token in zip(alive, drawn.tolist(), strict=True):
            found[row].append(token)
        kept = [at for at, row in enumerate(alive) if found[row][-1] not in ends]
        if not kept:
            break
        if len(kept) < len(alive):
            cache.batch_select_indices(torch.tensor(kept))
        alive, ids = [alive[at] for at in kept], drawn[kept][:, None]
        mask = torch.cat((mask[kept], torch.ones(len(kept), 1, dtype=mask.dtype)), 1)
    return found


def record(task: Task, tokens: list[int], ended: bool, text: str) -> dict[str, Any]:
    """What is kept of an answer."""
    stated = answers.extract(text, words=True)
    return {
        "id": task.problem.id,
        "correct": GRADERS["numbers"].grade_many([(text, task.gold)])[0].correct,
        "tokens": len(tokens),
        "cut": not ended,
        "stated": stated is not None and answers.number(stated) is not None,
    }


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
    parser.add_argument("--model", required=True, type=Path, help="a folder with a chat model")
    parser.add_argument("--name", help="the model's name in the JSON; default: the folder's")
    parser.add_argument("--data", help="a folder with gsm8k/train.jsonl")
    parser.add_argument("--num", type=int, default=32, help="training rows")
    parser.add_argument("--start", type=int, default=2000, help="the first of them")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--limit", type=int, default=400, help="tokens of an answer")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "prompts.json")
    args = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).eval()
    named = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *([named] if isinstance(named, int) else named or [])}
    tasks = load_tasks("gsm8k", "train", args.num, start=args.start, path=args.data)
    shots = load_tasks("gsm8k", "train", max(count for _, count in PROMPTS.values()), path=args.data)
    name = args.name or args.model.resolve().name
    result: dict[str, Any] = {
        "command": f"uv run python benchmarks/prompts.py --model FOLDER --data FOLDER --num {args.num} --start {args.start}",
        "machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "model": name,
        "source": "gsm8k train", "first_row": args.start, "max_tokens": args.limit, "seconds": 0.0, "prompts": {},
    }  # fmt: skip
    if args.out.exists():
        kept = json.loads(args.out.read_text(encoding="utf-8"))
        if all(kept[key] == result[key] for key in ("command", "model", "max_tokens")):
            result = kept
    for first in range(0, len(tasks), args.batch):
        batch = tasks[first : first + args.batch]
        for label, (system, count) in PROMPTS.items():
            done = result["prompts"].get(label, {"problems": []})["problems"]
            if len(done) > first:
                continue
            began = time.monotonic()
            texts = [
                tokenizer.apply_chat_template(
                    chat(system, shots[:count], task.problem.question), tokenize=False, add_generation_prompt=True
                )
                for task in batch
            ]
            prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
            answered = greedy(model, prompts, ends, args.limit, tokenizer.pad_token_id)
            found = [
                record(task, ids, ids[-1] in ends, tokenizer.decode(ids, skip_special_tokens=True))
                for task, ids in zip(batch, answered, strict=True)
            ]
            result["prompts"][label] = row(system, count, [*done, *found])
            result["seconds"] += time.monotonic() - began
            provenance.write(args.out, "prompts", result)
            line = result["prompts"][label]
            print(
                f"{label:20} {line['rows']:3} rows: {line['accuracy'][0]:.3f} right, {line['tokens']:.0f} tokens,"
                f" {line['cut']:.0%} cut, {line['no_answer']:.0%} without an answer ({time.monotonic() - began:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
