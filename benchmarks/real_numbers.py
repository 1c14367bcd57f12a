"""R2 of PROTOCOL.md: the game of numbers, searched under a value that was learned.

    uv run python benchmarks/real_numbers.py sft trees value test page
    uv run python benchmarks/real_numbers.py rounds

Stages: `sft` plays legally after random games, `trees` samples games, `value` learns a network of
its own from them, `test` answers games in each way at each cap, `page` writes `results/NAME.json`;
`rounds` trains the `sft` student on what each way finds, and writes `results/numbers_rounds.json`.
Each goes on where it stopped. On a GPU see `real_rft.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
from arms import Arm, Seed, best, by_rate, less, read, updates, validation  # noqa: E402
from improvement import EIGHT  # noqa: E402
from real import with_settings  # noqa: E402

from alphazero_llm_trainer.engine.protocol import Judgement  # noqa: E402
from alphazero_llm_trainer.eval.critic_figures import States, auc  # noqa: E402
from alphazero_llm_trainer.eval.metrics import Interval, paired_bootstrap  # noqa: E402
from alphazero_llm_trainer.eval.results import triple  # noqa: E402
from alphazero_llm_trainer.mcts.extract import value_targets  # noqa: E402
from alphazero_llm_trainer.problems.numbers import (  # noqa: E402
    apply,
    play,
    random_play,
    read_question,
    write,
)
from alphazero_llm_trainer.runs.critic_data import (  # noqa: E402
    read_questions,
    split_by_question,
)
from alphazero_llm_trainer.types import Problem, Step, text_of  # noqa: E402
from benchmarks import provenance  # noqa: E402

SEED, SPLIT = 7, "test"
LEVEL = ("problems.levels=[2]", "search.temperature=1", "search.verify.first_temperature=1")
# Ways of answering: the method, what judges (a value's stage, None: the rules alone), and settings.
WAYS: dict[str, tuple[str, ...]] = {
    "puct": ("mcts", "value"),
    "gumbel": ("mcts", "value", "search.select=gumbel"),
    "permuted": ("mcts", "value"),
    "exact": ("mcts", "value"),
    "step-rejection": ("step-rejection", ""),
    "restarts": ("mcts", "", "search.select=restart"),
    "adaptive-best-of-n": ("adaptive-best-of-n", ""),
}
# Training on what each way finds: rounds, and the sampled tokens and updates of one; a question's
# tokens (`responses`) as 60,000 tokens with seed 6 took them. GRPO passes once over its rows.
SEEDS, ROUNDS, TOKENS, UPDATES, FRESH = (7, 8, 9), 20, 40_000, 14, 2000
FACTORS = (0.5, 1.0, 2.0)  # of a learning rate, tried with the first seed
ARMS = {
    "trees": Arm("", "", 5e-4, 143),
    "restarts": Arm("", "search.select=restart", 5e-4, 176),
    "samples": Arm("rft", "search.samples=8", 5e-4, 375),
    "GRPO samples": Arm(
        "grpo", EIGHT.replace("rows_per_round=128", "rows_per_round=900"), 5e-4, 375
    ),
}
OTHER_VALUES = ("permuted", "exact")
PRIMARY = ("puct", "step-rejection", 400)


@dataclass(frozen=True)
class Size:
    """Games of `sft` and its settings, games and samples of a value and its settings, games and
    caps of the test.
    """

    sft: tuple[int, str]
    value: tuple[int, int, str]
    tested: int
    caps: tuple[int, ...]


SMALL = Size(
    (40_000, "train.sft_steps=14000 train.evaluate_every=2000"),
    (4000, 8, "train.optimizer.epochs=3"),
    1000,
    (200, 400, 800),
)
LORA = "train.optimizer.learning_rate=2e-4"
REAL = Size(
    (
        3000,
        f"{LORA} train.sft_steps=94 train.evaluate_every=94 train.optimizer.batch_size=32"
        " train.optimizer.warmup=5 train.validation_size=100",
    ),
    (1000, 8, f"{LORA} train.optimizer.epochs=1"),
    400,
    (400,),
)


class Run(Seed):
    """The stages, each a command."""

    @property
    def size(self) -> Size:
        return SMALL if self.args.model == "small" else REAL

    def common(self) -> list[str]:
        return ["--source", "numbers", *with_settings(LEVEL)]

    def sft_stage(self) -> None:
        games, settings = self.size.sft
        words = ["--model", self.args.model, "-n", str(games), *with_settings(settings.split())]
        self.sft("sft", *self.common(), *words)

    def trees_stage(self) -> None:
        """Sampled games other than those of `sft`."""
        games, samples, _ = self.size.value
        words = [*self.common(), "--model", str(self.folder("sft")), "-n", str(games)]
        words += ["--start", str(self.size.sft[0])]
        words += with_settings(["search.simulations=1", f"search.samples={samples}"])
        self.sample("trees", *words)

    def critic(self, name: str, settings: str) -> None:
        words = ["value", *self.common(), "--model", str(self.folder("sft"))]
        words += ["--data", str(self.folder("trees")), *with_settings(settings.split())]
        out = self.folder(name)
        self.stage(name, [*words, "--out", str(out)], out / "critic.json")

    def test_stage(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "began.json").write_text(json.dumps(provenance.BEGAN))
        for way, (method, value, *settings) in WAYS.items():
            out = self.folder(f"test, {way}")
            script = Path(__file__) if way in OTHER_VALUES else None
            words = [
                way if way in OTHER_VALUES else "eval",
                *self.common(),
                "--model",
                str(self.folder("sft")),
            ]
            words += ["--split", SPLIT, "-n", str(self.size.tested), "--methods", method]
            words += ["--verifier", "calculator+value" if value else "calculator"]
            words += ["--value", str(self.folder(value))] * bool(value)
            words += ["--budget-tokens", *map(str, self.size.caps)]
            words += with_settings(settings)
            words += ["--out", str(out), *["--resume"] * (out / "cells").is_dir()]
            self.stage(f"test, {way}", words, out / "results.json", script=script)

    def trained(self, name: str, rate: float) -> Path:
        """The run of one arm at one learning rate, from the first seed's `sft` on."""
        arm, label = ARMS[name], f"{name} {rate:g}"
        run = self.folder(label) / "run-001"
        words = ["train", "--out", str(run.parent)]
        begun = (run / "run.json").is_file()
        if begun:
            words += ["--resume", str(run)]
        else:
            of_round = round(TOKENS / arm.responses)
            words += [*self.common(), "--model", str(self.args.work / f"seed-{SEED}" / "sft")]
            words += ["--tokens", str(ROUNDS * TOKENS), "-n", str(2 * ROUNDS * of_round)]
            words += ["--eval-size", "0", *[f"--use-{arm.method}"] * bool(arm.method)]
            # Questions come after the games of `sft`, which are replayed.
            settings = [f"train.demonstrations={self.size.sft[0]}", *arm.settings.split()]
            settings += [f"train.optimizer.learning_rate={rate:g}", "train.validation_size=500"]
            settings += [f"train.questions_per_round={of_round}"]
            settings += [f"train.save_every={ROUNDS // 4 * of_round}"]
            if arm.method != "grpo":
                settings += [f"train.updates_per_round={UPDATES}", "train.optimizer.epochs=1000"]
            words += with_settings(settings)
        self.stage(label, words, run / "report.html", configured=not begun)
        return run

    def answers(self, name: str, student: Path) -> tuple[list[float], list[float]]:
        """Of each fresh test game: greedily right, and the share of eight samples that are."""
        out = self.folder(f"answers, {name}")
        words = ["eval", *self.common(), "--model", str(student), "--split", SPLIT]
        words += ["--start", str(FRESH), "-n", str(self.size.tested)]
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
            rates = [factor * (arm.rate or 0.0) for factor in FACTORS]
            tried[name] = by_rate(lambda rate, arm=name: validation(self.trained(arm, rate)), rates)
        made = {name: [run.trained(name, best(tried[name])) for run in runs] for name in ARMS}
        start = self.answers("start", self.folder("sft"))
        found = {
            name: [run.answers(name, one / "student") for run, one in zip(runs, made[name], strict=True)]
            for name in ARMS
        }  # fmt: skip
        same, rows = range(self.size.tested), []
        for name in ARMS:
            cards = [read(one / "run.json") for one in made[name]]
            row: dict[str, Any] = {
                "arm": name,
                "rate": best(tried[name]),
                "validation": tried[name],
            }
            row["tokens"] = [card["search_cost"]["sampled_tokens"] for card in cards]
            row |= {"questions": [card["questions"] for card in cards]}
            row |= {"updates": list(map(updates, made[name]))}
            for at, kind in enumerate(("greedy", "sample")):
                mine, first = [one[at] for one in found[name]], [start[at]]
                row[kind] = [sum(one) / len(one) for one in mine]
                row[f"{kind}_gain"] = less(mine, first, same)
                if name != "trees":
                    trees = [one[at] for one in found["trees"]]
                    row[f"{kind}_trees_less_it"] = less(trees, mine, same)
            # Of each game: whether greedily right, and how many of eight samples are.
            row["outcomes"] = ["".join(str(int(one)) for one in of) for of, _ in found[name]]
            row["right"] = ["".join(str(round(8 * one)) for one in of) for _, of in found[name]]
            rows.append(row)
        facts = {"seeds": SEEDS, "split": SPLIT, "first": FRESH, "games": len(same), "rows": rows}
        facts["start"] = {
            kind: sum(one) / len(one) for kind, one in zip(("greedy", "sample"), start, strict=True)
        }
        provenance.write(self.args.out.with_name("numbers_rounds.json"), {**read(began), **facts})

    def exact_auc(self) -> Interval:
        """Of `exact`, over the states of the games that the critics are tested on."""
        values: list[float] = []
        found: list[tuple[float, float, float, int]] = []
        held_out = split_by_question(read_questions([self.folder("trees")], sys.maxsize))[2]
        for number, question in enumerate(held_out):
            for tree in question.trees():
                for state in value_targets(tree):
                    values.append(exact(question.text, text_of(tree.steps(state.node))))
                    found.append((state.target, state.weight, state.square, number))
        target, weight, square, number_of = map(np.array, zip(*found, strict=True))
        nan = np.full(len(target), np.nan)
        states = States(target, weight, square, nan, nan > 0, number_of.astype(int))
        return auc(np.array(values), states, self.seed)

    def page(self) -> None:
        """The figures there are."""
        card = read(self.folder("value") / "critic.json")
        values = {"value": {key: card[key] for key in ("test", "questions", "seconds")}}
        values["exact"] = {"test": {"AUC": list(astuple(self.exact_auc()))}}
        rows = {
            (way, row["budget"]): row
            for way in WAYS
            if (self.folder(f"test, {way}") / "results.json").is_file()
            for row in read(self.folder(f"test, {way}") / "results.json")["rows"]
        }
        right = {key: list(map(float, row["outcomes"])) for key, row in rows.items()}
        told = []
        for (way, cap), row in rows.items():
            told.append({"way": way, "cap": cap, **row})
            if way != "puct":
                gain = paired_bootstrap(right["puct", cap], right[way, cap])
                told[-1]["puct_less_it"] = triple(gain)
        facts = {"seed": SEED, "split": SPLIT, "primary": PRIMARY, "values": values, "rows": told}
        facts["games"] = len(right["puct", self.size.caps[0]])
        provenance.write(self.args.out, {**read(self.path / "began.json"), **facts})


