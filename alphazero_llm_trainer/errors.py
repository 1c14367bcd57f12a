"""The error policy: what a user can fix is one sentence and exit code 2, what a disk refuses is one
and exit code 1; everything else is a bug and shows its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from typing import Any

EXIT_FAILED = 1
EXIT_USER_ERROR = 2


# What a model that is here, training and serving need: the extra `train`.
TRAINING = ("accelerate", "fastapi", "matplotlib", "peft", "torch", "uvicorn")


def needs_training(error: ModuleNotFoundError) -> str | None:
    """The sentence for a library of the extra `train` that isn't installed; None for another."""
    if error.name not in TRAINING:
        return None
    return (
        f"a model that is here needs {error.name}, which isn't installed: install "
        "alphazero-llm-trainer[train] (in a checkout: pip install '.[train]'), or name a model "
        "behind a server (--base-url)"
    )


def suggest_nearest(
    word: str, known: Collection[str], otherwise: str = "", part: Callable[[str], str] = str
) -> str:
    """`did you mean X?` for what of `known` is spelt most like `word`; `otherwise` where nothing
    is. `part` gives what of a name is compared.
    """
    near = difflib.get_close_matches(part(word), map(part, known), n=1, cutoff=0.75)
    meant = " or ".join(name for name in known if part(name) in near)
    return f"did you mean {meant}?" if meant else otherwise


def first_line(error: BaseException) -> str:
    """What an error says in its first line, 200 letters at most; its kind where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(".")


def reason_of(error: BaseException) -> str:
    """An error's kind, and its first line where it says something."""
    kind, said = type(error).__name__, first_line(error)
    return kind if said == kind else f"{kind}: {said}"


class AlphaZeroError(Exception):
    """Base of every error that a user can fix. Its text is one sentence naming the field, the value
    and the fix.
    """


class ConfigError(AlphaZeroError):
    """A configuration file, an override or a command-line flag is wrong."""


class DataError(AlphaZeroError):
    """A data set, a row, a gold answer or a tree journal can't be read as what it should be."""


class CheckpointError(AlphaZeroError):
    """A checkpoint is missing, truncated or belongs to another run."""


class StorageError(Exception):
    """A disk is full, or a file can't be read or written: nothing is wrong with what was asked, and
    `--resume` goes on.
    """


class EngineError(AlphaZeroError):
    """An engine can't serve a request (too long a prompt, an operation it doesn't offer, a model
    that can't be loaded).
    """


class RequestError(EngineError):
    """One request can't be served (its prompt is empty or too long); the engine itself is well.

    `cost` is what a search had spent that it ended, a `types.Cost`; None outside of one.
    """

    cost: Any = None


class RewardError(RequestError):
    """A reward of the user's own gave no number from 0 to 1 for a response: that question ends, and
    the run goes on.
    """


class TeacherError(EngineError):
    """A remote model failed after its bounded retries, or can't be called at all (no key)."""


class TrainingError(AlphaZeroError):
    """Training can't go on (a loss that is not finite)."""
