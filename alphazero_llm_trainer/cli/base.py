"""What every command shares: the parser and its help, the flags of model and configuration, Ctrl-C, the exit codes."""

from __future__ import annotations

import argparse
import errno
import io
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from ..config.load import Config, flat, load_config, nested
from ..errors import EXIT_FAILED, EXIT_USER_ERROR, AlphaZeroError, ConfigError, StorageError
from ..files import storage_failure
from ..live import Progress
from ..policy.folders import check_critic, check_folder, find_model

EXIT_STOPPED = 130
LONGEST = 900  # letters of a message
# Libraries that tell their makers of their use, at import already: not unless the user says so.
SILENT = ("MLFLOW_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY")
MISNAMED = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)  # no place at all: the user named another


# -- the parser --------------------------------------------------------------------------------------------------------


@cache
def shipped_config() -> Config:
    """The configuration as it is shipped: where `--help` reads defaults."""
    return load_config()


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Says the default of every flag that has one, and the metavar of a flag once."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help, action.default
        if text is None or "default" in text:
            return text
        if (key := getattr(action, "key", None)) is not None:
            shipped: Any = shipped_config()
            for part in key.split("."):
                shipped = getattr(shipped, part)
            return f"{text} (default: {shown(shipped)}; {key})"
        if default is None or default == [] or default is argparse.SUPPRESS or action.nargs == 0:
            return text
        return f"{text} (default: {shown(default)})"

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        values = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {values}"


def shown(value: Any) -> str:
    """A default as a user would type it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)


class Parser(argparse.ArgumentParser):
    """argparse with this project's error policy (one sentence, exit code 2), and `-q` and `-v` in every command."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **kwargs)
        self.keys: dict[str, str] = {}
        self.set_defaults(keys=self.keys)
        self.common = self.add_argument_group("common to all commands")
        loud = self.common.add_mutually_exclusive_group()
        # Suppressed, so that a command's own default doesn't undo `alphazero-llm-trainer -q COMMAND`.
        loud.add_argument(
            "-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help="results and errors alone"
        )
        loud.add_argument(
            "-v",
            "--verbose",
            action="store_true",
            default=argparse.SUPPRESS,
            help="also what libraries say, and an error's traceback",
        )

    def option(self, *names: str, old: Sequence[str] = (), key: str | None = None, **kwargs: Any) -> None:
        """Add an argument. `old` names of it work and are not shown; `key` is the key of the configuration that it sets."""
        action = self.add_argument(*names, **kwargs)
        if key is not None:
            self.keys[action.dest] = key
            action.key = key  # type: ignore[attr-defined]
        if old:
            hidden = {"help": argparse.SUPPRESS, "dest": action.dest, "default": argparse.SUPPRESS}
            self.add_argument(*old, **{**kwargs, **hidden})

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {cut(message)}: see {self.prog} --help\n")
        raise SystemExit(EXIT_USER_ERROR)


def cut(said: str) -> str:
    """A sentence without the middle of what is too long to read."""
    return said if len(said) <= LONGEST else f"{said[: LONGEST // 2]}...{said[-LONGEST // 2 :]}"


# -- what many commands take -------------------------------------------------------------------------------------------


def add_config_arguments(parser: Parser, bare: str | None = None) -> None:
    """--config, --set and --seed. `bare` says what `--config` does where it may stand without a file (it is True then)."""
    common = parser.common
    alone: dict[str, Any] = {} if bare is None else {"nargs": "?", "const": True}
    text = "YAML with some of config/training.yaml's keys" if bare is None else bare
    common.add_argument("--config", metavar="FILE", type=Path, help=text, **alone)
    common.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help="override one key; repeatable"
    )
    common.add_argument("--seed", type=int, metavar="N", help="seed of everything random (default: 7)")
    parser.keys["seed"] = "seed"


def add_model(parser: Parser, text: str = "the student", key: str | None = None) -> None:
    """--model; --student and --path are its old names, of which both may be given: a name and a folder of its weights.

    A folder goes to `args.path`, and to the key `key` of the configuration where one is named.
    """
    parser.set_defaults(path_key=key)
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help=f"{text}: a name of config/models.yaml, a folder with a model or an adapter, OWNER/NAME of the hub or"
        " FILE.gguf (default: auto: llama-3.2-3b with CUDA, else the embedded student)",
    )
    parser.add_argument("--student", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, metavar="DIR", help=argparse.SUPPRESS)


SOURCES = (
    "a name (embedded, gsm8k, numbers, ...), FILE.jsonl (.json, .csv, .parquet), hub:OWNER/NAME,"
    " reasoning-gym:TASK, verifiers:ENV_ID or"
    " file.py:NAME"
)


def add_source(parser: Parser) -> None:
    """--source, and how the rows of a file are read."""
    parser.option("--source", metavar="NAME", key="problems.source", help=f"problems: {SOURCES}")
    add_columns(parser)


def add_columns(parser: Parser) -> None:
    """How the rows of a file are read, and what their answers are."""
    for what in ("question", "answer", "solution"):
        flag, text = f"--{what}-column", f"column of a file's {what}s"
        parser.option(flag, metavar="NAME", key=f"problems.{what}_column", help=text)
    parser.option(
        "--grade",
        metavar="RULE",
        key="problems.grade",
        help="how a file's answers are compared: numbers, math, words, exact or choice",
    )


def add_reward(parser: Parser) -> None:
    """--reward."""
    parser.option(
        "--reward",
        metavar="FILE:FN",
        key="rewards.custom",
        help="your own reward, fn(problem, response, task) -> number in [0, 1]: file.py:NAME or package.module:NAME, code that"
        " runs here; rewards.custom_weight weighs it beside correctness and perplexity",
    )


