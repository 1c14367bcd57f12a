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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from ..config.refusals import refuse_conflicts
from ..config.shipped import key_comments, parse_yaml, read_yaml, shipped_path
from ..errors import (
    EXIT_FAILED,
    EXIT_USER_ERROR,
    AlphaZeroError,
    ConfigError,
    StorageError,
    needs_training,
    suggest_nearest,
)
from ..files import flatten_keys, storage_failure
from ..types import Facts, JsonObject

if TYPE_CHECKING:  # `--help` needs neither pydantic nor rich
    from ..config.load import Config
    from ..live import Progress

EXIT_STOPPED = 130
SAVED = (".csv", ".pdf", ".svg", ".png")  # a table, or a chart


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
            default = dict(flatten_keys(read_yaml(shipped_path("training.yaml"))))[key]
            return f"{text} (default: {show_default(default)}; {key})"
        return (
            text
            if default in (None, [], argparse.SUPPRESS)
            else f"{text} (default: {show_default(default)})"
        )


def show_default(value: Any) -> str:
    """A default as a user would type it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)


class Parser(argparse.ArgumentParser):
    """argparse with this project's error policy: one sentence, exit code 2. `keys` are those of the
    configuration that flags set; `dashes` is the flag that a plain `--` stands for, if any.
    """

    dashes = ""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **kwargs)
        self.keys: dict[str, str] = {}
        self.set_defaults(keys=self.keys)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse's, but a command refuses what it doesn't know itself, and names its own help."""
        if self.dashes and "--" in args:
            args[args.index("--")] = self.dashes
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            meant = suggest_nearest(unknown[0].partition("=")[0], self._option_string_actions)
            said = f"unrecognized arguments: {' '.join(unknown)}"
            self.error(f"{said}: {meant}" if meant else said)
        return known, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = list(action.choices)
            meant = suggest_nearest(
                str(value), names, f"choose one of {', '.join(map(str, names))}"
            )
            raise argparse.ArgumentError(action, f"there is no {value!r}: {meant}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # of a help
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        end = " " if message.endswith("?") else ": "
        sys.stderr.write(f"error: {message}{end}see {self.prog} --help\n")
        raise SystemExit(EXIT_USER_ERROR)


# -- what many commands take -----------------------------------------------------------------------


TYPES: dict[str, tuple[Callable[[str], Any], str]] = {"int": (int, "N"), "path": (Path, "DIR")}


@lru_cache
def read_flags() -> Any:
    """What flags.yaml says."""
    return parse_yaml((Path(__file__).parent / "flags.yaml").read_text(encoding="utf-8"))


def add_flags(parser: Parser, command: str) -> None:
    """Add the flags that flags.yaml has of a command. Of those under `method` one can be given."""
    table = read_flags()
    for title, flags in table["commands"][command].items():
        group = parser if title == "options" else parser.add_argument_group(title)
        if title == "method":
            group = group.add_mutually_exclusive_group()
        for names, own in flags.items():
            add_flag(parser, group, names, {**table["flags"].get(names, {}), **(own or {})})


def add_flag(parser: Parser, group: Any, names: str, options: dict[str, Any]) -> None:
    """Add one flag: a number is N and a path DIR, and a key's comment its help, where nothing else
    is said. A folder in --model goes to `args.path`.
    """
    key, lead = options.pop("key", None), options.pop("lead", None)
    if "folder" in options:
        parser.set_defaults(path=None, path_key=options.pop("folder"))
    if "type" in options:
        options["type"], metavar = TYPES[options["type"]]
        options.setdefault("metavar", metavar)
    if options.get("default") == argparse.SUPPRESS:  # argparse asks whether it is this very text
        options["default"] = argparse.SUPPRESS
    if options.pop("dashes", False):
        parser.dashes = names
    words = options.get("help") or key_comments().get(key, "")
    options["help"] = words.replace("%", "%%") if lead is None else f"{lead}: {words}"
    action = group.add_argument(*names.split(), **options)
    if key is not None:
        parser.keys[action.dest] = action.key = key


def load_guided(args: argparse.Namespace) -> Callable[..., Config]:
    """`load_answering` for a command with --verifier, under which none a value guides searches."""
    from ..config.load import load_answering

    return partial(load_answering, guided=args.value is not None and args.verifier == "none")


_held_lines: ContextVar[list[str] | None] = ContextVar("held", default=None)


def print_json(facts: Any) -> None:
    """One JSON document on standard output."""
    text, held = json.dumps(facts, ensure_ascii=False), _held_lines.get()
    print(text) if held is None else held.append(text)


@contextmanager
def printing_json() -> Iterator[None]:
    """Standard output gets what `print_json` prints, at the end; all else that is written there, by
    libraries, child processes and the user's own code, goes to standard error.
    """
    held, kept = list[str](), os.dup(1)
    token = _held_lines.set(held)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        _held_lines.reset(token)
        sys.stdout.writelines(f"{text}\n" for text in held)


def print_facts(facts: Facts, as_json: bool) -> None:
    """Facts by name on standard output: as JSON, or as YAML for people."""
    print_json(facts) if as_json else print(
        yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=120).rstrip()
    )


def flag_layers(args: argparse.Namespace) -> list[JsonObject]:
    """The nested configuration that each of the command's own flags sets."""
    from ..config.load import nest_key

    values = [(key, getattr(args, dest, None)) for dest, key in args.keys.items()]
    return [
        nest_key(key, str(value) if isinstance(value, Path) else value)
        for key, value in values
        if value is not None
    ]


def resolve_config(
    args: argparse.Namespace,
    extra: JsonObject | None = None,
    load: Callable[..., Config] | None = None,
    recipe: str | None = None,
) -> Config:
    """The configuration of parsed arguments, as `load` reads it, over a shipped `recipe`; flags win
    over `--set`, and `--set` over `--config`.

    `--model` is resolved on the way: a name goes into the configuration, a folder into `args.path`.
    """
    from ..config.load import load_config

    load = load or load_config
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
    from ..policy.folders import with_model

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
    argv = sys.argv[1:] if argv is None else argv
    try:
        args = parser.parse_args(argv)
        args.words = [*argv]
        args.quiet, args.verbose = "quiet" in args, "verbose" in args
        quiet_makers(args)
        refuse_conflicts((), f"command {getattr(args, 'command', None)}", args=args)
        with printing_json() if getattr(args, "json", False) else nullcontext():
            code = args.run(args)
        sys.stdout.flush()  # here, where a reader that has gone is no error
        return code
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


def quiet_makers(args: argparse.Namespace) -> None:
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
    from ..policy.folders import check_weights

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
    from ..policy.folders import check_critic

    for name in ("value", "prm"):
        folder = getattr(args, name, None)
        if folder is not None:
            check_critic(folder, name, f"--{name} {folder}")


def check_save_files(args: argparse.Namespace) -> None:
    """Raise ConfigError where --out or a file of --save can't be written."""
    check_out(args.out)
    for file in args.save:
        if file.suffix not in SAVED:
            raise ConfigError(f"--save {file} has another ending than {', '.join(SAVED)}")
        check_out(file, file=True, flag="--save")


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
