"""`vf-eval` for this package: training hand-over, the embedded defaults, one-sentence errors, honest exit codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import EXIT_USER_ERROR, AlphaZeroError, ConfigError
from .argv import OUR_ID, Mode, Plan, plan

if TYPE_CHECKING:
    from verifiers.v1.configs.cli.eval import EvalConfig

EXIT_ALL_FAILED = 1

USAGE = f"""\
usage: vf-eval {OUR_ID} [options]            evaluate
       vf-eval {OUR_ID} -s [-- OPTIONS]      train; `vf-eval {OUR_ID} -s --help` lists OPTIONS

Without a model, the embedded student answers embedded problems: no key, no network, no GPU.

which model
  -m MODEL --client.base-url URL      any OpenAI-compatible endpoint
  --client.api-key-var NAME           the environment variable that holds its key
which problems
  --env.taskset.source SOURCE         embedded | gsm8k | math | hotpotqa (default: embedded for the embedded student,
                                      gsm8k for a model)
  --env.taskset.split SPLIT           test | train | validation | arena (default: test)
  --env.taskset.eval-size N           problems of a split (default: 20); --env.taskset.train-size for train (50)
  -n N                                only the first N; --select.shuffle takes others
  --env.taskset.levels 1 2            difficulty of the embedded problems, 1-4
  --env.taskset.path FOLDER           rows from .jsonl files in the hub's columns (default: ALPHAZERO_DATA_DIR, the hub)
  --env.taskset.config-file FILE      YAML over config/training.yaml: reward weights, sizes
how to answer
  --env.agent.harness.search mcts     tree search over reasoning steps
  --env.agent.harness.simulations N   expansions a question; --env.agent.harness.samples K continuations each
  --tier free|production              teachers in search (the same as --env.taskset.tier); they need OPENROUTER_API_KEY
how to score
  --use-student-model [true|false]    perplexity under the frozen student as 0.6 of the reward, beside correctness
                                      (default: on for the embedded student, off for a model)
other
  -r N rollouts a problem, -c N at once, -o FOLDER for the traces, --push uploads to Prime Intellect (off here)
  --help-all                          every option of verifiers' own vf-eval
"""


def run(argv: Sequence[str]) -> int:
    """Run `vf-eval` with `argv`; its exit code: 0, 1 when every rollout failed, 2 for what the user can fix."""
    try:
        wanted = plan(argv)
        return _run(wanted)
    except AlphaZeroError as error:
        print(f"vf-eval: {error}", file=sys.stderr)
        return EXIT_USER_ERROR


def _run(wanted: Plan) -> int:
    if wanted.mode is Mode.TRAIN:
        from ..cli.train import train_main

        return train_main(list(wanted.argv))
    if wanted.mode is Mode.HELP:
        print(USAGE, end="")
        return 0
    if wanted.mode is Mode.EVALUATE:
        return evaluate(list(wanted.argv))
    from verifiers.v1.cli.eval.main import main

    main([OUR_ID, "--help"] if wanted.mode is Mode.HELP_ALL else list(wanted.argv))
    return 0


def evaluate(argv: list[str]) -> int:
    """Evaluate with verifiers' own command; `argv` is in its language and starts with our id.

    Raises:
        AlphaZeroError: one sentence for the user.
    """
    if "torch" not in sys.modules:
        print("loading verifiers and PyTorch", file=sys.stderr, flush=True)
    from verifiers.v1.cli.eval.main import main
    from verifiers.v1.cli.output import output_path

    from . import rollouts

    config = parse(argv)
    added = defaults(config)
    argv = [*argv, *added]
    config = parse(argv)
    # The name is drawn anew at every parse; fixed here, so that this run's traces can be found.
    argv += [] if config.run.name in argv else ["--run.name", str(config.run.name)]
    print(describe(config), flush=True)
    for line in notes(config):
        print(line, flush=True)
    if config.dry_run:
        main(argv)
        return 0
    try:
        main(argv)
    except SystemExit as stop:
        if isinstance(stop.code, str):  # verifiers' own sentences
            raise ConfigError(stop.code) from stop
        return stop.code or 0
    folder = output_path(config)
    summary = rollouts.summarise(folder)
    print(f"\n{rollouts.text(summary, folder)}")
    if summary.failed and summary.failed == summary.total:
        print(f"vf-eval: every rollout failed, the first one with: {summary.first_error}", file=sys.stderr)
        return EXIT_ALL_FAILED
    return 0


def parse(argv: list[str]) -> EvalConfig:
    """verifiers' typed configuration of a command line, or ConfigError with one sentence."""
    from pydantic_config import ConfigFileError, cli
    from verifiers.v1.cli.resolve import narrow_config, plugin_errors, with_positional_taskset
    from verifiers.v1.configs.cli.eval import EvalConfig

    argv = with_positional_taskset(argv)
    try:
        with plugin_errors():
            return cli(narrow_config(EvalConfig, argv), args=argv)
    except ConfigFileError as error:
        raise ConfigError(one_sentence(error.message)) from error
    except SystemExit as stop:
        raise ConfigError(one_sentence(str(stop.code))) from stop


