"""What every command shares: the parser and its help, the flags of model and configuration, Ctrl-C,
the exit codes.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ..config.load import Config, load_answering, load_config, nested
from ..config.shipped import read_yaml, shipped
from ..errors import (
    EXIT_FAILED,
    EXIT_USER_ERROR,
    AlphaZeroError,
    ConfigError,
    StorageError,
    nearest,
    needs_training,
)
from ..files import flat, storage_failure
from ..live import Progress
from ..policy.folders import check_critic, check_weights, with_model

EXIT_STOPPED = 130


# -- the parser ------------------------------------------------------------------------------------


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Says the default of every flag that has one: its own, or that of the configuration's key that
    it sets.
    """

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default, key = action.help, action.default, getattr(action, "key", None)
        if text is None or "default" in text or action.nargs == 0:
            return text
        if key is not None:
            default = dict(flat(read_yaml(shipped("training.yaml"))))[key]
            return f"{text} (default: {shown(default)}; {key})"
        return (
            text
            if default in (None, [], argparse.SUPPRESS)
            else f"{text} (default: {shown(default)})"
        )


def shown(value: Any) -> str:
    """A default as a user would type it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)


METAVARS: dict[Any, str] = {int: "N", Path: "DIR"}


class Parser(argparse.ArgumentParser):
    """argparse with this project's error policy (one sentence, exit code 2), and `-q` and `-v` in
    every command. `dashes` is the flag that a plain `--` stands for, if any.
    """

    dashes = ""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **kwargs)
        self.keys: dict[str, str] = {}
        self.set_defaults(keys=self.keys)
        self.common = self.add_argument_group("common to all commands")
        loud = (
            ("quiet", "results and errors alone"),
            ("verbose", "also what libraries say, and an error's traceback"),
        )
        for name, text in loud:
            # Suppressed, so that a command's own default doesn't undo
            # `alphazero-llm-trainer -q COMMAND`.
            flags = f"-{name[0]}", f"--{name}"
            self.common.add_argument(
                *flags, action="store_true", default=argparse.SUPPRESS, help=text
            )

    def add_argument(self, *names: str, **kwargs: Any) -> argparse.Action:
        """argparse's, in whose help a number is N and a path DIR where nothing else is said."""
        if (name := METAVARS.get(kwargs.get("type"))) is not None:
            kwargs.setdefault("metavar", name)
        return super().add_argument(*names, **kwargs)

    def option(self, *names: str, key: str, **kwargs: Any) -> None:
        """Add an argument that sets the configuration's key `key`."""
        action = self.add_argument(*names, **kwargs)
        self.keys[action.dest] = action.key = key  # type: ignore[attr-defined]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse's, but a command refuses what it doesn't know itself, and names its own help."""
        if self.dashes and "--" in args:
            args[args.index("--")] = self.dashes
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            meant = nearest(unknown[0].partition("=")[0], self._option_string_actions)
            said = f"unrecognized arguments: {' '.join(unknown)}"
            self.error(f"{said}: {meant}" if meant else said)
        return known, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = list(action.choices)
            meant = nearest(str(value), names, f"choose one of {', '.join(map(str, names))}")
            raise argparse.ArgumentError(action, f"there is no {value!r}: {meant}")

    def error(self, message: str) -> NoReturn:
        end = " " if message.endswith("?") else ": "
        sys.stderr.write(f"error: {message}{end}see {self.prog} --help\n")
        raise SystemExit(EXIT_USER_ERROR)


# -- what many commands take -----------------------------------------------------------------------


def add_config_arguments(parser: Parser, **config: Any) -> None:
    """--config, --set and --seed; `config` has what argparse is told of --config otherwise."""
    about = {
        "metavar": "FILE",
        "type": Path,
        "help": "YAML with some of config/training.yaml's keys, or grpo_correctness",
    }
    parser.common.add_argument("--config", **{**about, **config})
    parser.common.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="override one key; repeatable",
    )
    parser.common.add_argument(
        "--seed", type=int, metavar="N", help="seed of everything random (default: 7)"
    )
    parser.keys["seed"] = "seed"


def add_model(parser: Parser, text: str = "the student", key: str | None = None) -> None:
    """--model. A folder goes to `args.path`, and to the key `key` of the configuration where one is
    named.
    """
    parser.set_defaults(path=None, path_key=key)
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help=f"{text}: a name of config/models.yaml, a folder with a model or an adapter, "
        "OWNER/NAME of the hub or FILE.gguf (default: auto: llama-3.2-3b with CUDA, else the "
        "embedded student)",
    )


def add_base_url(parser: Parser) -> None:
    """--base-url."""
    parser.option(
        "--base-url",
        metavar="URL",
        key="engine.openai.base_url",
        help="an OpenAI-compatible server, such as http://localhost:11434/v1, whose model --model is",
    )


SOURCES = (
    "a name (embedded, gsm8k, numbers, ...), FILE.jsonl (.json, .csv, .parquet; a folder), "
    "hub:OWNER/NAME, reasoning-gym:TASK, verifiers:ENV_ID or file.py:NAME"
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
        help="judge (see --judge-model), or your own, fn(problem, response, task) -> number in "
        "[0, 1]: file.py:NAME, code that runs here; rewards.custom_weight weighs it beside correctness and perplexity",
    )


