"""`evaluate`: ways of answering beside each other at equal tokens, cell by cell, each kept as it is finished."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import Config
from ..errors import ConfigError
from ..eval.cells import Benchmark, StoppedError, run_cell, run_samples
from ..eval.names import METHOD_NAMES
from ..eval.results import (
    CARD,
    RESULTS,
    TABLES,
    EvalFolder,
    at_k,
    newest_folder,
    next_folder,
    paired,
    summary,
)
from ..eval.verifiers import check_name, load_verifier
from ..files import FolderLock, write_json, write_whole
from ..live import Progress, Stop
from ..policy.folders import check_critic
from ..problems.load import load_tasks, opening
from ..problems.source import open_one_of
from ..rewards.custom import open_reward
from ..types import Opening
from .settings import (
    Problems,
    Reward,
    Told,
    address_of,
    configured,
    outside_loops,
    present,
    progress_of,
    reward_address,
    student_of,
)

if TYPE_CHECKING:
    from ..policy.student import Student
    from ..types import Task


@dataclass(frozen=True, slots=True)
class Table:
    """The results of an evaluation. `facts` is results.json, which stands in `folder`."""

    facts: Mapping[str, Any]
    folder: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One a source, budget and method: accuracy with its 95% interval, tokens, calls and outcomes of its problems."""
        return list(self.facts["rows"])

    def to_markdown(self) -> str:
        """Every figure, as results.md has it."""
        from ..report.evaluation import results_markdown

        return results_markdown(self.facts)

    def plot(self) -> str:
        """The dot plots of accuracy as one HTML page, which report.html is; a notebook shows it with `IPython.display.HTML`."""
        return (self.folder / "report.html").read_text(encoding="utf-8")

    def __str__(self) -> str:
        from ..report.evaluation import result_text, silent

        short = silent(self.facts)
        return result_text(self.facts) + ("" if short is None else f"\n{short}")


