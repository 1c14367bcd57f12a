"""The ladder: Base, SFT, +PPO (outcome reward), +weighted SFT (process reward), +MCTS over that: each rung over the one below.

The fourth rung is the command `grpo` as config/ladder.yaml sets it: without an importance ratio and without rows below their
group's average its loss is a log-likelihood weighted by the advantages, so that it is named weighted SFT: rejection sampling
with process credit. Under other settings it is GRPO, and named so.

Base is the student as it comes, or briefly trained where it has no weights to come with. Where the rungs are adapters over
one base (`keeps_base`), each goes on from the adapter below it.

Every stage is a command of this package in a process of its own: what a user would type. A stage that left its last file
is not run again, so a ladder that was killed goes on where it was. The evaluations alone read held-out problems, once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from ..config.load import Config, resolve_name
from ..errors import CheckpointError, TrainingError
from ..files import read_object, write_json
from ..policy.folders import from_scratch, keeps_base
from .checkpoint import read_lines

STAGE = """
import sys
from alphazero_llm_trainer.training.ladder import die_with
die_with(int(sys.argv.pop(1)))
from alphazero_llm_trainer.cli.main import main
raise SystemExit(main())
"""
SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG
TIMES = "times.json"  # seconds of each stage of a seed


def rung_names(config: Config) -> tuple[str, ...]:
    """The rungs' names: what runs under this configuration."""
    trained = "+weighted SFT (PRM)" if config.train.grpo.weighted_sft else "+GRPO (PRM)"
    return "Base", "SFT", "+PPO", trained, f"{trained} +MCTS"


class LadderStopped(Exception):
    """The user asked to stop; finished stages stay."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A command of a seed and the stages, of any seed, that have to be finished before it."""

    name: str
    needs: tuple[tuple[int, str], ...]  # (seed, stage)
    run: Callable[[], None]


