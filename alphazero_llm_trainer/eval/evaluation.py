"""A whole evaluation: methods x budgets x sources, cell by cell, each kept as it is finished; then what is read off them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import Config
from ..errors import ConfigError
from ..live import Progress, run_until
from ..policy.folders import check_critic
from ..problems.load import load_tasks, opening
from ..problems.source import SPLITS, check_reads, open_one_of
from ..rewards.custom import open_reward
from ..types import Opening
from .attempt import MethodContext
from .cells import SAMPLES, Benchmark, run_cell, run_samples
from .names import METHOD_NAMES, UNJUDGED
from .results import EvalFolder, at_k, averages, paired, summary
from .verifiers import load_verifier, named_verifier

if TYPE_CHECKING:
    from ..policy.student import Student


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is compared on which problems; `az.evaluate` says what each is."""

    sources: Sequence[str]
    methods: Sequence[str]
    budgets: Sequence[int]
    verifier: str | None
    prm: Path | None
    value: Path | None
    num: int
    start: int
    split: str
    samples: int

    def check(self, flag: Callable[[str], str] = str) -> None:
        """Raise ConfigError for the first argument that can't be; `flag` says how it is called."""
        named = {"methods": self.methods, "source": self.sources, "budget_tokens": self.budgets}
        for name, given in named.items():
            if not given or len(set(given)) < len(given):
                raise ConfigError(f"{flag(name)} is {list(given)}: name each once, and at least one")
        unknown = [name for name in self.methods if name not in METHOD_NAMES]
        if unknown:
            raise ConfigError(f"{flag('methods')} has {unknown[0]!r}: choose from {', '.join(METHOD_NAMES)}")
        least = {"num": (self.num, 1), "start": (self.start, 0), "samples": (self.samples, 0)}
        for name, (number, lowest) in {**least, "budget_tokens": (min(self.budgets), 1)}.items():
            if number < lowest:
                raise ConfigError(f"{flag(name)} is {number}: give at least {lowest}")
        if self.split not in SPLITS:
            raise ConfigError(f"{flag('split')} is {self.split!r}: choose from {', '.join(SPLITS)}")
        judge = self.judge
        if judge != "none" and set(self.methods) <= set(UNJUDGED) and (self.verifier or self.prm or self.value):
            raise ConfigError(
                f"{flag('verifier')} is {judge!r} and none of {flag('methods')} {', '.join(self.methods)} asks a verifier:"
                " leave it out, or add a method such as mcts"
            )
        for name, critic in (("prm", self.prm), ("value", self.value)):
            if critic is not None:
                check_critic(critic, name, f"{flag(name)} {critic}")

    @property
    def judge(self) -> str:
        """The verifier's name; see `named_verifier`."""
        return named_verifier(self.verifier, self.prm, self.value)

    def run(
        self,
        config: Config,
        path: Path | None,
        student: Student | None,
        out: Path,
        resume: bool,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> dict[str, Any]:
        """Every cell that is missing in the folder `out`; returns what results.json holds. `path` is the student's folder.

        Raises:
            StoppedError: the user asked to stop; finished cells are kept.
        """
        if config.search.value is not None:
            raise ConfigError(
                f"search.value is {config.search.value!r}, which guides no search of an evaluation: name it with"
                " --value, as a verifier"
            )
        check_reads(config.problems, [open_one_of(config, name) for name in self.sources])
        benchmarks = [self.benchmark(config, name, progress) for name in self.sources]
        # Here, because torch takes seconds to load.
        from ..policy.adapters import fingerprint
        from ..policy.student import load_student

        if student is None:
            student = load_student(config, path=path, inference=self.prm is None and self.value is None)
        identity = self.settings(config) | {"weights": fingerprint(student.model)}
        # What is said before the questions is a part of them.
        openings = {one.name: opening(config, open_one_of(config, one.name), student.name) for one in benchmarks}
        hashes = {one.name: one.data_hash + said_before(student, openings[one.name]) for one in benchmarks}
        folder = EvalFolder(out, identity, hashes, resume)
        self.fill(folder, config, student, benchmarks, openings, progress, stop)
        cells = [cell for asked in self.cells() if (cell := folder.read(*asked)) is not None]
        measured = [cell for cell in cells if cell.method != SAMPLES]
        rows = [summary(cell) for cell in measured]
        return {
            "student": student.name if path is None else str(path),
            "verifier": self.judge,
            "seed": config.seed,
            "split": self.split,
            "identity": identity,
            "config": config.model_dump(mode="json", exclude={"models", "teacher_tiers"}),
            "benchmarks": {
                one.name: {
                    "problems": len(one.tasks),
                    "data_hash": one.data_hash,
                    "system_prompt": openings[one.name].system_prompt,
                    "shots": openings[one.name].shots,
                }
                for one in benchmarks
            },
            "rows": rows,
            "averages": averages(rows),
            "pairs": paired(measured),
            "at_k": [at_k(cell) for cell in cells if cell.method == SAMPLES],
        }

    def fill(
        self,
        folder: EvalFolder,
        config: Config,
        student: Student,
        benchmarks: Sequence[Benchmark],
        openings: dict[str, Opening],
        progress: Progress,
        stop: Callable[[], bool],
    ) -> None:
        """Measure every cell that is missing; each is kept as soon as it is finished."""
        by_name = {one.name: one for one in benchmarks}
        custom = open_reward(config.rewards)
        verifier = load_verifier(self.judge, student, config, self.prm, self.value)

        def tell(tokens: int) -> None:
            progress.advance(tokens=tokens)

        cells = self.cells()
        for number, (name, method, budget) in enumerate(cells, 1):
            if folder.file(name, method, budget).exists():
                continue
            student.opening, benchmark = openings[name], by_name[name]
            sampler = MethodContext(student, verifier, config)
            if method == SAMPLES:
                what, work = f"{budget} samples each", run_samples(sampler, benchmark, budget, tell)
            else:
                what = f"{method} at {budget:,} tokens"
                work = run_cell(sampler, benchmark, method, budget, tell, custom)
            doing = f"{number} of {len(cells)}, {name}, {what}"
            progress.start(len(benchmark.tasks), unit="problem", doing=doing, cost=student.engine.cost)
            folder.write(run_until(stop, work))
        progress.stop()

    def cells(self) -> list[tuple[str, str, int]]:
        """(source, method, budget) of every cell, budgets from small to large; samples last."""
        found = [
            (name, one, budget) for name in self.sources for budget in sorted(self.budgets) for one in self.methods
        ]
        return found + [(name, SAMPLES, self.samples) for name in self.sources if self.samples]

    def benchmark(self, config: Config, name: str, progress: Progress) -> Benchmark:
        """Problems of one source: `num` of the split from number `start` on, or as many as there are."""
        source = open_one_of(config, name)
        tasks = load_tasks(source, self.split, self.num, start=self.start, rewards=config.rewards)
        if len(tasks) < self.num:
            progress.say(f"{name} has {len(tasks):,} {self.split} problems from number {self.start} on: these are used")
        return Benchmark(name, tasks)

    def settings(self, config: Config) -> dict[str, Any]:
        """What decides the figures of a cell, besides the student's weights and the benchmarks' rows."""
        search = config.search.model_dump(mode="json", exclude={"concurrent", "budget_tokens", "budget_seconds"})
        return {
            "seed": config.seed,
            "verifier": self.judge,
            "num": self.num,
            "start": self.start,
            **({} if self.split == "test" else {"split": self.split}),
            "levels": config.problems.levels,
            **({} if config.problems.hold_out == "questions" else {"hold_out": config.problems.hold_out}),
            **({} if config.rewards.custom is None else {"rewards.custom": config.rewards.custom}),
            "engine.max_context": config.engine.max_context,
            "search": search,
            "prm": digest(self.prm),
            "value": digest(self.value),
        }


def said_before(student: Student, given: Opening) -> str:
    """A digest of what a chat says before a question; "" where the student's template says no more than the question."""
    asked = []
    for student.opening in (Opening(None), given):
        asked.append(student.prompt_ids("?"))
    return "" if asked[0] == asked[1] else f"-{hashlib.sha256(repr(asked[1]).encode()).hexdigest()[:16]}"


def digest(folder: Path | None) -> str | None:
    """A hash of a critic's name on the hub, or of its folder's cards, which name the hashes of its other files."""
    if folder is None:
        return None
    found = hashlib.sha256() if folder.is_dir() else hashlib.sha256(str(folder).encode())
    for file in sorted(folder.glob("*.json")):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()