def one_sentence(message: str) -> str:
    """pydantic_config's message, which names one flag a line with its complaint below it, as one sentence."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) < 3 or not lines[0].startswith("Failed to validate config"):
        return " ".join(lines)
    flag, complaint = lines[1], lines[2]
    hint = re.search(r"did you mean (--\S+)\?", complaint)
    if complaint.startswith("Extra inputs are not permitted"):
        fix = f"did you mean {hint[1]}?" if hint else f"`vf-eval {OUR_ID} --help` lists the options"
        return f"there is no option {flag}: {fix}"
    given = re.search(r" \(got (.*?)\)(?=  —|$)", complaint)
    reason = complaint[: given.start()] if given else complaint
    value = f" is {given[1]}" if given else ""
    return f"{flag}{value}: {reason[0].lower()}{reason[1:]}"


def defaults(config: EvalConfig) -> list[str]:
    """What this package adds to a command line that leaves it open, as flags, so that saved records say it.

    Raises:
        ConfigError: half a model is named.
    """
    from verifiers.v1.configs.client import EvalClientConfig, resolve_api_key

    from .frozen import EMBEDDED_MODEL, EMBEDDED_URL

    added: list[str] = []
    given, agent, taskset = config.model_fields_set, _agent(config), _taskset(config)
    # Not from model_fields_set: verifiers assigns the field itself when it looks for a Prime login.
    url_given = config.client.base_url != EvalClientConfig().base_url
    model_given = "model" in given
    if taskset is None or agent is None:
        if not model_given:
            raise ConfigError("the embedded student answers in this package's own environment only: add -m MODEL")
        return [] if _says_push(config) else ["--no-push"]
    embedded = config.client.base_url == EMBEDDED_URL
    if not model_given and not url_given and agent.model is None and agent.client is None:
        added += ["-m", EMBEDDED_MODEL, "--client.base-url", EMBEDDED_URL]
        embedded = True
    elif not embedded and agent.client is None:
        if not model_given and agent.model is None:
            raise ConfigError("--client.base-url names an endpoint but no model: add -m MODEL")
        if not url_given and resolve_api_key(config.client) == "EMPTY":
            raise ConfigError(
                f"-m {config.model} names a model but no endpoint: add --client.base-url URL, or set"
                f" {config.client.api_key_var} for {config.client.base_url}"
            )
    if taskset.source is None:
        added += ["--env.taskset.source", "embedded" if embedded else "gsm8k"]
    if taskset.use_student_model is None and "use_student_model" not in taskset.task.model_fields_set:
        added += ["--env.taskset.use-student-model", "true" if embedded else "false"]
    added += _size(config)
    if not _says_push(config):
        added.append("--no-push")
    return added


def _says_push(config: EvalConfig) -> bool:
    return "push" in config.model_fields_set or config.run.attach is not None


def _size(config: EvalConfig) -> list[str]:
    """`-n 100` asks for 100 problems, so the taskset must give as many where its own size isn't set."""
    from ..config.load import load_config

    taskset, select = _taskset(config), config.select
    name = "train_size" if taskset.split == "train" else "eval_size"
    if select.limit is None or getattr(taskset, name) is not None:
        return []
    wanted = select.skip + select.limit
    if wanted <= taskset.size(load_config(taskset.config_file)):
        return []
    return [f"--env.taskset.{name.replace('_', '-')}", str(wanted)]


def _taskset(config: EvalConfig) -> Any:
    """Our taskset's configuration, or None."""
    from .taskset import AlphaZeroTasksetConfig

    return config.env.taskset if isinstance(config.env.taskset, AlphaZeroTasksetConfig) else None


def _agent(config: EvalConfig) -> Any:
    """Our environment's one seat, or None when another environment plays the taskset (`--env.id`)."""
    from .env import AlphaZeroEnvConfig

    return config.env.agent if isinstance(config.env, AlphaZeroEnvConfig) else None


def describe(config: EvalConfig) -> str:
    """One line: which model and which problems were taken, and how to change them."""
    from ..config.load import load_config
    from .frozen import EMBEDDED_URL

    taskset = _taskset(config)
    embedded = config.client.base_url == EMBEDDED_URL
    model = "the embedded student" if embedded else config.model
    change = "-m MODEL --client.base-url URL" if embedded else "-m, or leave it out for the embedded student"
    other = "gsm8k" if taskset.source == "embedded" else "embedded"
    size = taskset.size(load_config(taskset.config_file))
    count = size if config.select.limit is None else min(size - config.select.skip, config.select.limit)
    return (
        f"model: {model} (change: {change}); problems: {taskset.source} {taskset.split}, {count}"
        f" (change: --env.taskset.source {other}, --env.taskset.split, -n)"
    )


def notes(config: EvalConfig) -> list[str]:
    """What the user should know before the run: teachers that won't take part."""
    from ..config.load import load_config
    from .harness import missing_key

    taskset, agent = _taskset(config), _agent(config)
    if taskset is None or taskset.tier == "none":
        return []
    missing = missing_key(load_config(taskset.config_file), taskset.tier)
    if missing is not None:
        return [f"tier {taskset.tier}: {missing} isn't set, so evaluation goes on without teachers"]
    if agent is None or getattr(agent.harness, "search", "none") == "none":
        return [f"tier {taskset.tier}: teachers take part in search only, add --env.agent.harness.search mcts"]
    return []