@dataclass(slots=True)
class Seed:
    """One seed's stages, which write into `path`.

    Args:
        path: the seed's folder.
        config: the ladder's resolved configuration; `recipe` is the file that holds it.
        say: told about each stage.
        stop: True once the user wants to end.
        partner: another seed, whose SFT student this one's PRM starts from: it errs elsewhere. None: the own one.
    """

    path: Path
    seed: int
    config: Config
    recipe: Path
    say: Callable[[str], None]
    stop: Callable[[], bool]
    partner: Seed | None = None
    counting: Lock = field(default_factory=Lock)

    # -- where things are ----------------------------------------------------------------------------------------------

    @property
    def prm(self) -> Path:
        return self.path / "prm"

    def run_folder(self, method: str) -> Path:
        return self.path / method / "run-001"

    def student(self, rung: int) -> Path | None:
        """The folder of a rung's student, None for the one that comes with weights; MCTS searches with the one below it."""
        if rung == 0:
            return self.path / "base" if from_scratch(self.config) else None
        kept = keeps_base(self.config) and not from_scratch(self.config)
        if rung == 1:
            return self.path / "sft" / "adapter" if kept else self.path / "sft"
        return self.run_folder("ppo" if rung == 2 else "grpo") / ("adapter" if kept else "student")

    def evaluation(self, name: str) -> Path:
        return self.path / f"eval-{name}"

    # -- stages --------------------------------------------------------------------------------------------------------

    def stages(self) -> list[Stage]:
        """All stages. PPO waits for `grpo`: its budget is what that and the PRM sampled together."""
        ladder = self.config.ladder
        steps, most = self.config.train.sft.steps, [max(ladder.budgets)]
        prm = ["prm", "--path", str(self.student(1)), "--out", str(self.prm)]
        before_prm = [self.seed]
        # A quantised student's PRM is an adapter over its own base.
        if self.partner is not None and self.config.models[resolve_name(self.config)].quantization == "none":
            prm += ["--set", f"train.prm.base={self.partner.path / 'sft'}"]
            before_prm.append(self.partner.seed)
        own = [word for override in ladder.ppo_overrides for word in ("--set", override)]
        last = len(rung_names(self.config)) - 1
        base = [Stage("base", (), lambda: self.supervised("base", ladder.base_steps))] * from_scratch(self.config)
        return [
            Stage("sft", (), lambda: self.supervised("sft", steps)),
            Stage(
                "prm",
                tuple((seed, "sft") for seed in before_prm),
                lambda: self.stage("prm", prm, self.prm / "prm.json"),
            ),
            Stage(
                "grpo",
                ((self.seed, "prm"),),
                lambda: self.reinforced("grpo", ladder.questions, "--set", f"train.grpo.prm={self.prm}"),
            ),
            Stage("ppo", ((self.seed, "grpo"),), lambda: self.reinforced("ppo", self.ppo_questions(), *own)),
            *base,
            *(
                Stage(
                    f"eval {name}",
                    ((self.seed, name),) if name != "base" or base else (),
                    partial(self.evaluated, name, rung, ["greedy"], most, "none"),
                )
                for rung, name in enumerate(("base", "sft", "ppo"))
            ),
            *(
                Stage(
                    f"eval {name}",
                    ((self.seed, "grpo"),),
                    partial(self.evaluated, name, last, [*ladder.methods], [*ladder.budgets], name),
                )
                for name in ladder.verifiers
            ),
        ]

    def supervised(self, name: str, steps: int | None) -> None:
        out = self.path / name
        # The command's own test figure is not used: one problem is the least it takes.
        arguments = ["sft", "--out", str(out), "--eval-size", "1"]
        if steps is not None:
            arguments += ["--set", f"train.sft.steps={steps}"]
        self.stage(name, arguments, out / "manifest.json")

    def reinforced(self, method: str, questions: int, *more: str) -> None:
        run = self.run_folder(method)
        arguments = [method, "--checkpoint-dir", str(run.parent)]
        if (run / "run.json").is_file():
            self.stage(method, [*arguments, "--resume", str(run)], run / "report.html", configured=False)
        else:
            start = ["--path", str(self.student(1)), "--eval-size", "0", "--num-examples", str(questions)]
            self.stage(method, [*arguments, *start, *more], run / "report.html")

    def evaluated(self, name: str, rung: int, methods: list[str], budgets: list[int], verifier: str) -> None:
        out = self.evaluation(name)
        student = self.student(rung)
        arguments = ["eval", "--num", str(self.config.ladder.num), "--out", str(out)]
        arguments += ["--path", str(student)] if student is not None else []
        arguments += ["--start", str(self.config.ladder.start)]
        arguments += ["--methods", *methods, "--budget-tokens", *map(str, budgets), "--verifier", verifier]
        if "prm" in verifier:
            arguments += ["--prm", str(self.prm)]
        if (out / "run.json").is_file():
            arguments.append("--resume")
        self.stage(f"eval {name}", arguments, out / "results.json")

    def ppo_questions(self) -> int:
        """Questions for which PPO samples as many tokens as the PRM's trees and `grpo` did together."""
        grpo = self.tokens("grpo")
        samples = sum(line.get("samples", 0) for line in read_lines(self.run_folder("grpo") / "metrics.jsonl"))
        a_question = grpo / samples * self.config.train.ppo.samples
        return round((grpo + self.tokens("prm")) / a_question)

    def tokens(self, stage: str) -> int:
        """Tokens that a stage sampled."""
        if stage == "prm":
            return int(read(self.prm / "prm.json").get("cost", {}).get("sampled_tokens", 0))
        return int(read(self.run_folder(stage) / "run.json")["search_cost"]["sampled_tokens"])

    def stage(self, name: str, arguments: list[str], finished: Path, configured: bool = True) -> None:
        """Run one command unless it has finished; its output goes to `NAME.log`."""
        if finished.is_file():
            return
        if self.stop():
            raise LadderStopped
        if configured:
            arguments = [*arguments, "--config", str(self.recipe), "--seed", str(self.seed)]
        began = time.perf_counter()
        self.say(f"seed {self.seed}: {name}")
        log = self.path / f"{name.replace(' ', '-')}.log"
        # One thread each: seeds run side by side.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("ab") as output:
            # Ctrl-C reaches the command too: it ends at its next safe place.
            code = subprocess.run(
                [sys.executable, "-c", STAGE, str(os.getpid()), *arguments],
                stdout=output,
                stderr=output,
                env=environment,
                check=False,
            ).returncode
        if self.stop():
            raise LadderStopped
        if code or not finished.is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise TrainingError(
                f"stage {name} of seed {self.seed} ended with exit code {code} ({lines[-1] if lines else 'no output'}):"
                f" see {log}, mend it and go on with --resume"
            )
        seconds = time.perf_counter() - began
        with self.counting:  # a seed's stages may run side by side too
            times = read(self.path / TIMES) if (self.path / TIMES).is_file() else {}
            times[name] = round(times.get(name, 0.0) + seconds, 1)
            write_json(self.path / TIMES, times)
        self.say(f"seed {self.seed}: {name} took {seconds:.0f} s")


def die_with(parent: int) -> None:
    """Have Linux kill this process when its `parent` dies: a stage that outlived a killed ladder would hold its folder."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def read(path: Path) -> dict[str, Any]:
    """A JSON object that a stage wrote."""
    try:
        return read_object(path)
    except ValueError as error:
        raise CheckpointError(f"{path} is not what a stage wrote ({error}): remove that stage's folder") from error


def climb(seeds: list[Seed], jobs: int) -> None:
    """Run all stages of all seeds, `jobs` at once, each as soon as those it needs have finished.

    After a failure, or once a seed is told to stop, the stages under way end and the first failure is raised.
    """
    for seed in seeds:
        seed.path.mkdir(parents=True, exist_ok=True)
    # The long chain of every seed goes first, so that no worker ends up alone with one.
    each = [[(seed, stage) for stage in seed.stages()] for seed in seeds]
    waiting = [one for stages in zip(*each, strict=True) for one in stages]
    finished: set[tuple[int, str]] = set()
    running: dict[Future[None], tuple[int, str]] = {}
    errors: list[BaseException] = []
    with ThreadPoolExecutor(jobs) as pool:
        while running or (waiting and not errors):
            for seed, stage in [*waiting] if not errors else ():
                if len(running) < jobs and finished.issuperset(stage.needs):
                    running[pool.submit(stage.run)] = seed.seed, stage.name
                    waiting.remove((seed, stage))
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                finished.add(running.pop(future))
                if (error := future.exception()) is not None:
                    errors.append(error)
    # A stage that was stopped because of another one's failure is not the reason.
    for error in sorted(errors, key=lambda error: isinstance(error, LadderStopped)):
        raise error
