"""`train`: a run of search, credit and training, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.load import Config, nest_key, resolve_name, user_layers
from ..errors import AlphaZeroError, ConfigError
from ..eval.metrics import Interval
from ..files import flatten_keys
from ..live import Progress, Stop, StopAsked, StoppedError
from ..problems.registry import UnknownSourceError, open_source
from ..rewards.custom import in_memory
from ..runs.folder import RunFolder
from ..runs.start import check_start, load_run, prepare
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


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A run's folder and its card, which is the folder's run.json."""

    folder: Path
    card: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        """False where Ctrl-C ended it; `train(..., resume=True)` goes on."""
        return "after" in self.card

    @property
    def before(self) -> Interval | None:
        """Accuracy on the held-out test problems before training; None where none were held out."""
        return interval_of((self.card.get("before") or {}).get("accuracy"))

    @property
    def after(self) -> Interval | None:
        """The same problems after training."""
        return interval_of((self.card.get("after") or {}).get("accuracy"))

    @property
    def gain(self) -> Interval | None:
        """The paired difference of the two."""
        return interval_of(self.card.get("gain"))

    @property
    def reward_gain(self) -> Interval | None:
        """The paired difference in a reward of your own, or in the grades of a source with partial
        credit.
        """
        return interval_of(self.card.get("reward_gain"))

    @property
    def student(self) -> Path:
        """The trained student, a folder that transformers loads."""
        return RunFolder(self.folder).student

    def __repr__(self) -> str:
        from ..report.training import training_text

        if not self.finished:
            return f"stopped in {self.folder}; resume=True goes on"
        return training_text(dict(self.card), RunFolder(self.folder).read_metrics())

    def _repr_html_(self) -> str:
        """The report, in a notebook."""
        from ..report.folder_page import folder_parts
        from ..report.html import frame_page, make_page

        return frame_page(make_page(self.folder.name, folder_parts(self.folder)))


def interval_of(facts: Mapping[str, float] | None) -> Interval | None:
    """An interval of a run's card."""
    return None if facts is None else Interval(facts["value"], facts["low"], facts["high"])


def train(
    problems: Problems = "auto",
    reward: Reward = None,
    *,
    model: str | Path = "auto",
    method: str | None = None,
    num_examples: int | None = None,
    tokens: int | None = None,
    eval_size: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    config: Mapping[str, Any] | str | Path | None = None,
    progress: Display = True,
) -> TrainingRun:
    """Train a student from search trees: search, grade, train, in rounds; what the command `train`
    runs.

    Args:
        problems: an address of `--source`, a source, or tasks.
        reward: your own, `fn(problem, response, task) -> float` in [0, 1], sync or async, or its
            address, `file.py:NAME`; `rewards.custom_weight` weighs it beside correctness
            (`rewards.hre_weight`) and perplexity.
        model: the student to start from; see `load`.
        method: the method, whose recipe is config/METHOD.yaml, or `file.py:NAME` of your own; None
            takes expert iteration. With a
            reward of your own, teachers, a value network or search over tokens take "grpo".
        num_examples: training questions.
        tokens: end after so many sampled tokens, which runs are compared at.
        eval_size: held-out test problems before and after.
        out: the run's folder; None takes the next `run-NNN` in `train.checkpoint_dir`.
        resume: go on with `out`, or with the newest run, as it was configured.
        seed: of everything random.
        config: keys of training.yaml, nested or dotted, such as `{"train.credit": "step"}`; or what
            `--config` names, such as "grpo_correctness".
        progress: a live line, nothing, or a function that gets each line.

    Raises:
        AlphaZeroError: the arguments are wrong; one sentence with the fix.
    """
    if isinstance(config, str | Path):
        [config] = user_layers(config, ())
    arguments = {
        "problems.source": address_of(problems),
        "rewards.custom": reward_address(reward),
        "train.method": method,
        "train.num_examples": num_examples,
        "train.tokens": tokens,
        "train.eval_size": eval_size,
        "seed": seed,
    }
    if not isinstance(model, str | Path):
        raise ConfigError(
            f"model is a {type(model).__name__}: "
            "training loads its own, give a name, a folder or a hub id"
        )
    resolved, _ = configure_call(model, config, arguments, load_run, "train.student")
    named = None if out is None else Path(out)
    asked = arguments | {
        key: value
        for name, setting in (config or {}).items()
        for key, value in flatten_keys(nest_key(name, setting))
    }
    if problems == "auto":
        asked["problems.source"] = None
    if model != "auto":
        asked |= {"student": resolved.student, "train.student": resolved.train.student}

    def call() -> TrainingRun:
        config, folder = resolved, None if named is None else RunFolder(named)
        if resume:
            keys = [key for key, value in asked.items() if value is not None]
            folder, config = resume_run(resolved, named, keys)
        elif folder is not None:
            folder.check_free("out", "add resume=True to go on with it")
        with progress_of(progress) as shown, Stop(shown) as stop:
            return run_training(config, folder, resume, shown, stop)

    return outside_loops(call)