def add_json(parser: Parser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print JSON on standard output and nothing else there")


def print_json(facts: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(facts, ensure_ascii=False))


def given(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The configuration's keys that the command's own flags set."""
    found = [(key, getattr(args, dest, None)) for dest, key in args.keys.items()]
    return [nested(key, str(value) if isinstance(value, Path) else value) for key, value in found if value is not None]


def resolve(
    args: argparse.Namespace, extra: dict[str, Any] | None = None, load: Callable[..., Config] = load_config
) -> Config:
    """The configuration of parsed arguments, as `load` reads it; flags win over `--set`, `--set` over `--config`.

    `--model` is resolved on the way: a name goes into the configuration, a folder into `args.path`.
    """
    overrides = [*args.overrides, *given(args), extra or {}]
    if getattr(args, "student", None) is not None:
        overrides.append({"student": args.student})
    if "path_key" not in args:
        return load(args.config, overrides)
    if args.model is None and args.path is not None and args.path.is_dir():
        args.model, args.path = str(args.path), None
    if args.model is not None:
        overrides.append(named_model(args, load(args.config, overrides)))
    if args.path is not None:
        check_folder(args.path)
        if args.path_key is not None:
            overrides.append(nested(args.path_key, str(args.path)))
    return load(args.config, overrides)


def check_resumed(asked: Config, stored: Config, where: Path) -> None:
    """Raise ConfigError where a resumed run was asked for with another configuration than its own, naming what differs."""
    had, wanted = (dict(flat(config.model_dump(mode="json"))) for config in (stored, asked))
    changed = [key for key in had | wanted if had.get(key) != wanted.get(key)]
    if changed:
        told = "; ".join(f"{key} is {had.get(key)!r} there and {wanted.get(key)!r} here" for key in changed[:3])
        more = f" ({len(changed) - 3} more)" if len(changed) > 3 else ""
        raise ConfigError(
            f"--resume goes on with the configuration in {where}, and {told}{more}: leave out the other flags"
        )


def named_model(args: argparse.Namespace, config: Config) -> dict[str, Any]:
    """What `--model` sets in the configuration; a folder becomes `args.path`.

    Raises ConfigError where it is neither a student of models.yaml, nor a folder, nor the hub id of such a student.
    """
    found, folder = find_model(args.model, config)
    if folder is not None and args.path is not None:
        raise ConfigError(f"--model {args.model} and --path {args.path} both name a folder: leave one out")
    if args.student not in (None, found.get("student", args.student)):
        raise ConfigError(f"--model {args.model} and --student {args.student} both name a student: leave one out")
    args.path = args.path if folder is None else folder
    return found


# -- running a command -------------------------------------------------------------------------------------------------


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse `argv` (None: the process's arguments), run the command that it names and return its exit code.

    An error that the user can fix is one sentence and exit code 2; what a disk refuses is one and exit code 1.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no Unicode
    args = parser.parse_args(argv)
    args.quiet, args.verbose = "quiet" in args, "verbose" in args
    quieten(args)
    for name in SILENT:
        os.environ.setdefault(name, "1")
    try:
        return args.run(args)
    except AlphaZeroError as error:
        if args.verbose:
            traceback.print_exc()
        sys.stderr.write(f"error: {cut(str(error))}\n")
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return EXIT_STOPPED
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_STOPPED
    except (OSError, StorageError) as error:
        said = str(error) if isinstance(error, StorageError) else storage_failure(error)
        if said is None:
            raise
        if args.verbose:
            traceback.print_exc()
        sys.stderr.write(f"error: {said}\n")
        return EXIT_USER_ERROR if isinstance(error, OSError) and error.errno in MISNAMED else EXIT_FAILED


def quieten(args: argparse.Namespace) -> None:
    """Before anything heavy is imported: what libraries may say."""
    if args.verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # transformers' trainer imports it before our own modules can: it tells of kernels that a CPU could have.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    if args.quiet:
        logging.disable(logging.WARNING)


def tell_loading(args: argparse.Namespace, progress: Progress, what: str = "PyTorch", module: str = "torch") -> None:
    """Say what is loaded, before seconds without a word; nothing where JSON is asked for. See `Progress.load`."""
    if not getattr(args, "json", False):
        progress.load(what, module)


def check_least(least: int, /, **numbers: int | None) -> None:
    """Raise ConfigError for a number below `least`; they are named as their flags are in Python."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ConfigError(f"--{name.replace('_', '-')} is {number}: give at least {least}")


def check_critics(args: argparse.Namespace) -> None:
    """Raise ConfigError where --value or --prm names no folder (nor a PRM's hub id)."""
    for name in ("value", "prm"):
        folder = getattr(args, name, None)
        if folder is not None:
            check_critic(folder, name, f"--{name} {folder}")


def check_out(path: Path | None, *, file: bool = False, flag: str = "--out") -> None:
    """Raise ConfigError where a folder (or a `file`) can't be written at `path`, before anything is computed for it."""
    if path is None:
        return
    try:
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    except OSError as error:
        raise ConfigError(f"{flag} {path} can't be written ({error.strerror}): name another place") from error
    reason = None
    if file and path.is_dir():
        reason = "it is a folder"
    elif not nearest.is_dir() and not (file and nearest == path):
        reason = f"{nearest} is a file"
    elif not os.access(nearest, os.W_OK):
        reason = f"{nearest} is not yours to write"
    if reason is not None:
        raise ConfigError(f"{flag} {path} can't be written ({reason}): name another place")
