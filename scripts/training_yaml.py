"""Makes config/training.yaml of the sections in the package's config/: keys, defaults, comments.

uv run python scripts/training_yaml.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from alphazero_llm_trainer.config.load import Config
from alphazero_llm_trainer.config.sections import Section, defaults_of

FILE = Path(__file__).resolve().parent.parent / "config" / "training.yaml"
HEAD = (
    "# Every hyperparameter. Override one with `--set train.optimizer.learning_rate=1e-4`, or "
    "several with `--config my.yaml`."
)
FIELD = re.compile(r"((?:    # .*\n)*)    (\w+): ", re.MULTILINE)


def training_yaml() -> str:
    """The text of the file."""
    return "\n".join([HEAD, *lines_of(Config), ""])


def lines_of(section: type[Section], indent: str = "") -> Iterator[str]:
    """The lines of a section's keys."""
    notes = {name: note for note, name in FIELD.findall(inspect.getsource(section))}
    for name, value in defaults_of(section).items():
        words = " ".join(line.strip("# ") for line in notes[name].splitlines())
        inner = isinstance(value, dict)
        shown = "" if inner else f" {yaml.safe_dump(value).splitlines()[0]}"
        if inner and not indent:
            yield ""
        yield f"{indent}{name}:{shown}{words and f' # {words}'}"
        if inner:
            yield from lines_of(type(section.model_fields[name].default), f"{indent}  ")


if __name__ == "__main__":
    FILE.write_text(training_yaml(), encoding="utf-8")
