"""What `ladder.py` and `improvement.py` share: arms of training from one student at equal sampled tokens and updates.

Every stage is a command of the package in a process of its own. A stage that left its last file is not run again, and a
stopped training goes on, so that the same command of a benchmark goes on where it was. One arm is trained as its recipe says;
what it sampled and its number of updates are what the others get. Their learning rates are tuned with the first seed: the
recipe's, half and two times it, the best on validation problems.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.load import Config, load_config  # noqa: E402
from alphazero_llm_trainer.eval.metrics import Interval, repeats, wilson  # noqa: E402
from alphazero_llm_trainer.problems.load import tasks_of  # noqa: E402
from alphazero_llm_trainer.training.size import replayed  # noqa: E402

FACTORS = (1.0, 0.5, 2.0)  # of a tuned arm's learning rate
# Over the recipe of --use-grpo: what config/grpo_correctness.yaml says, beside a file that is a benchmark's own.
CORRECTNESS = "train.reward=hre train.kl_coefficient=0 search.simulations=3 teachers.tier=none"
REPLAY = "replay alone"  # the demonstrations that the arms replay, as many updates, and no new questions
PASSES = 2  # over the rows of a round: GRPO and PPO


@dataclass(frozen=True, slots=True)
class Arm:
    """A method of `train` ("" is the command as it comes), its settings, and the learning rate that is tuned.

    A question takes about `responses` responses of the reference's mean length; `rows` are a round's, of GRPO and PPO.
    """

    method: str
    settings: str = ""
    rate: float | None = None
    responses: float = 1.0
    rows: int = 0


@dataclass(slots=True)
class Seed:
    """The stages of one seed, which write into `work`/seed-N. `config` is a file over training.yaml, None for none."""

    seed: int
    args: argparse.Namespace
    config: Path | None = None

    @property
    def path(self) -> Path:
        return Path(self.args.work / f"seed-{self.seed}")

    def folder(self, name: str) -> Path:
        return self.path / name.replace(", ", "-").replace(" ", "-")

    def loaded(self) -> Config:
        return load_config(self.config, overrides=self.args.set)

    def stage(
        self, name: str, words: Sequence[str], finished: Path, configured: bool = True, begun: bool = False
    ) -> None:
        """Run a command unless `finished` is there and not only `begun`; what it prints goes to NAME.log."""
        if finished.is_file() and not begun:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "alphazero_llm_trainer", words[0]]
        if configured:
            command += [*(("--config", str(self.config)) if self.config else ()), "--seed", str(self.seed)]
            command += [word for one in self.args.set for word in ("--set", one)]
        command += words[1:]  # a stage's own settings win
        print(f"seed {self.seed}: {name}", flush=True)
        log = self.folder(name).with_name(f"{self.folder(name).name}.log")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}  # seeds run side by side
        with log.open("ab") as output:
            code = subprocess.run(command, stdout=output, stderr=output, env=environment, check=False).returncode
        if code or not finished.is_file():
            raise SystemExit(f"stage {name} of seed {self.seed} ended with {code}: see {log}, then run this again")

    def sft(self, name: str, *more: str) -> Path:
        """The folder of a supervised student."""
        out = self.folder(name)
        self.stage(name, ["sft", "--out", str(out), "--eval-size", "1", *more], out / "manifest.json")
        return out

    def train(self, name: str, arm: Arm, start: Sequence[str], questions: int, settings: Sequence[str] = ()) -> Path:
        """The run folder of a training from the student that the flags `start` name."""
        run = self.folder(name) / "run-001"
        there = (run / "run.json").is_file()
        words = ["train", "--out", str(run.parent)]
        if there:
            words += ["--resume", str(run)]
        else:
            words += [*([f"--use-{arm.method}"] if arm.method else []), *start, "-n", str(questions)]
            words += ["--eval-size", "0"]
            own = CORRECTNESS.split() if arm.method == "grpo" else []
            words += [word for one in (*own, *arm.settings.split(), *settings) for word in ("--set", one)]
        self.stage(name, words, run / "report.html", configured=not there)
        return run

    def tuned(
        self,
        arms: Mapping[str, Arm],
        start: Sequence[str],
        spent: Mapping[str, float],
        factors: dict[str, float],
    ) -> dict[str, Path]:
        """The students of `arms` and of REPLAY at the rates of `factors`, which is filled in where it lacks one.

        `spent` has the reference's `tokens`, `updates`, and tokens `a_response`.
        """
        students, updates = {}, round(spent["updates"])
        for name in (*arms, REPLAY):
            tried: dict[float, tuple[float, Path]] = {}
            for factor in [factors[name]] if name in factors else self.args.factors:
                label = f"{name} x{factor:g}"
                if name == REPLAY:
                    rate = f"train.optimizer.learning_rate={factor * 5e-4:g}"
                    given = (rate, f"train.sft_steps={updates}", "train.optimizer.batch_size=20")
                    done = self.sft(label, *start, *(word for one in given for word in ("--set", one)))
                    tried[factor] = read(done / "manifest.json")["validation_accuracy"], done
                    continue
                arm = arms[name]
                settings = []
                questions = round(spent["tokens"] / (spent["a_response"] * arm.responses))
                if arm.rate is not None:
                    settings = [f"train.optimizer.learning_rate={factor * arm.rate:g}"]
                settings += self.as_many(arm, questions, updates)
                done = self.train(label, arm, start, questions, settings)
                tried[factor] = validation(done), done / "student"
            factors[name] = max(tried, key=lambda factor: tried[factor][0])
            students[name] = tried[factors[name]][1]
        return students

    def as_many(self, arm: Arm, questions: int, updates: int) -> list[str]:
        """Settings with which a run makes about so many updates."""
        a_round = max(round(updates / math.ceil(questions / self.args.of_round)), 1)
        if not arm.rows:
            return [f"train.updates_per_round={a_round}", "train.optimizer.epochs=1000"]
        rows = arm.rows / (1 - replayed(self.loaded()))  # demonstrations included
        batch = math.ceil(rows / max(round(a_round / PASSES), 1))
        sizes = [f"train.optimizer.epochs={PASSES}", f"train.optimizer.batch_size={batch}"]
        return [f"train.rows_per_round={arm.rows}", *sizes]

    def evaluate(self, name: str, student: Path | str, methods: Sequence[str], *more: str) -> None:
        out, args = self.folder(f"eval {name}"), self.args
        words = ["eval", "--model", str(student), "--methods", *methods, "--budget-tokens", str(args.budget)]
        words += ["-n", str(args.num), "--start", str(args.first), "--out", str(out), *more]
        words += ["--resume"] * (out / "run.json").is_file()
        self.stage(f"eval {name}", words, out / "results.json")

    def row(self, name: str, method: str = "greedy") -> dict[str, Any]:
        """The row of a method in the evaluation of a student."""
        rows = read(self.folder(f"eval {name}") / "results.json")["rows"]
        return next(row for row in rows if row["method"] == method)

    def spent(self, name: str) -> dict[str, Any]:
        """Sampled tokens and updates of the training that `eval NAME` measured; nothing of what was not trained here."""
        stem = self.folder(name)
        tried = [stem, *sorted(self.path.glob(f"{stem.name}-x*"))]  # at each rate
        runs = [one / "run-001" for one in tried if (one / "run-001" / "run.json").exists()]
        if runs:
            best = max(runs, key=validation)
            return {"training_tokens": sampled(best), "updates": updates(best)}
        supervised = [one / "manifest.json" for one in tried if (one / "manifest.json").exists()]
        return {"training_tokens": 0, "updates": read(supervised[0])["steps"]} if supervised else {}


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def validation(run: Path) -> float:
    """The best greedy accuracy on validation problems of a run's checkpoints."""
    return max((line.get("validation_accuracy", 0.0) for line in metrics(run)), default=0.0)


