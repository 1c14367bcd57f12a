"""The policy that a pool searches with: a student, its frozen copy where PRE is on, and what its weights are called."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..policy.student import Student, frozen_student, load_student
from ..policy.value_function import EngineValue, load_value, policy_fingerprint
from ..problems.load import opening


@dataclass(slots=True)
class Host:
    """A loaded policy; `frozen` is the student that PRE measures with and `value` the value network, or None."""

    student: Student
    frozen: Student | None
    value: EngineValue | None

    def describe(self) -> dict[str, Any]:
        """Name, version and fingerprint of the weights, and the hashes of the value network's."""
        return {
            "name": self.student.name,
            "version": self.student.engine.version,
            "fingerprint": policy_fingerprint(self.student.model),
            "value": None if self.value is None else self.value.card["files"],
        }


def load_host(config: Config, path: Path | None) -> Host:
    """The configured student, with the weights of the folder `path` where one is given. See `load_student`."""
    student = load_student(config, path=path, opening=opening(config), inference=config.search.value is None)
    frozen = None
    if config.rewards.use_student_model and config.rewards.pre_weight > 0:
        frozen = frozen_student(student, config, shared=student.spec.quantization != "none")
    value = None if config.search.value is None else load_value(Path(config.search.value), student, config)
    # What is loaded now stays: without this, every full collection walks the libraries' million objects again.
    gc.freeze()
    return Host(student, frozen, value)
