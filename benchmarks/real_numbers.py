"""R2's rounds of PROTOCOL.md: the game of numbers, trained on what each way of searching finds.

    uv run python benchmarks/real_numbers.py sft rounds

`sft` plays legally after random games; `rounds` trains that student on what each way finds, and
writes `results/numbers_rounds.json`. Each goes on where it stopped. `generations.py --source numbers`
has the searches under a value.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import provenance
from arms import (
    EIGHT,
    Arm,
    Seed,
    add_work,
    best,
    by_rate,
    digits,
    flags,
    less,
    on_validation,
    read,
    spent_by,
)

SEED, SPLIT = 7, "test"
LEVEL = ("problems.levels=[2]", "search.temperature=1", "search.verify.first_temperature=1")
# Games of `sft` and its settings; test games.
GAMES, SFT = 40_000, "train.sft_steps=14000 train.evaluate_every=2000"
TESTED = 1000
# Training on what each way finds: rounds, and the sampled tokens and updates of one; a question's
# tokens (`size`) as 60,000 tokens with seed 6 took them. GRPO passes once over its rows.
SEEDS, ROUNDS, TOKENS, UPDATES, FRESH = (7, 8, 9), 20, 40_000, 14, 2000
FACTORS = (0.5, 1.0, 2.0)  # of a learning rate, tried with the first seed
ARMS = {
    "trees": Arm("", "", 5e-4, 143),
    "restarts": Arm("", "search.select=restart", 5e-4, 176),
    "samples": Arm("rft", "search.samples=8", 5e-4, 375),
    "GRPO samples": Arm("grpo", f"{EIGHT} train.rows_per_round=900", 5e-4, 375),
}


class Run(Seed):
    """The stages, each a command."""

    def common(self) -> list[str]:
        return ["--source", "numbers", *flags(*LEVEL)]

    def sft_stage(self) -> None:
        words = ["--model", "small", "-n", str(GAMES), *flags(*SFT.split())]
        self.sft("sft", *self.common(), *words)

    def trained(self, name: str, rate: float) -> Path:
        """The student of one arm at one learning rate, from the first seed's `sft` on."""
        arm = ARMS[name]
        questions = round(TOKENS / arm.size)
        words = [*self.common(), *[f"--use-{arm.method}"] * bool(arm.method)]
        words += ["--tokens", str(ROUNDS * TOKENS), "-n", str(2 * ROUNDS * questions)]
        # Questions come after the games of `sft`, which are replayed.
        words += flags(f"train.demonstrations={GAMES}")
        words += flags(*arm.at(rate, 500, questions, ROUNDS // 4, UPDATES))
        start = self.args.work / f"seed-{SEED}" / "sft"
        return self.train(f"{name} {rate:g}", start, *words) / "student"

    def answers(self, name: str, student: Path) -> tuple[list[float], list[float]]:
        """Of each fresh test game: greedily right, and the share of eight samples that are."""
        out = self.folder(f"answers, {name}")
        words = ["eval", *self.common(), "--model", str(student), "--split", SPLIT]
        words += ["--start", str(FRESH), "-n", str(TESTED)]
        words += ["--methods", "greedy", "--samples", "8", "--out", str(out)]
        words += ["--resume"] * (out / "cells").is_dir()
        self.stage(f"answers, {name}", words, out / "results.json")
        greedy = read(out / "results.json")["rows"][0]["outcomes"]
        drawn = read(out / "cells" / "numbers.samples.8.json")["correct"]
        return list(map(float, greedy)), [sum(map(bool, one)) / len(one) for one in drawn]

    def rounds(self) -> None:
        """Every arm at its best rate on validation games, over seeds."""
        began = self.path / "began-rounds.json"
        if not began.is_file():
            began.write_text(json.dumps(provenance.BEGAN))
        runs = [Run(seed, self.args) for seed in SEEDS]
        tried: dict[str, dict[float, float]] = {}
        for name, arm in ARMS.items():
            rates = [factor * arm.rate for factor in FACTORS]
            tried[name] = by_rate(
                lambda rate, name=name: on_validation(self.trained(name, rate)), rates
            )
        made = {name: [run.trained(name, best(tried[name])) for run in runs] for name in ARMS}
        start = self.answers("start", self.folder("sft"))
        found = {
            name: [run.answers(name, one) for run, one in zip(runs, made[name], strict=True)]
            for name in ARMS
        }  # fmt: skip
        same, rows = range(TESTED), []
        for name in ARMS:
            costs = [spent_by(one) for one in made[name]]
            row: dict[str, Any] = {
                "arm": name,
                "rate": best(tried[name]),
                "validation": tried[name],
            }
            row |= {key: [cost[key] for cost in costs] for key in costs[0]}
            for at, kind in enumerate(("greedy", "sample")):
                mine, first = [one[at] for one in found[name]], [start[at]]
                row[kind] = [sum(one) / len(one) for one in mine]
                row[f"{kind}_gain"] = less(mine, first, same)
                if name != "trees":
                    trees = [one[at] for one in found["trees"]]
                    row[f"{kind}_trees_less_it"] = less(trees, mine, same)
            # Of each game: whether greedily right, and how many of eight samples are.
            row["outcomes"] = digits([of for of, _ in found[name]])
            row["right"] = ["".join(str(round(8 * one)) for one in of) for _, of in found[name]]
            rows.append(row)
        facts = {"seeds": SEEDS, "split": SPLIT, "first": FRESH, "games": len(same), "rows": rows}
        facts["start"] = {
            kind: sum(one) / len(one) for kind, one in zip(("greedy", "sample"), start, strict=True)
        }
        provenance.write(self.args.out, {**read(began), **facts})


def main() -> None:
    parser = provenance.make_parser(__doc__, "numbers_rounds")
    parser.add_argument("stage", nargs="+", choices=["sft", "rounds"])
    add_work(parser, "numbers-small")
    args = parser.parse_args()
    args.work = args.work.resolve()
    run = Run(SEED, args)
    for stage in args.stage:
        {"sft": run.sft_stage, "rounds": run.rounds}[stage]()


if __name__ == "__main__":
    main()
