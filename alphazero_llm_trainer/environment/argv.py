"""What a `vf-eval` command line asks for. Pure functions over argument lists; nothing is imported from verifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..errors import ConfigError

OUR_ID = "alphazero-llm-trainer"
ID_FLAG = "--env.taskset.id"
TRAIN_EXAMPLE = f"`vf-eval {OUR_ID} -s -- --num-examples 100 --use-grpo`"
HELP = ("-h", "--help")
TRUTH = {"true": "true", "1": "true", "false": "false", "0": "false"}


class Mode(StrEnum):
    PASS = "pass"  # noqa: S105 - not for this package: verifiers' own vf-eval, untouched
    TRAIN = "train"
    HELP = "help"
    HELP_ALL = "help-all"
    EVALUATE = "evaluate"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run and the arguments to run it with, in the runner's own language."""

    mode: Mode
    argv: tuple[str, ...]


def is_our_id(text: str) -> bool:
    """Whether a taskset id names this package, in any spelling that verifiers accepts (`owner/name@version`)."""
    return text.rsplit("/", 1)[-1].split("@", 1)[0].replace("_", "-").lower() == OUR_ID


def split_id(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The taskset id of a command line (None: it names none) and the arguments without it."""
    if argv and not argv[0].startswith(("-", "@")):
        return argv[0], list(argv[1:])
    for i, argument in enumerate(argv):
        if argument == "--":
            break
        if argument == ID_FLAG and i + 1 < len(argv):
            return argv[i + 1], [*argv[:i], *argv[i + 2 :]]
        if argument.startswith(f"{ID_FLAG}="):
            return argument.partition("=")[2], [*argv[:i], *argv[i + 1 :]]
    return None, list(argv)


def names_us(argv: Sequence[str]) -> bool:
    """Whether a `vf-eval` command line is for this package."""
    taskset_id, _ = split_id(argv)
    return taskset_id is not None and is_our_id(taskset_id)


def plan(argv: Sequence[str]) -> Plan:
    """What a `vf-eval` command line asks for.

    Raises:
        ConfigError: training options without `-s`, options of both kinds mixed up, a flag without its value.
    """
    if not names_us(argv):
        return Plan(Mode.PASS, tuple(argv))
    _, rest = split_id(argv)
    training: list[str] | None = None
    if "--" in rest:
        at = rest.index("--")
        rest, training = rest[:at], rest[at + 1 :]
    wants_help = any(argument in HELP for argument in rest)
    if "-s" in rest:
        others = [argument for argument in rest if argument not in ("-s", *HELP)]
        if others:
            raise ConfigError(f"{others[0]} stands before `--`: write training options after it, as in {TRAIN_EXAMPLE}")
        return Plan(Mode.TRAIN, ("--help",) if wants_help else tuple(training or ()))
    if training is not None:
        raise ConfigError(f"`--` starts training options and needs -s before it: {TRAIN_EXAMPLE}")
    if "--help-all" in rest:
        return Plan(Mode.HELP_ALL, ())
    if wants_help:
        return Plan(Mode.HELP, ())
    return Plan(Mode.EVALUATE, (OUR_ID, *translate(rest)))


def translate(rest: Sequence[str]) -> list[str]:
    """This package's short flags as verifiers' typed ones; everything else is left as it is."""
    out: list[str] = []
    waiting = list(rest)
    while waiting:
        argument = waiting.pop(0)
        flag, equals, value = argument.partition("=")
        if flag == "--tier":
            if not equals:
                if not waiting or waiting[0].startswith("-"):
                    raise ConfigError("--tier needs a value: write --tier free or --tier production")
                value = waiting.pop(0)
            out += ["--env.taskset.tier", value]
        elif flag == "--use-student-model":
            if not equals:
                value = waiting.pop(0) if waiting and waiting[0].lower() in TRUTH else "true"
            if value.lower() not in TRUTH:
                raise ConfigError(f"--use-student-model is {value!r}: write true or false, or leave the value out")
            out += ["--env.taskset.use-student-model", TRUTH[value.lower()]]
        elif argument == "--no-use-student-model":
            out += ["--env.taskset.use-student-model", "false"]
        else:
            out.append(argument)
    return out
