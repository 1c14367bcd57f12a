"""The ladder: Base, SFT, then from that SFT student RFT, PPO, GRPO and weighted SFT with process credit, and MCTS on top.

    uv run python benchmarks/ladder.py --work checkpoints/ladder --seeds 7 8 9

Every stage is a command of the package in a process of its own. A stage that left its last file is not run again, and a stopped
training goes on, so that the same command goes on where it was. Weighted SFT and its PRM are trained first: what the two
sampled is what each other rung samples. The learning rates of RFT, PPO and GRPO are tuned with the first seed: half, one and
two times the rate below, the best on validation problems. Weighted SFT is GRPO without a ratio and without rows below their
group's average, which makes it supervised training on the better responses.

Primary, written down before the test problems were read (PROTOCOL.md): GRPO less RFT. Secondary: each rung less SFT, weighted
SFT less RFT. MCTS is held against step rejection with the same verifier and tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.eval.metrics import bootstrap_over_seeds  # noqa: E402
from benchmarks import provenance  # noqa: E402

FACTORS = (1.0, 0.5, 2.0)  # of a tuned rung's learning rate
TREES, VERIFIER = ("mcts", "step-rejection"), "calculator+prm"
LAST = "weighted SFT"  # the rung that answers by search too
SMALL_ROUNDS = "train.questions_per_round=96 train.save_every=960"


@dataclass(frozen=True, slots=True)
class Rung:
    """A method of `train`, its settings over the recipe, samples a question, and the learning rate that is tuned."""

    method: str
    settings: str
    samples: int
    rate: float | None = None


# In the order of the table. Equal tokens: the questions of all but the last are what its tokens and its PRM's allow.
RUNGS = {
    "RFT": Rung("rft", f"{SMALL_ROUNDS} train.chain_samples=8", 8, 5e-4),
    "PPO": Rung("ppo", f"{SMALL_ROUNDS} train.ppo.samples=8", 8, 2e-4),
    "GRPO": Rung(
        "grpo",
        f"{SMALL_ROUNDS} train.chain_samples=8 train.grpo.credit=group train.grpo.importance=true"
        " train.grpo.negative_weight=0.3 train.rows_per_round=400",
        8,
        5e-4,
    ),
    LAST: Rung("grpo", "train.chain_samples=4", 4),
}


@dataclass(slots=True)
class Seed:
    """The stages of one seed, which write into `work`/seed-N."""

    seed: int
    args: argparse.Namespace

    @property
    def path(self) -> Path:
        return Path(self.args.work / f"seed-{self.seed}")

    def stage(self, name: str, words: Sequence[str], finished: Path, configured: bool = True) -> None:
        """Run a command unless `finished` is there; what it prints goes to NAME.log."""
        if finished.is_file():
            return
        self.path.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "alphazero_llm_trainer", words[0]]
        if configured:
            command += ["--config", str(ROOT / "benchmarks" / "ladder.yaml"), "--seed", str(self.seed)]
            command += [word for one in self.args.set for word in ("--set", one)]
        command += words[1:]  # a stage's own settings win
        print(f"seed {self.seed}: {name}", flush=True)
        log = self.path / f"{name.replace(' ', '-')}.log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}  # seeds run side by side
        with log.open("ab") as output:
            code = subprocess.run(command, stdout=output, stderr=output, env=environment, check=False).returncode
        if code or not finished.is_file():
            raise SystemExit(f"stage {name} of seed {self.seed} ended with {code}: see {log}, then run this again")

    def sft(self, name: str, *more: str) -> None:
        out = self.path / name
        self.stage(name, ["sft", "--out", str(out), "--eval-size", "1", *more], out / "manifest.json")

    def train(self, name: str, rung: Rung, questions: int, *settings: str) -> Path:
        """The run folder of a training from the SFT student."""
        run = self.path / name.replace(" ", "-") / "run-001"
        words, there = ["train", "--out", str(run.parent)], (run / "run.json").is_file()
        if there:
            words += ["--resume", str(run)]
        else:
            words += [
                f"--use-{rung.method}",
                "--model",
                str(self.path / "sft"),
                "-n",
                str(questions),
                "--eval-size",
                "0",
            ]
            words += [word for one in (*rung.settings.split(), *settings) for word in ("--set", one)]
        self.stage(name, words, run / "report.html", configured=not there)
        return run

    def evaluate(self, name: str, student: Path, methods: Sequence[str], *more: str) -> None:
        out, args = self.path / f"eval-{name.replace(' ', '-')}", self.args
        words = ["eval", "--model", str(student), "--methods", *methods, "--budget-tokens", str(args.budget)]
        words += ["-n", str(args.num), "--start", str(args.first), "--out", str(out), *more]
        words += ["--resume"] * (out / "run.json").is_file()
        self.stage(f"eval {name}", words, out / "results.json")

    def climb(self, factors: dict[str, float]) -> None:
        """All stages; `factors` of the learning rates are read, or filled in where they aren't known yet."""
        self.sft("base", "--set", f"train.sft.steps={self.args.base_steps}")
        self.sft("sft")
        prm = self.path / "prm"
        self.stage("prm", ["prm", "--model", str(self.path / "sft"), "--out", str(prm)], prm / "critic.json")
        last = self.train(LAST, RUNGS[LAST], self.args.questions, f"train.grpo.prm={prm}")
        students = {"base": self.path / "base", "sft": self.path / "sft"}
        tokens = read(last / "run.json")["search_cost"]["sampled_tokens"]
        a_sample = tokens / (self.args.questions * RUNGS[LAST].samples)
        tokens += read(prm / "critic.json")["sampled_tokens"]
        for name, rung in RUNGS.items():
            if rung.rate is None:
                continue
            questions = round(tokens / (a_sample * rung.samples))
            tried = {
                factor: self.train(
                    f"{name} x{factor:g}", rung, questions, f"train.{rung.method}.learning_rate={factor * rung.rate:g}"
                )
                for factor in ([factors[name]] if name in factors else FACTORS)
            }
            factors[name] = max(tried, key=lambda factor: validation(tried[factor]))
            students[name] = tried[factors[name]] / "student"
        if self.args.train_only:
            return
        for name, student in students.items():
            self.evaluate(name, student, ["greedy"])
        self.evaluate(LAST, last / "student", ["greedy", *TREES], "--verifier", VERIFIER, "--prm", str(prm))

    def row(self, name: str, method: str) -> dict[str, Any]:
        """The row of a method in a rung's evaluation."""
        rows = read(self.path / f"eval-{name.replace(' ', '-')}" / "results.json")["rows"]
        return next(row for row in rows if row["method"] == method)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def validation(run: Path) -> float:
    """The best greedy accuracy on validation problems of a run's checkpoints."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return max((line["validation_accuracy"] for line in lines if "validation_accuracy" in line), default=0.0)


def table(seeds: Sequence[Seed]) -> dict[str, Any]:
    """The rungs with intervals over problems and seeds, and the comparisons of PROTOCOL.md."""
    where = {name: (name, "greedy") for name in ("base", "sft", *RUNGS)}
    where |= {f"{LAST} + {method}": (LAST, method) for method in TREES}
    right, rungs = {}, []
    for name, (stage, method) in where.items():
        rows = [seed.row(stage, method) for seed in seeds]
        right[name] = [list(map(float, row["outcomes"])) for row in rows]
        tokens = sum(row["sampled_tokens"] + row["scored_tokens"] for row in rows) / len(rows)
        rungs.append({"name": name, "tokens": tokens, "outcomes": [row["outcomes"] for row in rows]})
        rungs[-1]["by_seed"] = [sum(one) / len(one) for one in right[name]]
        rungs[-1]["accuracy"] = sum(rungs[-1]["by_seed"]) / len(seeds)
    pairs = [("GRPO", "RFT"), *((name, "sft") for name in RUNGS), (LAST, "RFT")]
    pairs.append((f"{LAST} + mcts", f"{LAST} + step-rejection"))
    gains = []
    for one, other in pairs:
        gain = bootstrap_over_seeds(right[one], right[other])
        gains.append({"rung": one, "less": other, "gain": [gain.value, gain.low, gain.high]})
        print(f"{one} less {other}: {gain:+}", flush=True)
    return {"rungs": rungs, "gains": gains}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9], help="one ladder each; the first one tunes")
    parser.add_argument(
        "--base-steps", type=int, default=600, help='updates of the undertrained student that "Base" is'
    )
    parser.add_argument("--questions", type=int, default=4800, help="of weighted SFT; its tokens are everyone's")
    parser.add_argument("--first", type=int, default=30_000, help="number of the first test problem")
    parser.add_argument("--num", type=int, default=500, help="test problems")
    parser.add_argument("--budget", type=int, default=400, help="sampled and scored tokens a problem")
    parser.add_argument("--jobs", type=int, default=2, help="seeds side by side, one thread each")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every stage")
    parser.add_argument("--train-only", action="store_true", help="train, and leave the test problems unread")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "ladder")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "ladder.json")
    args = parser.parse_args()
    args.work = args.work.resolve()
    seeds, factors = [Seed(seed, args) for seed in args.seeds], {}
    seeds[0].climb(factors)
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda seed: seed.climb(dict(factors)), seeds[1:]))
    if not args.train_only:
        facts = {"seeds": args.seeds, "first": args.first, "problems": args.num, "budget": args.budget}
        provenance.write(args.out, "ladder", facts | {"rate_factors": factors} | table(seeds))


if __name__ == "__main__":
    main()
