"""What `improvement.py` and `real.py` share: the stages of a seed, and differences over problems
and seeds.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.load import Config, load_config  # noqa: E402
from alphazero_llm_trainer.eval.metrics import bootstrap_over_seeds  # noqa: E402


@dataclass(frozen=True, slots=True)
class Arm:
    """A method of `train` ("" is the command as it comes), its settings, and the learning rate that
    is tuned.

    A question takes about `responses` responses of the reference's mean length.
    """

    method: str
    settings: str = ""
    rate: float | None = None
    responses: float = 1.0


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
        begun: bool = False,
        script: Path | None = None,
    ) -> None:
        """Run a command (a `script`'s, None: the package's) unless `finished` is there and not only
        `begun`; what it prints goes to NAME.log.
        """
        if finished.is_file() and not begun:
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
            command += [word for one in self.args.set for word in ("--set", one)]
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

    def sample(self, name: str, *more: str) -> Path:
        """The folder of sampled trees."""
        out = self.folder(name)
        manifest = out / "manifest.json"
        known = manifest.is_file()
        words = ["sample", "--out", str(out), *more, *["--resume"] * known]
        cut = known and read(manifest)["status"] != "complete"
        self.stage(name, words, manifest, begun=cut)
        return out


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def validation(run: Path) -> float:
    """The best greedy accuracy on validation problems of a run's checkpoints."""
    return max((line.get("validation_accuracy", 0.0) for line in metrics(run)), default=0.0)


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


def sampled(run: Path) -> int:
    tokens: int = read(run / "run.json")["search_cost"]["sampled_tokens"]
    return tokens


def updates(run: Path) -> int:
    return sum(line.get("updates", 0) for line in metrics(run))


def less(
    one: Sequence[Sequence[float]], other: Sequence[Sequence[float]], same: Sequence[int]
) -> list[float]:
    """A difference of two students with its interval over problems and seeds."""
    found = bootstrap_over_seeds(one, other, groups=same)
    return [found.value, found.low, found.high]


def options(parser: argparse.ArgumentParser, name: str, first: int, num: int) -> None:
    """What every benchmark of arms takes."""
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
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of every stage"
    )
    parser.add_argument(
        "--train-only", action="store_true", help="train, and leave the test problems unread"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / name)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{name}.json"
    )