def add_judge(parser: Parser) -> None:
    """--judge-url, --judge-model and --rubric."""
    texts = {
        "base_url": ("--judge-url", "URL", "an OpenAI-compatible server with the judge"),
        "model": ("--judge-model", "NAME", "the judge, as its server calls it"),
        "rubric": (
            "--rubric",
            "FILE",
            "what a good step is, in words (default: the package's own)",
        ),
    }
    for name, (flag, metavar, text) in texts.items():
        words = text if "default" in text else f"{text} (no default)"
        parser.option(flag, metavar=metavar, key=f"rewards.judge.{name}", help=words)


def load_guided(args: argparse.Namespace) -> Callable[..., Config]:
    """`load_answering` for a command with --verifier, under which none a value guides searches."""
    return partial(load_answering, guided=args.value is not None and args.verifier == "none")


def add_critics(parser: Parser) -> None:
    """--prm and --value; `check_critics` checks them."""
    about = "a process reward model: a folder, or a public one's hub id"
    parser.add_argument("--prm", type=Path, help=about)
    parser.add_argument("--value", type=Path, help="a value's folder")


def add_json(parser: Parser) -> None:
    """--json."""
    parser.add_argument(
        "--json", action="store_true", help="print JSON on standard output and nothing else there"
    )


_held: ContextVar[list[str] | None] = ContextVar("held", default=None)


def print_json(facts: Any) -> None:
    """One JSON document on standard output."""
    text, held = json.dumps(facts, ensure_ascii=False), _held.get()
    print(text) if held is None else held.append(text)


@contextmanager
def printing_json() -> Iterator[None]:
    """Standard output gets what `print_json` prints, at the end; all else that is written there, by
    libraries, child processes and the user's own code, goes to standard error.
    """
    held, kept = list[str](), os.dup(1)
    token = _held.set(held)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        _held.reset(token)
        sys.stdout.writelines(f"{text}\n" for text in held)


def print_facts(facts: Mapping[str, Any], as_json: bool) -> None:
    """Facts by name on standard output: as JSON, or as YAML for people."""
    print_json(facts) if as_json else print(
        yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=120).rstrip()
    )


def flag_layers(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The configuration's keys that the command's own flags set."""
    values = [(key, getattr(args, dest, None)) for dest, key in args.keys.items()]
    return [
        nested(key, str(value) if isinstance(value, Path) else value)
        for key, value in values
        if value is not None
    ]


def resolve(
    args: argparse.Namespace,
    extra: dict[str, Any] | None = None,
    load: Callable[..., Config] = load_config,
    recipe: str | None = None,
) -> Config:
    """The configuration of parsed arguments, as `load` reads it, over a shipped `recipe`; flags win
    over `--set`, and `--set` over `--config`.

    `--model` is resolved on the way: a name goes into the configuration, a folder into `args.path`.
    """
    overrides = [*args.overrides, *flag_layers(args), extra or {}]
    if getattr(args, "base_url", None) is not None:
        if args.model is None:
            raise ConfigError("--base-url is given without --model: name the server's model")
        overrides.append({"engine": {"backend": "openai"}})
    read = (
        partial(load, args.config) if recipe is None else partial(load, args.config, recipe=recipe)
    )
    if "path_key" not in args or args.model is None:
        return read(overrides)
    config, args.path = with_model(args.model, overrides, read, args.path_key)
    return config


# -- running a command -----------------------------------------------------------------------------


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse `argv` (None: the process's arguments), run the command that it names and return its
    exit code.

    An error that the user can fix is one sentence and exit code 2; what a disk refuses is one and
    exit code 1.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without a dot plot's letters shows question marks.
        sys.stdout.reconfigure(errors="replace")
    args = parser.parse_args(argv)
    args.quiet, args.verbose = "quiet" in args, "verbose" in args
    quieten(args)
    try:
        with printing_json() if getattr(args, "json", False) else nullcontext():
            return args.run(args)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return EXIT_STOPPED
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain once more when it flushes
        # at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_STOPPED
    except ModuleNotFoundError as error:
        said = needs_training(error)
        if said is None:
            raise
        sys.stderr.write(f"error: {said}\n")
        return EXIT_USER_ERROR
    except (AlphaZeroError, StorageError, OSError) as error:
        said = storage_failure(error) if isinstance(error, OSError) else str(error)
        if said is None:
            raise
        if args.verbose:
            traceback.print_exc()
        sys.stderr.write(f"error: {said}\n")
        return EXIT_USER_ERROR if isinstance(error, AlphaZeroError) else EXIT_FAILED


def quieten(args: argparse.Namespace) -> None:
    """Before anything heavy is imported: what libraries may say, here and to their makers."""
    for name in ("MLFLOW_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    if args.verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # transformers' trainer imports it before our own modules can: it tells of kernels that a CPU
    # could have.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    if args.quiet:
        logging.disable(logging.WARNING)


def tell_loading(
    args: argparse.Namespace, progress: Progress, config: Config | None = None
) -> None:
    """Say what is loaded, the student of `config` too, before seconds without a word; nothing where
    JSON is asked for. See `Progress.load`, and `check_weights` for what it raises.
    """
    student = "" if config is None else f" and {check_weights(config, args.path)}"
    if not getattr(args, "json", False) and getattr(args, "base_url", None) is None:
        progress.load(f"PyTorch{student}", "torch")


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
    """Raise ConfigError where a folder (or a `file`) can't be written at `path`, before anything is
    computed for it.
    """
    if path is None:
        return
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    wrong = path.is_dir() if file else nearest.is_file()
    if wrong or not os.access(nearest, os.W_OK):
        reason = (
            f"{nearest} is a {'folder' if nearest.is_dir() else 'file'}"
            if wrong
            else f"{nearest} is not yours to write"
        )
        raise ConfigError(f"{flag} {path} can't be written ({reason}): name another place")