def resume_run(asked: Config, out: Path | None, named: Iterable[str]) -> tuple[RunFolder, Config]:
    """The run to go on with, `out` or the newest one, and the configuration that it began with.

    Raises AlphaZeroError where there is none, or `asked` has another value of a key that is
    `named`.
    """
    folder = RunFolder.find(Path(asked.train.checkpoint_dir), out)
    config = folder.config()
    check_session(config, folder.path)
    folder.check_named(asked, named)
    return folder, config


def check_session(config: Config, folder: Path) -> None:
    """Raise ConfigError where a run needs tasks or a reward that a Python session had, and this one
    hasn't.
    """
    address = config.rewards.custom
    try:
        open_source(config)
    except UnknownSourceError:
        raise ConfigError(
            f"{folder} learns from tasks of a Python session: pass the same ones as `problems`"
        ) from None
    if address is not None and ".py:" not in address and not in_memory(address):
        raise ConfigError(
            f"{folder} has a reward of a Python session, {address}: pass the same one as `reward`"
        )


def run_training(
    config: Config,
    folder: RunFolder | None,
    resume: bool,
    progress: Progress,
    stop: StopAsked,
    loading: Callable[[], None] = lambda: None,
) -> TrainingRun:
    """`train` with a whole configuration: check it, load, then run in `folder` (None: the next of
    `train.checkpoint_dir`). A finished run that is resumed is left as it is. `loading` is called
    before PyTorch is loaded.
    """
    from ..report.folder_page import write_report

    if folder is not None and resume and "after" in (over := folder.read_card()):
        write_report(folder.path)  # a crash after the last weights may have left none
        progress.say(f"this run is finished: {folder.path}")
        return TrainingRun(folder.path, over)
    prepared = prepare(config)
    config = prepared.config
    check_start(config, loading)
    from ..learning.ranks import open_ranks
    from ..runs.run import Run

    ranks = open_ranks(config, prepared.method)
    with ExitStack() as held:
        # Before anything is loaded: another process may be at it.
        if folder is not None and ranks.first:
            held.enter_context(folder.lock("--resume" if resume else "--out"))
        run = Run(prepared, stop, progress, ranks)
        progress.wait(f"loading {resolve_name(config)}")
        run.load()
        progress.follow(run.student.engine)
        if ranks.first:
            progress.say(run.opening())
            if config.train.preflight and not resume and ranks.size == 1:
                try:
                    progress.say(run.preflight())
                except StoppedError:
                    raise KeyboardInterrupt from None  # there is no folder yet
            if folder is None:
                folder = RunFolder.new(Path(config.train.checkpoint_dir))
                held.enter_context(folder.lock())
            progress.say(f"run folder: {folder.path}")
        folder = RunFolder(ranks.broadcast(folder and folder.path))
        try:
            card = run.execute(folder, resume)
        except AlphaZeroError:
            if not ranks.first:  # rank 0 says it
                raise SystemExit(2) from None
            raise
        ranks.close()
        if card is not None:
            write_report(folder.path)
        return TrainingRun(folder.path, folder.read_card() if card is None else card)
