"""What search adds at answering time, beside what it costs: greedy, majority vote and MCTS on held-out problems.

    uv run python benchmarks/search_vs_greedy.py --path checkpoints/run-001/student

No method sees gold. MCTS values responses by their perplexity under the student (PRE); its answer is the
value-weighted vote, and beside it the best single response and the most visited path of the same trees. Tokens are those
that the model computes for an answer, sampled ones and those that the perplexity scores. Intervals are over distinct
worked solutions.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer import __version__  # noqa: E402
from alphazero_llm_trainer.answers import equal, extract, normalize  # noqa: E402
from alphazero_llm_trainer.collect import Perplexity  # noqa: E402
from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.eval.methods import answer_search  # noqa: E402
from alphazero_llm_trainer.eval.metrics import paired_bootstrap, repeats, wilson  # noqa: E402
from alphazero_llm_trainer.mcts.choose import choose  # noqa: E402
from alphazero_llm_trainer.mcts.driver import derive_seed  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from benchmarks import provenance  # noqa: E402


def majority(responses: list[str], gold: str) -> bool:
    """Whether the commonest answer of the samples is right; the first found wins ties."""
    found = [extract(text) for text in responses]
    counts = Counter(normalize(a) for a in found if a is not None)
    return bool(counts) and equal(counts.most_common(1)[0][0], gold)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, help="a trained student's folder (default: the shipped student)")
    parser.add_argument("--num", type=int, default=1000, help="held-out problems")
    parser.add_argument("--iterations", type=int, nargs="+", default=[2, 6, 20])
    parser.add_argument("--samples", type=int, nargs="+", default=[8, 24], help="majority votes of so many samples")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "search_vs_greedy.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config(overrides=["student=embedded", f"seed={args.seed}"])
    student = load_student(config, path=args.path)
    tasks = load_tasks("embedded", "test", args.num)
    limit, groups = config.search.max_tokens, repeats(tasks)
    rows: list[dict[str, Any]] = []

    def add(name: str, correct: list[bool], sampled: int, scored: int, seconds: float) -> None:
        num = len(correct)
        accuracy = wilson(sum(correct), num, len(set(groups)))
        gain = paired_bootstrap(correct, rows[0]["correct"], groups=groups) if rows else None
        rows.append({"method": name, "correct": correct, "tokens": (sampled + scored) / num, "seconds": seconds})
        rows[-1] |= {"sampled_tokens": sampled / num, "scored_tokens": scored / num}
        print(
            f"{name:32} {accuracy!s:22} {sampled / num:9.1f} {scored / num:9.1f} {seconds:8.1f}"
            f"  {'' if gain is None else f'{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]'}",
            flush=True,
        )
        rows[-1] |= {"accuracy": [accuracy.value, accuracy.low, accuracy.high]}
        rows[-1] |= {"gain": None if gain is None else [gain.value, gain.low, gain.high]}

    print(f"{args.num:,} held-out problems, seed {args.seed}; tokens are a problem's")
    print(f"{'method':32} {'accuracy [95%]':22} {'sampled':>9} {'scored':>9} {'seconds':>8}  gain over greedy [95%]")
    greedy = answer(student, tasks, max_tokens=limit)
    add("greedy", greedy.first, greedy.tokens, 0, greedy.seconds)
    for n in args.samples:
        sampled = answer(student, tasks, max_tokens=limit, n=n, temperature=1.0, seed=args.seed)
        votes = [majority(texts, task.gold) for texts, task in zip(sampled.responses, tasks, strict=True)]
        add(f"majority of {n}", votes, sampled.tokens, 0, sampled.seconds)
    for iterations in args.iterations:
        student.engine.set_policy(None, 0)
        settings = config.model_copy(update={"search": config.search.model_copy(update={"iterations": iterations})})
        search = answer_search(student, settings, Perplexity(student, limit, own=True))

        async def run(search: Any = search) -> list[Any]:
            seeded = [(task.problem, derive_seed(args.seed, task.problem.id)) for task in tasks]
            found = [pair async for pair in search.run_many(seeded)]
            return [result for _, result in sorted(found, key=lambda pair: pair[0])]

        began = time.perf_counter()
        results = asyncio.run(run())
        seconds = time.perf_counter() - began
        tokens = sum(result.cost.sampled_tokens for result in results)
        scored = sum(result.cost.scored_tokens for result in results)
        for rule in ("vote", "value", "visits"):
            picked = [choose(result.tree, rule) for result in results]
            correct = [
                p is not None and p.answer is not None and equal(p.answer, task.gold)
                for p, task in zip(picked, tasks, strict=True)
            ]
            add(f"mcts, {iterations} iterations, {rule}", correct, tokens, scored, seconds)
    for row in rows:
        row["correct"] = "".join("1" if x else "0" for x in row["correct"])
    result = {
        "command": " ".join(["uv run python benchmarks/search_vs_greedy.py", *sys.argv[1:]]),
        "version": __version__,
        "num": args.num,
        "distinct_solutions": len(set(groups)),
        "seed": args.seed,
        "rows": rows,
    }
    provenance.write(args.out, "search_vs_greedy", result)


if __name__ == "__main__":
    main()
