"""Which method answers: `student`, `student@mcts`, `student@best-of-8`, ..."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import ConfigError
from .failures import ApiError, no_model, shown

STUDENT = "student"
SAMPLE, MCTS = "sample", "mcts"
COUNTED = ("best-of", "majority", "weighted-majority")  # with a number of samples after them
UNJUDGED = ("majority",)
LISTED = 8  # the number that /v1/models shows them with


@dataclass(frozen=True, slots=True)
class Method:
    """How an answer is found. `name` is "sample", "mcts", one of COUNTED or a step-wise method's; `samples` is their N."""

    name: str
    samples: int = 1

    def __str__(self) -> str:
        return f"{self.name}-{self.samples}" if self.name in COUNTED else self.name


class Names:
    """The models of this server: the student by `default` method and `student@METHOD` for every one.

    Args:
        default: what `student` alone does.
        stepwise: methods beside "sample", "mcts" and the counted ones.
        most: the largest N.
        judged: there is a verifier, which some methods need.

    Raises ConfigError for a default that there isn't.
    """

    def __init__(self, default: str, stepwise: Iterable[str], most: int, judged: bool = True) -> None:
        self.stepwise, self.most = tuple(stepwise), most
        self.counted = COUNTED if judged else UNJUDGED
        try:
            self.default = self.parse(default)
        except ApiError as error:
            raise ConfigError(f"--search is {default!r}: choose one of {', '.join(self.known())}") from error

    def known(self) -> list[str]:
        """The methods, the counted ones with one number of samples."""
        return [SAMPLE, MCTS, *(f"{name}-{LISTED}" for name in self.counted), *self.stepwise]

    def models(self) -> list[str]:
        """What /v1/models lists."""
        return [STUDENT, *(f"{STUDENT}@{method}" for method in self.known())]

    def method(self, model: str, method: str | None) -> Method:
        """The method of a request's `model` and `method`. Raises ApiError when there is no such one, or they disagree."""
        name, at, suffix = model.partition("@")
        if name != STUDENT or (at and not suffix):
            raise no_model(model, f"use {STUDENT}, or {STUDENT}@METHOD as /v1/models lists them")
        found = self.default
        if at:
            try:
                found = self.parse(suffix)
            except ApiError as error:
                raise no_model(model, str(error)) from error
        if method is None:
            return found
        named = self.parse(method)
        if at and named != found:
            raise ApiError(
                f"method is {shown(method)} and model is {shown(model)}: name one of them",
                param="method",
                code="invalid_value",
            )
        return named

    def parse(self, text: str) -> Method:
        """A method by its name. Raises ApiError."""
        if text in (SAMPLE, MCTS, *self.stepwise):
            return Method(text)
        name, _, number = text.rpartition("-")
        if name in self.counted and number.isascii() and number.isdigit() and len(number) <= 6:
            if 1 <= int(number) <= self.most and not number.startswith("0"):  # one name a method
                return Method(name, int(number))
            raise ApiError(f"{name} takes 1 to {self.most} samples, not {number}", param="method", code="invalid_value")
        methods = ", ".join([SAMPLE, MCTS, *(f"{name}-N" for name in self.counted), *self.stepwise])
        raise ApiError(f"the methods are {methods}", param="method", code="invalid_value")