def sampled(run: Path) -> int:
    tokens: int = read(run / "run.json")["search_cost"]["sampled_tokens"]
    return tokens


def updates(run: Path) -> int:
    return sum(line.get("updates", 0) for line in metrics(run))


def a_response(run: Path) -> float:
    """Sampled tokens a response of a run."""
    return sampled(run) / sum(line.get("samples", 0) for line in metrics(run))


def outcomes(seeds: Sequence[Seed], name: str, method: str = "greedy") -> list[list[float]]:
    """`[S, n]`: right or wrong by seed and test problem."""
    return [list(map(float, seed.row(name, method)["outcomes"])) for seed in seeds]


def groups(seed: Seed) -> list[int]:
    """Which test problems are the same: they are drawn together."""
    return repeats(tasks_of(seed.loaded(), "test", seed.args.num, seed.args.first))


def figures(seeds: Sequence[Seed], name: str, same: Sequence[int], method: str = "greedy") -> dict[str, Any]:
    """A student's row: accuracy over problems and seeds, tokens a problem, tokens and updates of its training."""
    right, rows = outcomes(seeds, name, method), [seed.row(name, method) for seed in seeds]
    over = bootstrap_over_seeds(right, [[0.0] * len(same)], groups=same)
    if len({tuple(one) for one in right}) == 1:  # one student for all seeds
        over = wilson(round(sum(right[0])), len(same), len(set(same)))
    trained = [seed.spent(name) for seed in seeds]
    means = {key: sum(one[key] for one in trained) // len(seeds) for key in trained[0]}
    return {
        "name": name,
        "accuracy": [over.value, over.low, over.high],
        "by_seed": [sum(one) / len(one) for one in right],
        "sampled_tokens": sum(row["sampled_tokens"] for row in rows) / len(rows),
        "tokens": sum(row["sampled_tokens"] + row["scored_tokens"] for row in rows) / len(rows),
        **means,
        "outcomes": [row["outcomes"] for row in rows],
    }


def bootstrap_over_seeds(
    after: Sequence[Sequence[float]],
    before: Sequence[Sequence[float]],
    *,
    confidence: float = 0.95,
    seed: int = 0,
    draws: int = 10_000,
    groups: Sequence[int] | None = None,
) -> Interval:
    """Mean of `after - before` of trained students, with an interval over problems and over the seeds of training.

    `after` `[S, n]` and `before` `[R, n]` hold the results of S and R seeds on the same n problems. Each draw takes
    problems (by `groups`, see `repeats`), and on either side seeds, with replacement. Few seeds are few: the variance
    between S of them comes out too small by `(S - 1) / S`. `confidence` is the share of draws within the interval:
    `1 - 0.05 / k` for k comparisons that hold together at 95% (Bonferroni).
    """
    sides = [np.asarray(side, dtype=float) for side in (after, before)]
    group = np.arange(sides[0].shape[1]) if groups is None else np.asarray(groups)
    sums = [np.stack([np.bincount(group, row) for row in side]) for side in sides]  # [S, G]
    counts, rng = np.bincount(group), np.random.default_rng(seed)
    means = []
    for _ in range(draws // 500):  # blocks keep the index matrix small for thousands of problems
        taken = rng.multinomial(counts.size, np.full(counts.size, 1 / counts.size), 500)  # [500, G]
        value = []
        for rows in sums:
            of_seeds = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), 500) / len(rows)  # [500, S]
            value.append((of_seeds * (taken @ rows.T)).sum(1) / (taken @ counts))
        means.append(value[0] - value[1])
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(sides[0].mean() - sides[1].mean()), float(low), float(high))


def less(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]], same: Sequence[int]) -> list[float]:
    """A difference of two students with its interval over problems and seeds."""
    found = bootstrap_over_seeds(one, other, groups=same)
    return [found.value, found.low, found.high]


def options(parser: argparse.ArgumentParser, name: str, first: int, num: int) -> None:
    """What every benchmark of arms takes."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9], help="one of each arm; the first one tunes")
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS, help="of a learning rate that are tried")
    parser.add_argument("--first", type=int, default=first, help="number of the first test problem")
    parser.add_argument("--num", type=int, default=num, help="test problems")
    parser.add_argument("--budget", type=int, default=400, help="sampled and scored tokens a test problem")
    parser.add_argument("--jobs", type=int, default=2, help="seeds side by side, one thread each")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every stage")
    parser.add_argument("--train-only", action="store_true", help="train, and leave the test problems unread")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / name)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{name}.json")


def climb(seeds: Sequence[Seed], stages: Any, jobs: int) -> dict[str, float]:
    """`stages(seed, factors)` of the first seed, which tunes, and then of the others; returns the factors."""
    factors: dict[str, float] = {}
    stages(seeds[0], factors)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda seed: stages(seed, dict(factors)), seeds[1:]))
    return factors