@cache
def chance(left: tuple[int, ...], target: int) -> float:
    """The chance that random legal moves from the numbers `left` end at the target: the value of
    the play that `sft` teaches.
    """
    if len(left) == 1:
        return float(left == (target,))
    total, pairs = 0.0, list(combinations(range(len(left)), 2))
    for first, second in pairs:
        a, b = max(left[first], left[second]), min(left[first], left[second])
        others = [n for at, n in enumerate(left) if at not in (first, second)]
        moves = [move for op in "+-*/" if (move := apply(a, op, b)) is not None]
        for *_, result in moves:
            total += chance(tuple(sorted([*others, result])), target) / len(moves)
    return total / len(pairs)


def exact(question: str, text: str) -> float:
    """`chance` after a response's lines; 0 after one that isn't legal."""
    numbers, target = read_question(question)
    left = play(numbers, [line for line in text.splitlines() if line[:4] != "####"])
    return 0.0 if left is None else chance(tuple(sorted(left.elements())), target)


def with_another_value(way: str, words: Sequence[str]) -> int:
    """The package's command under a V that isn't the critic's own.

    `exact`: `chance` itself, what a critic could know at best.
    `permuted`: that of another state of its game, after as many random legal moves: no news of the
    state, though a random one's V rises less with depth.
    """
    from alphazero_llm_trainer.cli.main import main as command
    from alphazero_llm_trainer.policy.critic import CriticVerifier

    own = CriticVerifier.__call__

    async def permuted(
        self: Any, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]
    ) -> list[float]:
        numbers, _ = read_question(problem.question)
        others = []
        for count in range(1, len(steps) + 1):
            text = text_of(steps[:count])
            rng = Random(hashlib.sha256(f"{problem.id} {text}".encode()).digest())
            moves = random_play(rng, sorted(Counter(numbers).elements()))
            while moves is None:
                moves = random_play(rng, sorted(Counter(numbers).elements()))
            lines = write(sorted(numbers.elements()), moves).splitlines(keepends=True)[:count]
            states = [Step(tuple(encode(line)), (0.0,) * len(encode(line)), line) for line in lines]
            others.append((await own(self, problem, prompt_ids, states)).values[-1])
        return others

    async def judged(
        self: Any, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]
    ) -> Judgement:
        if way == "permuted":
            values = tuple(await permuted(self, problem, prompt_ids, steps))
        else:
            texts = [text_of(steps[:count]) for count in range(1, len(steps) + 1)]
            values = tuple(exact(problem.question, text) for text in texts)
        return Judgement(values, values[-1], frozenset(range(len(steps))), values)

    from alphazero_llm_trainer.policy import student as students

    load, tokenizers = students.load_tokenizer, []

    def loaded(source: str) -> Any:
        tokenizers.append(load(source))
        return tokenizers[-1]

    def encode(line: str) -> list[int]:
        ids: list[int] = tokenizers[0](line, add_special_tokens=False)["input_ids"]
        return ids

    students.load_tokenizer = loaded
    CriticVerifier.__call__ = judged  # type: ignore[method-assign]
    return command(list(words))


def main() -> None:
    if sys.argv[1] in OTHER_VALUES:
        raise SystemExit(with_another_value(sys.argv[1], ["eval", *sys.argv[2:]]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "stage", nargs="+", choices=["sft", "trees", "value", "test", "page", "rounds"]
    )
    parser.add_argument(
        "--model", default="small", help="a folder with a chat model; small: an embedded student"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--work", type=Path, help="default: checkpoints/numbers-MODEL")
    parser.add_argument("--out", type=Path, help="default: a file of benchmarks/results")
    args = parser.parse_args()
    args.work = args.work or ROOT / "checkpoints" / f"numbers-{Path(args.model).name}"
    name = "numbers_value" if args.model == "small" else "numbers_real"
    args.out = args.out or ROOT / "benchmarks" / "results" / f"{name}.json"
    args.work = args.work.resolve()
    run = Run(SEED, args)
    stages = {
        "sft": run.sft_stage,
        "trees": run.trees_stage,
        "value": lambda: run.critic("value", run.size.value[2]),
        "test": run.test_stage,
        "page": run.page,
        "rounds": run.rounds,
    }
    for stage in args.stage:
        stages[stage]()


if __name__ == "__main__":
    main()
