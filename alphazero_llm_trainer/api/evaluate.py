"""`evaluate`: ways of answering beside each other at equal tokens, in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import Config, check_read, load_answering
from ..eval.evaluation import Evaluation
from ..eval.names import METHOD_NAMES
from ..eval.results import EvalFolder
from ..live import Progress, Stop, StopAsked, StoppedError
from ..problems.source import Source
from ..report.eval_page import EvaluationTable, evaluation_text, warn_missing
from ..report.folder_page import write_report
from ..report.html import frame_page
from .settings import (
    Display,
    Problems,
    Reward,
    address_of,
    configure_call,
    outside_loops,
    progress_of,
    reward_address,
)

if TYPE_CHECKING:
    from ..policy.student import Student


@dataclass(frozen=True, slots=True)
class Table(EvaluationTable):
    """The results of an evaluation. `facts` is results.json, which stands in `folder`."""

    folder: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One a source, budget and method: accuracy with its 95% interval, tokens, calls and
        outcomes of its problems.
        """
        return list(self.facts["rows"])

    def _repr_html_(self) -> str:
        """report.html, in a notebook."""
        return frame_page((self.folder / "report.html").read_text(encoding="utf-8"))

    def __repr__(self) -> str:
        short = warn_missing(self.facts)
        return evaluation_text(self.facts) + ("" if short is None else f"\n{short}")


def evaluate(
    problems: Problems | Sequence[str] = "auto",
    model: str | Path | Student = "auto",
    *,
    reward: Reward = None,
    methods: str | Sequence[str] = METHOD_NAMES,
    budget_tokens: int | Sequence[int] | None = None,
    verifier: str | None = None,
    prm: str | Path | None = None,
    value: str | Path | None = None,
    num: int = 200,
    start: int = 0,
    split: str = "test",
    samples: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    config: dict[str, Any] | None = None,
    progress: Display = True,
) -> Table:
    """Compare ways of answering problems at equal tokens; what the command `eval` runs.

    Args:
        problems: an address of `--source` or several, a source, or tasks, of which `split` is
            answered.
        model: see `load`; a loaded student is used as it is.
        reward: your own, see `train`: its mean stands beside accuracy.
        methods: ways of answering, or one.
        budget_tokens: sampled and scored tokens a problem; no method can spend more. None takes
            four usual answers of the student (`reserve` in models.yaml).
        verifier: who judges: "none", "calculator", "prm", "value", a product such as
            "calculator+prm", ...; None takes the network of `prm` or `value`, else the calculator.
        prm, value: folders of the commands `prm` and `value`; with "none" a value guides the search
            of mcts.
        num, start, split: how many problems of each source, the number of the first, and their
            split: choose on "validation", report "test"; "all" is a data set's splits together.
        samples: also pass@k of so many samples.
        out: the folder; None takes the next `eval-NNN` in `train.checkpoint_dir`.
        resume: go on with the finished cells of `out`, or of the newest folder.
        seed, config: as in `search`.
        progress: a live line, nothing, or a function that gets each line.

    Raises:
        AlphaZeroError: the arguments are wrong; one sentence with the fix.
        KeyboardInterrupt: Ctrl-C; what is finished is kept for `resume`.
    """
    arguments = {"rewards.custom": reward_address(reward), "seed": seed}
    guided = partial(load_answering, guided=value is not None and verifier == "none")
    resolved, folder = configure_call(model, config, arguments, guided)
    problems = resolved.problems.source if problems == "auto" else problems
    several = not isinstance(problems, str | Source) and all(
        isinstance(address, str) for address in problems
    )
    if budget_tokens is None:
        budget_tokens = resolved.answer_budget
    work = Evaluation.of(
        str,
        source=list(problems) if several else [address_of(problems)],  # type: ignore[arg-type]
        methods=[methods] if isinstance(methods, str) else list(methods),
        budget_tokens=[budget_tokens] if isinstance(budget_tokens, int) else [*budget_tokens],
        verifier=verifier,
        prm=prm,
        value=value,
        num=num,
        start=start,
        split=split,
        samples=samples,
    )
    student = None if isinstance(model, str | Path) else model
    named = None if out is None else Path(out)
    command = "alphazero_llm_trainer.evaluate"

    def call() -> Table:
        with progress_of(progress) as shown, Stop(shown) as stop:
            try:
                return run_evaluation(
                    work, resolved, folder, student, named, resume, command, shown, stop
                )
            except StoppedError as error:
                raise KeyboardInterrupt from error

    return outside_loops(call)


def run_evaluation(
    work: Evaluation,
    config: Config,
    path: Path | None,
    student: Student | None,
    out: Path | None,
    resume: bool,
    command: str,
    progress: Progress,
    stop: StopAsked,
) -> Table:
    """`evaluate` with a whole configuration: the cells, then results.json, the tables and the page,
    in `out`.

    Raises:
        StoppedError: the user asked to stop; it names the folder, and finished cells are kept.
    """
    check_read(config, command="eval", searches="yes")
    directory = Path(config.train.checkpoint_dir)
    if resume:
        folder = EvalFolder.find(directory, out)
    else:
        folder = EvalFolder.new(directory) if out is None else EvalFolder(out)
        folder.check_free()
    with folder.lock():
        try:
            facts = {
                "command": command,
                **work.run(config, path, student, folder, progress, stop),
            }
        except StoppedError as error:
            raise StoppedError(str(folder.path)) from error
        folder.write_card(facts)
        write_report(folder.path)
    return Table(facts, folder.path)
