"""Does the perplexity reward (PRE) know right from wrong?

    uv run python benchmarks/perplexity_reward.py --models embedded runs/real/sft

Eight samples to each problem under a student, PRE of each under the same student against its greedy answer, and the gold.
Prints and keeps: the probability that PRE ranks a right response above a wrong one (AUC, over all responses and within a
question), how often the reward of 0.4 correctness and 0.6 PRE ranks a wrong response of a question above a right one, and
how often the response with the largest PRE is right, beside the mean of the samples and their majority.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.load import Config, load_config  # noqa: E402
from alphazero_llm_trainer.engine.protocol import Generated, GenerateRequest  # noqa: E402
from alphazero_llm_trainer.eval.metrics import area, paired_bootstrap, wilson  # noqa: E402
from alphazero_llm_trainer.mcts.driver import derive_seed  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks, opening  # noqa: E402
from alphazero_llm_trainer.problems.source import open_source  # noqa: E402
from alphazero_llm_trainer.rewards.pre import pre  # noqa: E402
from benchmarks import provenance  # noqa: E402

SAMPLES, RESAMPLES = 8, 2000

Scored = tuple[np.ndarray, np.ndarray]  # PRE `[8]` and whether right `[8]` of a question's samples


def measured(model: str, levels: Sequence[int], num: int, seed: int) -> dict[str, Any]:
    """A student's row."""
    folder = Path(model) if Path(model).is_dir() else None
    config = load_config(overrides=[f"problems.levels={list(levels)}", f"seed={seed}", "student=embedded"])
    source = open_source(config)
    tasks = load_tasks(source, "test", num)
    student = load_student(config, path=folder, opening=opening(config))

    async def sampled() -> list[list[Generated]]:
        requests = []
        for task in tasks:
            prompt = student.prompt_ids(task.problem.question)
            common: dict[str, Any] = {"max_new_tokens": config.search.max_tokens}
            requests.append(GenerateRequest(prompt, temperature=0.0, **common))
            own = derive_seed(seed, task.problem.id)
            requests.append(GenerateRequest(prompt, n=SAMPLES, temperature=1.0, seed=own, **common))
        return await student.engine.generate(requests)

    found = asyncio.run(sampled())
    questions: list[Scored] = []
    answers: list[list[str | None]] = []
    greedy: list[bool] = []
    for task, [baseline], samples in zip(tasks, found[::2], found[1::2], strict=True):
        texts = [student.decode(one.token_ids) for one in samples]
        grades = source.grade_many([(text, task) for text in texts])
        [first] = source.grade_many([(student.decode(baseline.token_ids), task)])
        greedy.append(first.correct)
        scores = np.array([pre(one.logprobs, baseline.logprobs) for one in samples])
        questions.append((scores, np.array([grade.correct for grade in grades], float)))
        answers.append([grade.answer for grade in grades])
    return {
        "model": Path(model).name,
        "levels": list(levels),
        "problems": num,
        **figures(config, questions, answers, greedy),
    }


def figures(
    config: Config, questions: Sequence[Scored], answers: Sequence[Sequence[str | None]], greedy: Sequence[bool]
) -> dict[str, Any]:
    """What the module promises, with 95% intervals over questions."""
    weights = config.rewards
    best = [float(right[int(scores.argmax())]) for scores, right in questions]
    average = [float(right.mean()) for _, right in questions]
    voted = [float(right[given.index(majority(given))]) for (_, right), given in zip(questions, answers, strict=True)]

    def over_all(chosen: Sequence[Scored]) -> float:
        return area(np.concatenate([scores for scores, _ in chosen]), np.concatenate([right for _, right in chosen]))

    def within(chosen: Sequence[Scored]) -> float:
        areas = [area(scores, right) for scores, right in chosen if 0 < right.sum() < len(right)]
        return float(np.mean(areas)) if areas else float("nan")

    def upside_down(chosen: Sequence[Scored]) -> float:
        total = [
            area(weights.hre_weight * right + weights.pre_weight * scores, right)
            for scores, right in chosen
            if 0 < right.sum() < len(right)
        ]
        return 1.0 - float(np.mean(total)) if total else float("nan")

    gains = {"mean of samples": paired_bootstrap(best, average), "majority": paired_bootstrap(best, voted)}
    return {
        "mixed": sum(bool(0 < right.sum() < len(right)) for _, right in questions),
        "greedy": triple_of(wilson(sum(greedy), len(greedy))),
        "mean": sum(average) / len(average),
        "majority": sum(voted) / len(voted),
        "best_by_pre": sum(best) / len(best),
        "best_by_pre_minus": {name: triple_of(found) for name, found in gains.items()},
        "auc": resampled(over_all, questions),
        "auc_within": resampled(within, questions),
        "wrong_above_right": resampled(upside_down, questions),
        "weights": [weights.hre_weight, weights.pre_weight],
        "correct": "".join(str(int(one)) for one in greedy),
        "voted": "".join(str(int(one)) for one in voted),
        "samples": ["".join(str(int(one)) for one in right) for _, right in questions],
        "pre": [[round(float(one), 5) for one in scores] for scores, _ in questions],
    }


def majority(given: Sequence[str | None]) -> str | None:
    """The most frequent answer, the first one on ties; None where no response has one."""
    known = [answer for answer in given if answer is not None]
    return max(known, key=known.count, default=None)


def triple_of(found: Any) -> list[float]:
    return [found.value, found.low, found.high]


def resampled(figure: Callable[[Sequence[Scored]], float], questions: Sequence[Scored]) -> list[float]:
    """The figure with its 95% percentile interval over resampled questions."""
    rng = np.random.default_rng(0)
    draws = [
        figure([questions[i] for i in rng.integers(len(questions), size=len(questions))]) for _ in range(RESAMPLES)
    ]
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return [figure(questions), float(low), float(high)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["embedded"], help="embedded, and folders of students")
    parser.add_argument("--num", type=int, default=200, help="test problems")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "perplexity_reward.json")
    args = parser.parse_args()
    rows = []
    for model in args.models:
        rows.append(measured(model, args.levels, args.num, args.seed))
        shown = {name: rows[-1][name] for name in ("greedy", "mean", "majority", "best_by_pre", "auc", "auc_within")}
        print(model, json.dumps(shown), flush=True)
    names = " ".join(model if model == "embedded" else "FOLDER" for model in args.models)
    result = {
        "command": f"uv run python benchmarks/perplexity_reward.py --models {names} --num {args.num}"
        f" --levels {' '.join(map(str, args.levels))}",
        "seed": args.seed,
        "samples": SAMPLES,
        "rows": rows,
    }
    provenance.write(args.out, "perplexity_reward", result)


if __name__ == "__main__":
    main()
