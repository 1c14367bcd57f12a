"""How much the embedded test problems of each figure repeat the training problems of its student.

    uv run python benchmarks/overlap.py     # after each benchmark that trains a student, a minute

The splits share no worked solution, but the generator has few sentence patterns. A test problem has a twin when a training
problem becomes the same text once people, pronouns, things, containers and numbers are masked. What is counted is each
figure's own split, rebuilt from the numbers in its JSON: demonstrations and training questions against its test problems.
Also counts the distinct worked solutions of the test problems, which is what an interval should be over, and marks the
problems without a twin, so that a page can take its figure from those alone. Writes benchmarks/results/overlap.json.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.metrics import repeats, wilson  # noqa: E402
from alphazero_llm_trainer.problems import embedded  # noqa: E402
from benchmarks import provenance  # noqa: E402
from benchmarks.arms import compared  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
LADDER = 2000 + 4800  # demonstrations and questions of `config/ladder.yaml`


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


@dataclass(frozen=True, slots=True)
class Split:
    """What a student of a figure was trained on, in numbers of the generator, and the problems that it is tested on."""

    figure: str  # the page
    student: str
    training: int  # problems: the first of the train split
    levels: tuple[int, ...] = embedded.DEFAULT_LEVELS
    first: int = 0
    test: int = 1000


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def splits() -> list[Split]:
    """The splits of the figures on embedded problems."""
    train = load_config().train
    shown, default = train.demonstrations, train.demonstrations + train.num_examples
    taught, real, generations, trees = map(load, ("improvement", "real_ladder", "loop", "tree_grpo"))
    arms = {run["arm"]: run["questions"] for run in taught["runs"]}
    asked = sum(one["questions"]["fresh"] for one in generations["generations"])
    return [
        Split("student", "shipped", shown),
        Split("default", "of the default run", default),
        *(
            Split("improvement", arm, shown + questions, first=taught["first"], test=taught["problems"])
            for arm, questions in arms.items()
        ),
        Split("loop", "last champion", shown + asked),
        Split("tree_grpo", "all", shown + trees["questions"], test=trees["problems"]),
        Split("value", "shipped", shown, first=1000),
        Split("ladder", "all", LADDER, (3, 4), test=load("ladder")["problems"]),
        Split(
            "real_ladder",
            "expert iteration, three times the questions",
            real["rows"] + real["more"]["expert-more"] * real["questions"],
            (1, 2, 3),
            test=real["stages"]["rft"]["after"]["problems"],
        ),
    ]


def count(split: Split) -> dict[str, Any]:
    """One row: the twins of a split, with a 95% interval, and `new`: a 1 for each test problem without a twin."""
    seen = {pattern(task.problem.question) for task in embedded.load("train", split.training, split.levels)}
    test = embedded.load("test", split.test, split.levels, start=split.first)
    new = [pattern(task.problem.question) not in seen for task in test]
    share = wilson(new.count(False), split.test)
    return {
        **{name: value for name, value in asdict(split).items() if name not in ("training", "test")},
        "test_problems": split.test,
        "training_problems": split.training,
        "twins": new.count(False),
        "share": [share.value, share.low, share.high],
        "distinct_solutions": len({task.solution for task in test}),
        "new": "".join(str(int(one)) for one in new),
    }


def on_new(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the arms of `improvement` reach on its test problems without a twin in the split `row`."""
    data = load("improvement")
    kept = [i for i, one in enumerate(row["new"]) if one == "1"]
    test = embedded.load("test", data["problems"], start=data["first"])

    def part(results: Mapping[str, str]) -> dict[str, str]:
        return {"greedy": "".join(results["greedy"][i] for i in kept)}

    arms = [one["arm"] for one in data["summary"]]
    groups = {"greedy": repeats([test[i] for i in kept])}
    runs = [{**run, **part(run)} for run in data["runs"]]
    return {"problems": len(kept), "summary": compared(runs, arms, part(data["start_right"]), groups)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "overlap.json")
    args = parser.parse_args()
    rows = [count(split) for split in splits()]
    for row in rows:
        print(
            f"{row['figure']:17} {row['student']:17} {row['twins']:4} of {row['test_problems']:5,} test problems have a twin"
            f" among {row['training_problems']:6,} training problems: "
            + "{:.3f} [{:.3f}, {:.3f}]".format(*row["share"])
        )
    found = next(row for row in rows if (row["figure"], row["student"]) == ("improvement", "search"))
    provenance.write(args.out, "overlap", {"rows": rows, "improvement_without_twins": on_new(found)})


if __name__ == "__main__":
    main()
