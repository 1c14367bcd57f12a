"""The student that answers: behind somebody's server, or loaded here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..chat.remote import remote_student
from ..config.load import Config
from ..errors import ConfigError, needs_training
from ..types import NOTHING, Opening


def answering_student(
    config: Config,
    path: Path | None = None,
    opening: Opening = NOTHING,
    inference: bool = True,
    trained: bool = False,
) -> Any:
    """The student that answers: of `engine.openai`, or as `student.load_student` loads it. It is
    `trained` by a loop of the user's own alone.
    """
    if config.engine.backend == "openai":
        return remote_student(config, opening)
    try:
        from ..policy.student import load_student
    except ModuleNotFoundError as error:
        raise ConfigError(needs_training(error) or str(error)) from error

    return load_student(config, path=path, opening=opening, inference=inference, trained=trained)
