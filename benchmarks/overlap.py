"""How much the embedded test problems repeat the training problems.

    uv run python benchmarks/overlap.py

The splits share no worked solution, but the generator has few sentence patterns. A test problem counts as a twin when a
training problem becomes the same text once people, pronouns, things, containers and numbers are masked. The training
problems are those of a default run: its demonstrations and its training questions. Also counts the distinct worked
solutions of the test problems, which is what an interval should be over. Writes benchmarks/results/overlap.json.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.metrics import wilson  # noqa: E402
from alphazero_llm_trainer.problems import embedded  # noqa: E402
from alphazero_llm_trainer.types import Task  # noqa: E402
from benchmarks import provenance  # noqa: E402


def alternatives(words: list[str]) -> str:
    return rf"\b(?:{'|'.join(words)})\b"


MASKS = (
    (alternatives([*embedded.GIRLS, *embedded.BOYS]), "NAME"),
    (alternatives(["she", "he", "She", "He"]), "SUBJECT"),
    (alternatives(["her", "him", "his"]), "OBJECT"),
    (alternatives(list(embedded.THINGS)), "THINGS"),
    (alternatives([word for pair in embedded.CONTAINERS for word in pair]), "CONTAINER"),
    (r"\d+", "0"),
)


def pattern(question: str) -> str:
    """The question with everything masked that the generator draws beside the sentences themselves."""
    for words, name in MASKS:
        question = re.sub(words, name, question)
    return question


def count(levels: tuple[int, ...], num: int, training: int) -> dict[str, Any]:
    """One row: twins among `num` test problems of `levels`, with a 95% interval."""

    def patterns(tasks: list[Task]) -> list[str]:
        return [pattern(task.problem.question) for task in tasks]

    seen = set(patterns(embedded.load("train", training, levels)))
    test = embedded.load("test", num, levels)
    twins = sum(one in seen for one in patterns(test))
    share = wilson(twins, num)
    return {
        "levels": list(levels),
        "test_problems": num,
        "training_problems": training,
        "twins": twins,
        "share": [share.value, share.low, share.high],
        "distinct_solutions": len({task.solution for task in test}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=1000, help="test problems")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "overlap.json")
    args = parser.parse_args()
    train = load_config().train
    rows = [
        count(levels, args.num, train.demonstrations + train.num_examples)
        for levels in (embedded.DEFAULT_LEVELS, (3, 4))
    ]
    for row in rows:
        share = "{:.3f} [{:.3f}, {:.3f}]".format(*row["share"])
        print(
            f"levels {row['levels']}: {row['twins']} of {row['test_problems']} test problems have a twin among"
            f" {row['training_problems']:,} training problems: {share}; {row['distinct_solutions']} distinct solutions"
        )
    command = f"uv run python benchmarks/overlap.py --num {args.num}"
    provenance.write(args.out, "overlap", {"command": command, "rows": rows})


if __name__ == "__main__":
    main()
