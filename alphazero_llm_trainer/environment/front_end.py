"""`vf-eval` for this package: training hand-over, the embedded defaults, one-sentence errors,
honest exit codes.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..config.refusals import refuse_conflicts
from ..errors import EXIT_USER_ERROR, AlphaZeroError, ConfigError
from .argv import ID_FLAG, OUR_ID, is_our_id, names_us

if TYPE_CHECKING:
    from verifiers.v1.configs.cli.eval import EvalConfig

    from .env import AlphaZeroEnvConfig

Train = Callable[[Sequence[str]], int]  # the training command: its arguments -> its exit code

EXIT_ALL_FAILED = 1
TRAIN_SIZE = 50  # problems of the train split
MOST_WARNINGS = 1000
TRAIN_EXAMPLE = f"`vf-eval {OUR_ID} -s -- --num-examples 100 --use-grpo`"

USAGE = f"""\
usage: vf-eval {OUR_ID} [options]            evaluate
       vf-eval {OUR_ID} -s [-- OPTIONS]      train; `vf-eval {OUR_ID} -s --help` lists OPTIONS

Without a model, the embedded student answers embedded problems: no key, no network, no GPU.

which model
  -m MODEL --client.base-url URL      any OpenAI-compatible endpoint
  --client.api-key-var NAME           the environment variable that holds its key
which problems
  --env.taskset.source SOURCE         embedded | gsm8k | math | hotpotqa (default: embedded for the
                                      embedded student, gsm8k for a model)
  --env.taskset.split SPLIT           test | train | validation | arena (default: test)
  --env.taskset.eval-size N           problems of a split (default: 20); of train:
                                      --env.taskset.train-size (50)
  -n N                                only the first N; --select.shuffle takes others
  --env.taskset.levels 1 2            difficulty of the embedded problems, 1-4
  --env.taskset.path FOLDER           rows from .jsonl files in the hub's columns (default:
                                      ALPHAZERO_DATA_DIR, the hub)
  --env.taskset.config-file FILE      YAML over config/training.yaml: reward weights
how to answer
  --env.agent.harness.search mcts     tree search over reasoning steps
  --env.agent.harness.simulations N   expansions a question
  --env.agent.harness.samples K       continuations each
  --tier free|production              teachers in search (--env.taskset.tier); they need a key in
                                      OPENROUTER_API_KEY
how to score
  --use-student-model [true|false]    perplexity under the frozen student as 0.6 of the reward,
                                      beside correctness (default: on for the embedded student, off
                                      for a model, which needs `student` in the config-file for it)
other
  -r N rollouts a problem, -c N at once, -o FOLDER for the traces,
  --push uploads to Prime Intellect (off here)
  --help-all                          every option of verifiers' own vf-eval