def evaluate(
    problems: Problems | Sequence[str] = "embedded",
    model: str | Path | Student = "auto",
    *,
    reward: Reward = None,
    methods: str | Sequence[str] = METHOD_NAMES,
    budget_tokens: int | Sequence[int] = 200,
    verifier: str = "calculator",
    prm: str | Path | None = None,
    value: str | Path | None = None,
    num: int = 200,
    start: int = 0,
    samples: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    config: dict[str, Any] | None = None,
    progress: Told = True,
) -> Table:
    """Compare ways of answering test problems at equal tokens; what the command `eval` runs.

    Args:
        problems: an address of `--source` or several, a source, or tasks, of which the test split is answered.
        model: see `load`; a loaded student is used as it is.
        reward: your own, see `train`: its mean stands beside accuracy.
        methods: ways of answering, or one.
        budget_tokens: sampled and scored tokens a problem; no method can spend more.
        verifier: who judges: "none", "calculator", "prm", "value", a product such as "calculator+prm", ...
        prm, value: folders of the commands `prm` and `value`.
        num, start: how many test problems of each source, and the number of the first.
        samples: also pass@k and maj@k of so many samples.
        out: the folder; None takes the next `eval-NNN` in `train.checkpoint_dir`.
        resume: go on with the finished cells of `out`, or of the newest folder.
        seed, config: as in `search`.
        progress: a live line, nothing, or a function that gets each line.

    Raises:
        AlphaZeroError: the arguments are wrong; one sentence with the fix.
        KeyboardInterrupt: Ctrl-C; what is finished is kept for `resume`.
    """
    student = student_of(model)
    resolved, folder = configured(model, present(rewards__custom=reward_address(reward), seed=seed), config)
    several = (
        isinstance(problems, Sequence) and not isinstance(problems, str) and all(isinstance(p, str) for p in problems)
    )
    sources = [str(p) for p in problems] if several else [address_of(problems)]  # type: ignore[arg-type,union-attr]
    work = Evaluation(
        sources=sources,
        methods=[methods] if isinstance(methods, str) else list(methods),
        budgets=[budget_tokens] if isinstance(budget_tokens, int) else list(budget_tokens),
        verifier=verifier,
        prm=None if prm is None else Path(prm),
        value=None if value is None else Path(value),
        num=num,
        start=start,
        samples=samples,
        out=None if out is None else Path(out),
        resume=resume,
        command="alphazero_llm_trainer.evaluate",
    )
    work.check()

    def call() -> Table:
        with Stop() as stop, progress_of(progress) as shown:
            try:
                return work.run(resolved, folder, student, shown, stop)
            except StoppedError as error:
                raise KeyboardInterrupt from error

    return outside_loops(call)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is compared on which problems; see `evaluate`."""

    sources: Sequence[str]
    methods: Sequence[str]
    budgets: Sequence[int]
    verifier: str
    prm: Path | None
    value: Path | None
    num: int
    start: int
    samples: int
    out: Path | None
    resume: bool
    command: str

    def check(self, flag: Callable[[str], str] = str) -> None:
        """Raise ConfigError for the first argument that can't be; `flag` says how it is called."""
        names = flag("methods"), flag("source"), flag("budget_tokens")
        known = METHOD_NAMES, None, None
        for name, given, choices in zip(names, (self.methods, self.sources, self.budgets), known, strict=True):
            for one in given:
                if choices is not None and one not in choices:
                    raise ConfigError(f"{name} has {one!r}: choose from {', '.join(choices)}")
                if list(given).count(one) > 1:
                    raise ConfigError(f"{name} has {one!r} twice: name it once")
            if not given:
                raise ConfigError(f"{name} is empty: name at least one")
        for name, number, least in (("num", self.num, 1), ("start", self.start, 0), ("samples", self.samples, 0)):
            if number < least:
                raise ConfigError(f"{flag(name)} is {number}: give at least {least}")
        for budget in self.budgets:
            if budget < 1:
                raise ConfigError(f"{flag('budget_tokens')} has {budget}: give at least 1")
        check_name(self.verifier, self.prm, self.value)
        for name, folder in (("prm", self.prm), ("value", self.value)):
            if folder is not None:
                check_critic(folder, name, f"{flag(name)} {folder}")

    def run(
        self, config: Config, path: Path | None, student: Student | None, progress: Progress, stop: Callable[[], bool]
    ) -> Table:
        """Every cell that is missing, then the tables and the page. `path` is the student's folder.

        Raises:
            StoppedError: the user asked to stop; finished cells are kept.
        """
        directory = Path(config.train.checkpoint_dir)
        out = self.out or (newest_folder(directory) if self.resume else next_folder(directory))
        with FolderLock(out):
            return self.run_in(out, config, path, student, progress, stop)

    def run_in(
        self,
        out: Path,
        config: Config,
        path: Path | None,
        student: Student | None,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> Table:
        """`run` in a folder that is this process's own."""
        from ..policy.adapters import fingerprint
        from ..policy.student import load_student

        if not self.resume and (out / CARD).exists():
            raise ConfigError(
                f"--out {out} holds an evaluation already: add --resume to go on with it, or name another"
            )
        benchmarks = [Benchmark(name, load(config, name, "test", self.num, self.start)) for name in self.sources]
        if student is None:
            student = load_student(config, path=path, inference=self.prm is None and self.value is None)
        identity = self.settings(config) | {"weights": fingerprint(student.model)}
        rows = {one.name: one.data_hash for one in benchmarks}
        for one in benchmarks:  # what is said before the questions is a part of them
            rows[one.name] += told(student, opening(config, open_one_of(config, one.name), student.name))
        folder = EvalFolder(out, identity, rows, self.resume)
        for one in benchmarks:
            if len(one.tasks) < self.num:
                progress.say(
                    f"{one.name} has {len(one.tasks):,} test problems from number {self.start} on: these are used"
                )
        facts: dict[str, Any] = {
            one.name: {"problems": len(one.tasks), "data_hash": one.data_hash} for one in benchmarks
        }
        try:
            self.work(config, student, benchmarks, folder, facts, progress, stop)
        except StoppedError as error:
            raise StoppedError(str(out)) from error
        results = self.gather(config, student.name if path is None else str(path), folder, facts, identity)
        write_json(out / RESULTS, results)
        from ..report.evaluation import results_markdown
        from ..report.folder import write_report

        write_whole(out / TABLES, results_markdown(results))
        write_report(out)
        return Table(results, out)

    def settings(self, config: Config) -> dict[str, Any]:
        """What decides the figures of a cell, besides the student's weights and the benchmarks' rows."""
        search = config.search.model_dump(mode="json", exclude={"concurrent", "budget_tokens", "budget_seconds"})
        return {
            "seed": config.seed,
            "verifier": self.verifier,
            "num": self.num,
            "start": self.start,
            "levels": config.problems.levels,
            **({} if config.problems.hold_out == "questions" else {"hold_out": config.problems.hold_out}),
            **({} if config.rewards.custom is None else {"rewards.custom": config.rewards.custom}),
            "engine.max_context": config.engine.max_context,
            "search": search,
            "eval": config.eval.model_dump(mode="json"),
            "prm": digest(self.prm),
            "value": digest(self.value),
        }

    def work(
        self,
        config: Config,
        student: Student,
        benchmarks: Sequence[Benchmark],
        folder: EvalFolder,
        facts: dict[str, Any],
        progress: Progress,
        stop: Callable[[], bool],
    ) -> None:
        """Every cell that is missing, budgets from small to large; each is kept as soon as it is finished."""
        from ..eval.attempt import MethodContext

        custom = open_reward(config.rewards)
        cells = [(b, m, budget) for b in benchmarks for budget in sorted(self.budgets) for m in self.methods]
        cells += [(b, "samples", self.samples) for b in benchmarks if self.samples]
        done = [folder.file(b.name, m, budget).exists() for b, m, budget in cells]
        progress.start(
            sum(len(b.tasks) for b, _, _ in cells),
            sum(len(b.tasks) for (b, _, _), finished in zip(cells, done, strict=True) if finished),
            "problem",
        )
        verifier = load_verifier(self.verifier, student, config, self.prm, self.value)
        for (benchmark, method, budget), finished in zip(cells, done, strict=True):
            student.opening = opening(config, open_one_of(config, benchmark.name), student.name)
            facts[benchmark.name] |= {"system_prompt": student.opening.system_prompt, "shots": student.opening.shots}
            if finished:
                continue
            progress.describe(f"{benchmark.name}, {method}, {budget}")
            sampler = MethodContext(student, verifier, config)

            def tell(tokens: int) -> None:
                progress.advance(tokens=tokens)

            if method == "samples":
                found = asyncio.run(run_samples(sampler, benchmark, budget, stop, tell))
                folder.write(found)
            else:
                folder.write(asyncio.run(run_cell(sampler, benchmark, method, budget, stop, tell, custom)))

    def gather(
        self,
        config: Config,
        student: str,
        folder: EvalFolder,
        facts: dict[str, Any],
        identity: dict[str, Any],
    ) -> dict[str, Any]:
        """results.json: everything that is read off the cells of this command."""
        cells = [
            cell
            for name in self.sources
            for budget in sorted(self.budgets)
            for method in self.methods
            if (cell := folder.read(name, method, budget)) is not None
        ]
        sampled = [folder.read_samples(name, self.samples) for name in self.sources if self.samples]
        return {
            "command": self.command,
            "student": student,
            "verifier": self.verifier,
            "seed": config.seed,
            "identity": identity,
            "config": config.model_dump(mode="json", exclude={"models", "teacher_tiers"}),
            "benchmarks": facts,
            "rows": [summary(cell) for cell in cells],
            "pairs": paired(cells),
            "at_k": [at_k(found) for found in sampled if found is not None],
        }


def told(student: Student, given: Opening) -> str:
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


def load(config: Config, name: str, split: str, count: int, start: int) -> list[Task]:
    return load_tasks(open_one_of(config, name), split, count, start=start, rewards=config.rewards)
