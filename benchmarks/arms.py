"""What benchmarks of arms share: the stages of a seed, learning rates, students' greedy answers,
and differences over problems and seeds.

Every stage is a command of the package in a process of its own. A stage that left its last file is
not run again, and a stopped training goes on, so that the same command of a benchmark goes on where
it was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from provenance import ROOT, make_parser

from alphazero_llm_trainer.config.load import Config, load_config
from alphazero_llm_trainer.eval.greedy import answer_tasks
from alphazero_llm_trainer.eval.metrics import bootstrap_over_seeds
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import opening
from alphazero_llm_trainer.types import Task

Item = TypeVar("Item")
Made = TypeVar("Made")
# GRPO by correctness: eight samples a question, and one pass over all rows of a round.
EIGHT = (
    "train.reward=hre train.kl_coefficient=0 teachers.tier=none train.groups=chain search.samples=8"
    " train.requeue_limit=0 train.optimizer.epochs=1"
)


@dataclass(frozen=True, slots=True)
class Arm:
    """A method of `train` ("" is the command as it comes), its settings, and the learning rate in
    the middle of those that are tried.

    `size` sets the questions of a round: what a question takes, in the benchmark's unit, or how
    many there are.
    """

    method: str
    settings: str
    rate: float
    size: float = 1.0

    def at(
        self, rate: float, validation: int, questions: int, every: int, updates: int | None = None
    ) -> list[str]:
        """The settings of a run at a learning rate: problems that measure it, questions of a round,
        rounds between two measurements, and updates of a round (None and GRPO: the method's own).
        """
        settings = [*self.settings.split(), *rate_and_size(rate, validation)]
        settings.append(f"train.questions_per_round={questions}")
        settings.append(f"train.save_every={every * questions}")
        if updates is not None and self.method != "grpo":
            settings += [f"train.updates_per_round={updates}", "train.optimizer.epochs=1000"]
        return settings


@dataclass(slots=True)
class Seed:
    """The stages of one seed, which write into `work`/seed-N. `config` is a file over
    training.yaml, None for none.
    """

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
        self,
        name: str,
        words: Sequence[str],
        finished: Path,
        configured: bool = True,
        script: Path | None = None,
    ) -> None:
        """Run a command (a `script`'s, None: the package's) unless `finished` is there; what it
        prints goes to NAME.log.
        """
        if finished.is_file():
            return
        self.path.mkdir(parents=True, exist_ok=True)
        program = [str(script)] if script else ["-m", "alphazero_llm_trainer"]
        command = [sys.executable, *program, words[0]]
        if configured:
            command += [
                *(("--config", str(self.config)) if self.config else ()),
                "--seed",
                str(self.seed),
            ]
            command += flags(*self.args.set)
        command += words[1:]  # a stage's own settings win
        print(f"seed {self.seed}: {name}", flush=True)
        log = self.folder(name).with_name(f"{self.folder(name).name}.log")
        # Seeds run side by side.
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", str(ROOT))]),
        }
        with log.open("ab") as output:
            code = subprocess.run(
                command, stdout=output, stderr=output, env=environment, check=False
            ).returncode
        if code or not finished.is_file():
            raise SystemExit(
                f"stage {name} of seed {self.seed} ended with {code}: see {log}, then run this "
                "again"
            )

    def sft(self, name: str, *more: str) -> Path:
        """The folder of a supervised student."""
        out = self.folder(name)
        self.stage(
            name, ["sft", "--out", str(out), "--eval-size", "1", *more], out / "manifest.json"
        )
        return out

    def train(self, name: str, student: Path, *more: str) -> Path:
        """The folder of a run of `train` from a student on, which goes on where it was stopped."""
        run = self.folder(name) / "run-001"
        begun = (run / "run.json").is_file()
        fresh = ["--model", str(student), "--eval-size", "0", *more]
        words = ["train", "--out", str(run.parent), *(["--resume", str(run)] if begun else fresh)]
        self.stage(name, words, run / "report.html", configured=not begun)
        return run

    def tune(self, arm: Arm, reached: Callable[[float], float]) -> dict[float, float]:
        """The accuracy that each of the arm's learning rates reached."""
        return by_rate(reached, [factor * arm.rate for factor in self.args.factors])


class Greedy:
    """Right (1) or wrong (0) by problem of students' greedy answers, each kept in
    `work`/greedy.json by name.
    """

    def __init__(self, work: Path, settings: Sequence[str]) -> None:
        self.path, self.config = work / "greedy.json", load_config(None, overrides=settings)
        self.kept: dict[str, list[bool]] = read(self.path) if self.path.exists() else {}

    def __call__(self, name: str, student: Path | None, tasks: Sequence[Task]) -> list[float]:
        if name not in self.kept:
            loaded = load_student(self.config, path=student, opening=opening(self.config))
            self.kept[name] = answer_tasks(
                loaded, tasks, max_tokens=self.config.search.max_tokens
            ).first
            self.path.write_text(json.dumps(self.kept), encoding="utf-8")
        return list(map(float, self.kept[name]))

    def of_seeds(
        self, name: str, seeds: Sequence[Seed], students: Sequence[Path], tasks: Sequence[Task]
    ) -> list[list[float]]:
        """Those of an arm's students, one a seed."""
        pairs = zip(seeds, students, strict=True)
        return [self(f"{name} {seed.seed}", student, tasks) for seed, student in pairs]


def flags(*settings: str) -> list[str]:
    """KEY=VALUE as `--set KEY=VALUE`."""
    return [word for setting in settings for word in ("--set", setting)]


def rate_and_size(rate: float, validation: int) -> list[str]:
    """The settings of a learning rate, and of how many validation problems measure it."""
    return [f"train.optimizer.learning_rate={rate:g}", f"train.validation_size={validation}"]


def side_by_side(jobs: int, work: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
    """What `work` makes of each, so many at once."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(work, items))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def rounds_of(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run's rounds."""
    return [line for line in metrics(run) if "cost" in line]


def curve_of(run: Path) -> list[tuple[int, float]]:
    """Sampled tokens and accuracy on validation problems at each of a run's measurements."""
    tokens, points = 0, []
    for line in metrics(run):
        tokens += line["cost"]["sampled_tokens"] if "cost" in line else 0
        if "validation_accuracy" in line:
            points.append((tokens, line["validation_accuracy"]))
    return points


def on_validation(student: Path) -> float:
    """The best greedy accuracy on validation problems of a run's checkpoints, or of `sft`."""
    if student.name == "student":
        return max((reached for _, reached in curve_of(student.parent)), default=0.0)
    accuracy: float = read(student / "manifest.json")["validation_accuracy"]
    return accuracy


def spent_by(student: Path) -> dict[str, int]:
    """Sampled tokens, questions and updates of a student's run, or of `sft`."""
    if student.name != "student":
        return {"tokens": 0, "questions": 0, "updates": read(student / "manifest.json")["steps"]}
    card = read(student.parent / "run.json")
    made = sum(line.get("updates", 0) for line in metrics(student.parent))
    tokens: int = card["search_cost"]["sampled_tokens"]
    return {"tokens": tokens, "questions": card["questions"], "updates": made}


def by_rate(reached: Callable[[float], float], rates: Sequence[float]) -> dict[float, float]:
    """The accuracy that each learning rate reached on validation problems: of several `rates`, and
    on from an end until the best one has a lower and a higher neighbour.
    """
    known = {rate: reached(rate) for rate in rates}
    while len(known) > 1:
        further = {min(known): min(known) / 2, max(known): max(known) * 2}.get(best(known))
        if further is None:
            break
        known[further] = reached(further)
    return known


def best(known: dict[float, float]) -> float:
    """The rate with the largest accuracy, the first one on ties."""
    return max(known, key=lambda rate: known[rate])


def less(
    one: Sequence[Sequence[float]], other: Sequence[Sequence[float]], same: Sequence[int]
) -> list[float]:
    """A difference of two students with its interval over problems and seeds."""
    found = bootstrap_over_seeds(one, other, groups=same)
    return [found.value, found.low, found.high]


def accuracy(right: Sequence[Sequence[float]], same: Sequence[int]) -> list[float]:
    """A student's accuracy with its interval over problems and seeds."""
    return less(right, [[0.0] * len(same)], same)


def digits(right: Sequence[Sequence[float]]) -> list[str]:
    """Right (1) or wrong (0) by problem as text, one a seed."""
    return ["".join(str(int(one)) for one in of_seed) for of_seed in right]


def add_work(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of every benchmark that runs commands."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of every stage"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / name)


def make_options(doc: str, name: str, first: int, num: int) -> argparse.ArgumentParser:
    """The parser of a benchmark of arms, with what every one takes."""
    parser = make_parser(doc, name)
    add_work(parser, name)
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[7, 8, 9],
        help="one of each arm; the first one tunes",
    )
    parser.add_argument(
        "--factors",
        type=float,
        nargs="+",
        default=(1.0, 0.5, 2.0),
        help="of a learning rate that are tried",
    )
    parser.add_argument("--first", type=int, default=first, help="number of the first test problem")
    parser.add_argument("--num", type=int, default=num, help="test problems")
    parser.add_argument("--jobs", type=int, default=2, help="seeds side by side, one thread each")
    parser.add_argument(
        "--train-only", action="store_true", help="train, and leave the test problems unread"
    )
    return parser