"""


class Flags(argparse.ArgumentParser):
    """The flags that verifiers doesn't know. Raises ConfigError."""

    def __init__(self) -> None:
        super().__init__("vf-eval", add_help=False, allow_abbrev=False)
        self.add_argument("-s", action="store_true", dest="train")
        self.add_argument("-h", "--help", action="store_true")
        self.add_argument("--help-all", action="store_true")
        self.add_argument("--tier")
        self.add_argument("--use-student-model", nargs="?", const="true")
        self.add_argument(
            "--no-use-student-model", action="store_const", const="false", dest="use_student_model"
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def run_front_end(argv: Sequence[str], train: Train) -> int:
    """Run `vf-eval` with `argv`, and the training command `train` for `-s`; the exit code: 0, 1
    when every rollout failed, 2 for what the user can fix.
    """
    try:
        return dispatch_command(list(argv), train)
    except AlphaZeroError as error:
        print(f"vf-eval: {error}", file=sys.stderr)
        return EXIT_USER_ERROR


def dispatch_command(argv: list[str], train: Train) -> int:
    """Train, help or evaluate; what isn't for this package is verifiers' own."""
    if not names_us(argv):
        return verifiers_own(argv)
    at = argv.index("--") if "--" in argv else len(argv)
    flags, rest = Flags().parse_known_args(argv[:at])
    if flags.train:
        for word in rest:
            if word != ID_FLAG and not is_our_id(word.removeprefix(f"{ID_FLAG}=")):
                raise ConfigError(
                    f"{word} stands before `--`: "
                    f"write training options after it, as in {TRAIN_EXAMPLE}"
                )
        return train(["--help"] if flags.help else argv[at + 1 :])
    if at < len(argv):
        raise ConfigError(f"`--` starts training options and needs -s before it: {TRAIN_EXAMPLE}")
    if flags.help_all:
        return verifiers_own([OUR_ID, "--help"])
    if flags.help:
        print(USAGE, end="")
        return 0
    for key, value in (("tier", flags.tier), ("use-student-model", flags.use_student_model)):
        if value is not None:
            rest += [f"--env.taskset.{key}", value]
    return run_verifiers(rest)


def verifiers_own(argv: list[str]) -> int:
    """verifiers' `vf-eval`, or this package's where verifiers has none.

    Raises:
        ConfigError: there it is asked for another taskset.
    """
    if verifiers_has_one():
        from verifiers.v1.cli.eval.main import main

        main(argv)
        return 0
    from .play import play_rollouts as play

    config = parse_config(argv)
    if not is_our_id(config.env.taskset.id):
        raise ConfigError(
            f"verifiers has no vf-eval any more, and this one evaluates {OUR_ID} alone: "
            "prime-rl's `uv run eval` evaluates other tasksets"
        )
    play(config)
    return 0


def leave_notice_out() -> None:
    """Leave out verifiers' notice that its own `vf-eval` will go, in its log and below its table:
    this package brings one then.
    """
    for shows in ("eval.runner", "dashboard.eval"):
        with suppress(ModuleNotFoundError):
            vars(import_module(f"verifiers.v1.cli.{shows}")).update(PRIME_RL_HINT="")


def verifiers_has_one() -> bool:
    """Whether the installed verifiers has an evaluation command; later ones leave that to
    prime-rl.
    """
    try:
        return all(map(find_spec, ("verifiers.v1.cli.eval.main", "verifiers.v1.configs.cli.eval")))
    except ModuleNotFoundError:
        return False


def run_verifiers(argv: list[str]) -> int:
    """Evaluate with verifiers' own command, which reads the filled-in configuration from a file.

    Raises:
        AlphaZeroError: one sentence for the user.
    """
    if "verifiers" not in sys.modules:
        print("loading verifiers", file=sys.stderr, flush=True)
    from . import rollouts

    config = parse_config(argv)
    fill_config(config)
    about = left_out(config)
    for line in [*describe_plan(config), *about]:
        print(line, flush=True)
    # Of one command alone, so they are no part of a saved configuration.
    flags = ("dry_run", "clean", "resume")
    once = [f"--{name.replace('_', '-')}" for name in flags if getattr(config, name)]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "eval.json"
        file.write_text(config.model_dump_json(), encoding="utf-8")
        leave_notice_out()
        # Warnings are printed when verifiers' dashboard has left the screen.
        kept = MemoryHandler(MOST_WARNINGS, flushLevel=sys.maxsize, target=logging.StreamHandler())
        logging.basicConfig(handlers=[kept])
        try:
            verifiers_own(["@", str(file), *once])
        except SystemExit as stop:
            if isinstance(stop.code, str):  # verifiers' own sentences
                raise ConfigError(stop.code) from stop
            return stop.code or 0
        finally:
            kept.flush()
    if config.dry_run:
        return 0
    folder = config.output_dir / str(config.run.dir)
    summary = rollouts.summarise_rollouts(folder)
    if tier_of(config) != "none" and not about:
        about = [f"teachers took part: {summary.taught} steps"]
    print("\n".join(["", rollouts.summary_text(summary, folder), *about]))
    if summary.failed and summary.failed == summary.total:
        why = summary.first_error
        print(f"vf-eval: every rollout failed, the first one with: {why}", file=sys.stderr)
        return EXIT_ALL_FAILED
    return 0


def parse_config(argv: list[str]) -> EvalConfig:
    """verifiers' typed configuration of a command line, or ConfigError with one sentence."""
    from pydantic_config import ConfigFileError, cli
    from verifiers.v1.cli.resolve import narrow_config, plugin_errors, with_positional_taskset

    model = import_module(
        "verifiers.v1.configs.cli.eval" if verifiers_has_one() else f"{__package__}.play"
    ).EvalConfig
    argv = with_positional_taskset(argv)
    try:
        with plugin_errors():
            return cli(narrow_config(model, argv), args=argv)
    except ConfigFileError as error:
        # "Failed to validate config: ...", then a flag, then what is wrong with it
        lines = [line.strip() for line in error.message.splitlines() if line.strip()]
        raise ConfigError(": ".join(lines[1:3] if len(lines) > 2 else lines)) from error
    except SystemExit as stop:
        if not stop.code:  # `--help`
            raise
        raise ConfigError(str(stop.code)) from stop


def own_env(config: EvalConfig) -> AlphaZeroEnvConfig | None:
    """This package's environment, or None where another one plays the taskset (`--env.id`)."""
    from .env import AlphaZeroEnvConfig

    return config.env if isinstance(config.env, AlphaZeroEnvConfig) else None


def fill_config(config: EvalConfig) -> None:
    """Set what a command line leaves open: the embedded student and its problems, as many as `-n`
    says, no upload.

    Raises:
        ConfigError: half a model is named, or a search's size without a search.
    """
    from ..config.load import load_config
    from .frozen import EMBEDDED_URL
    from .harness import AlphaZeroHarnessConfig

    if "push" not in config.model_fields_set and getattr(config.run, "attach", None) is None:
        config.push = False
    env = own_env(config)
    if env is None:
        if "model" not in config.model_fields_set:
            raise ConfigError(
                "the embedded student answers in this package's own environment only: add -m MODEL"
            )
        return
    harness = env.agent.harness
    if isinstance(harness, AlphaZeroHarnessConfig):
        refuse_conflicts((), "harness", harness=harness)
    if env.agent.client is None:
        fill_model(config, env.agent.model is not None)
    taskset, embedded = env.taskset, config.client.base_url == EMBEDDED_URL
    sized = taskset.model_fields_set & {"train_size", "eval_size"}
    if "source" not in taskset.model_fields_set:
        taskset.source = taskset.source_of_file or ("embedded" if embedded else "gsm8k")
    if taskset.use_student_model is None and taskset.task.use_student_model is None:
        rewards = load_config(taskset.config_file).rewards
        taskset.use_student_model = embedded and rewards.use_student_model
    taskset.split = taskset.split or "test"
    taskset.train_size = taskset.train_size or TRAIN_SIZE
    taskset.tell_the_task()
    check_file(env)
    size = "train_size" if taskset.split == "train" else "eval_size"
    if config.select.limit is not None and size not in sized:
        asked = config.select.skip + config.select.limit
        setattr(taskset, size, max(asked, getattr(taskset, size)))


def check_file(env: AlphaZeroEnvConfig) -> None:
    """Raise ConfigError for a key of `--env.taskset.config-file` that nothing here reads."""
    from ..config.load import check_read, load_config

    own, measured = env.taskset.of_file.get("student"), env.taskset.task.use_student_model
    if own is not None and not measured:
        raise ConfigError(
            f"student is {own!r} in {env.taskset.config_file}, and nothing here measures by it: "
            "add --use-student-model, or leave it out"
        )
    tier = env.taskset.tier
    searches = getattr(env.agent.harness, "search", "none") == "mcts"
    # Without a search `--tier` takes no part, which a line says.
    layers = [{"teachers": {"tier": tier}}] if searches and tier != "none" else []
    config = load_config(env.taskset.config_file, layers)
    if not layers:
        named = "and --tier names the teachers here: name them there"
        config.refuse({"teachers.tier": named})
    check_read(config, command="vf-eval", searches="yes" if searches else "no")


def fill_model(config: EvalConfig, of_seat: bool) -> None:
    """The embedded student where neither a model (of the run, or `of_seat`) nor an endpoint is
    named.

    Raises:
        ConfigError: one of them is.
    """
    from verifiers.v1.configs.client import EvalClientConfig, resolve_api_key

    from .frozen import EMBEDDED_MODEL, EMBEDDED_URL

    named = of_seat or "model" in config.model_fields_set
    # Not from model_fields_set: verifiers assigns the field itself when it looks for a Prime login.
    reached = config.client.base_url != EvalClientConfig().base_url
    if not named and not reached:
        if find_spec("torch") is None:
            raise ConfigError(
                "the embedded student needs torch, which isn't installed: install "
                "alphazero-llm-trainer[train] (in a checkout: pip install '.[train]'), or add "
                "-m MODEL --client.base-url URL"
            )
        if "run" not in config.model_fields_set:  # its name has the model's in it
            default = config.model.replace("/", "--").lower()
            name = str(config.run.name).replace(default, EMBEDDED_MODEL)
            config.run.name = config.run.dir = name
        config.model = EMBEDDED_MODEL
        config.client = config.client.model_copy(update={"base_url": EMBEDDED_URL})
    elif not named and config.client.base_url != EMBEDDED_URL:
        raise ConfigError("--client.base-url names an endpoint but no model: add -m MODEL")
    elif not reached and resolve_api_key(config.client) == "EMPTY":
        raise ConfigError(
            f"-m {config.model} names a model but no endpoint: add --client.base-url URL, or set"
            f" {config.client.api_key_var} for {config.client.base_url}"
        )


def describe_plan(config: EvalConfig) -> list[str]:
    """The line that says which model answers which problems, whose perplexity counts and how to
    change that; none under another environment. Raises ConfigError where it can't be measured.
    """
    from .frozen import EMBEDDED_MODEL, EMBEDDED_URL

    env = own_env(config)
    if env is None:
        return []
    taskset, select = env.taskset, config.select
    assert taskset.size is not None
    search = getattr(env.agent.harness, "search", "none")
    how = "sampled by search" if search != "none" else "at the server's temperature"
    if search == "none" and config.model == EMBEDDED_MODEL:
        how = "greedy, temperature 0"
    if config.client.base_url != EMBEDDED_URL:
        taskset.task.check_student(config.model)
    student = taskset.task.student or "embedded"
    measured = f"; perplexity: under {student}, frozen" if taskset.use_student_model else ""
    count = min(taskset.size - select.skip, select.limit or taskset.size)
    return [
        f"model: {config.model}, {how} (change: -m MODEL --client.base-url URL); problems: "
        f"{taskset.source} {taskset.split}, {count} (change: --env.taskset.source, "
        f"--env.taskset.split, -n){measured}"
    ]


def tier_of(config: EvalConfig) -> str:
    """The tier of the teachers that were asked for."""
    env = own_env(config)
    return "none" if env is None else env.taskset.tier


def left_out(config: EvalConfig) -> list[str]:
    """Why the teachers that were asked for don't take part, said before the run and after it."""
    from ..config.load import load_config, missing_key

    env, tier = own_env(config), tier_of(config)
    if env is None or tier == "none":
        return []
    missing = missing_key(load_config(env.taskset.config_file), tier)
    reasons = [] if missing is None else [f"{missing} isn't set"]
    if getattr(env.agent.harness, "search", "none") == "none":
        reasons.append("teachers propose steps of a search (--env.agent.harness.search mcts)")
    return [f"tier {tier} takes no part: {' and '.join(reasons)}"] if reasons else []
