"""The console script's smaller commands: `sft`, `search`, `info`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from .config import Config
from .errors import ConfigError
from .types import Problem

PACKAGES = ("torch", "transformers", "trl", "peft", "verifiers", "datasets", "openai", "vllm", "bitsandbytes")
Resolve = Callable[..., Config]
AddArguments = Callable[[argparse.ArgumentParser], None]


# -- sft ---------------------------------------------------------------------------------------------------------------


def add_sft(commands: Any, arguments: AddArguments, resolve: Resolve) -> None:
    parser = commands.add_parser("sft", help="supervised training on worked solutions, from scratch or going on")
    parser.add_argument(
        "--path",
        type=Path,
        metavar="DIR",
        help="a student's folder to go on from (default: the embedded one from scratch)",
    )
    parser.add_argument("--out", type=Path, default=Path("checkpoints/sft"), metavar="DIR", help="where it goes")
    parser.add_argument(
        "--eval-size", type=int, default=1000, metavar="N", help="test problems, measured once at the end"
    )
    arguments(parser)
    parser.set_defaults(run=lambda args: run_sft_command(args, resolve(args)))


def run_sft_command(args: argparse.Namespace, config: Config) -> int:
    """Train on `train.demonstrations` worked solutions, select on validation, report on test."""
    if args.eval_size < 1:
        raise ConfigError(f"--eval-size is {args.eval_size}: give at least 1")
    scratch = args.path is None and config.student in ("auto", "embedded")
    if scratch and config.problems.source != "embedded":
        raise ConfigError(
            f"problems.source is {config.problems.source} and the embedded student is trained from scratch: name a"
            " student to go on from with --path or --student"
        )
    from .train.warmup import go_on, warm_up

    if scratch:
        manifest = warm_up(config, args.out, args.eval_size)
    else:
        manifest = go_on(config, args.path, args.out, args.eval_size)
        before, gain = manifest["test_before"], manifest["gain"]
        print(
            f"before {before['value']:.3f} [{before['low']:.3f}, {before['high']:.3f}], paired gain"
            f" {gain['value']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
        )
    test = manifest["test_greedy"]
    print(
        f"greedy accuracy on {test['problems']:,} test problems: {test['value']:.3f}"
        f" [{test['low']:.3f}, {test['high']:.3f}], pass@8 {manifest['test_pass_at_8']['value']:.3f};"
        f" {manifest['seconds']:.0f} s of training; student in {args.out}"
    )
    return 0


# -- search ------------------------------------------------------------------------------------------------------------


def add_search(commands: Any, arguments: AddArguments, resolve: Resolve) -> None:
    parser = commands.add_parser("search", help="search one question and print the tree")
    parser.add_argument("question", nargs="?", help="the question's text (default: an embedded test problem)")
    parser.add_argument("--index", type=int, default=0, metavar="N", help="which embedded test problem")
    parser.add_argument(
        "--path", type=Path, metavar="DIR", help="a student folder, such as checkpoints/run-001/student"
    )
    parser.add_argument("--iterations", type=int, metavar="N", help="simulations")
    parser.add_argument("--mode", choices=("step", "token"), help="what a node of the tree is")
    parser.add_argument(
        "--value", metavar="DIR", help="a value network: the search asks it, and rolls out once at the end"
    )
    parser.add_argument("--json", action="store_true", help="print the whole tree as JSON instead")
    arguments(parser)

    def run(args: argparse.Namespace) -> int:
        named = {"iterations": args.iterations, "mode": args.mode, "value": args.value}
        if args.value is not None:
            named |= {"rollout": "none", "select": "puct"}
        extra = {"search": {key: value for key, value in named.items() if value is not None}}
        return run_search(args, resolve(args, extra))

    parser.set_defaults(run=run)


def run_search(args: argparse.Namespace, config: Config) -> int:
    """Search one question with the student alone and print its tree, the choice and the cost."""
    from .cli import Stop
    from .collect import Perplexity, answer_search
    from .policy.student import load_student
    from .policy.value import load_value
    from .problems.load import load_tasks
    from .problems.prompts import system_prompt
    from .search.select import constant
    from .viewer.text import draw_tree

    if args.question is None:
        source = "embedded"
        problem = load_tasks("embedded", "test", 1, levels=config.problems.levels, start=args.index)[0].problem
    else:
        problem, source = Problem("question", args.question, "user"), config.problems.source
    student = load_student(config, path=args.path, system_prompt=system_prompt(source))
    perplexity = Perplexity(student, config.search.max_tokens) if config.rewards.use_student_model else None
    value = None if config.search.value is None else load_value(Path(config.search.value), student, config)
    result = asyncio.run(answer_search(student, config, perplexity, Stop(), value).run(problem, config.seed))
    choice = result.choice
    if args.json:
        rule = config.search.rule
        print(
            json.dumps(
                {
                    "question": problem.question,
                    "answer": None if choice is None else choice.answer,
                    "why": None if choice is None else choice.why,
                    "chosen": None if choice is None else choice.node,
                    "response": None if choice is None else choice.response,
                    "search": {"rule": rule, "exploration": constant(rule, config.search.exploration)},
                    "ended_by": result.ended_by,
                    "cost": result.cost.as_dict(),
                    "tree": result.tree.to_dict(),
                }
            )
        )
        return 0
    print(problem.question)
    print(draw_tree(result.tree, None if choice is None else choice.node))
    if choice is None:
        print("no response was finished: raise search.iterations or search.max_tokens")
    else:
        print(f"answer {choice.answer}: {choice.why}; {choice.visits} visits, value {choice.value:.3f}")
    cost = result.cost
    print(
        f"ended by {result.ended_by}: {cost.sampled_tokens} tokens sampled, {cost.cached_tokens} prefix tokens cached,"
        f" {cost.calls} calls, {cost.seconds:.2f} s"
    )
    return 0


# -- info --------------------------------------------------------------------------------------------------------------


def add_info(commands: Any, arguments: AddArguments, resolve: Resolve) -> None:
    parser = commands.add_parser("info", help="resolved configuration, versions, devices, tiers and their keys")
    parser.add_argument("--plan", action="store_true", help="the memory that training takes instead, part by part")
    parser.add_argument("--memory", type=float, metavar="GIB", help="with --plan: for a CUDA device of so much memory")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="with --plan: tokens of the longest prompt")
    arguments(parser)
    parser.set_defaults(run=lambda args: run_plan(args, resolve(args)) if args.plan else run_info(resolve(args)))


def run_plan(args: argparse.Namespace, config: Config) -> int:
    """Print the memory plan of a training run."""
    from .plan_command import print_memory
    from .policy.student import resolve_name

    for flag, value in (("--memory", args.memory), ("--prompt-tokens", args.prompt_tokens)):
        if value is not None and not value > 0:
            raise ConfigError(f"{flag} is {value}: give a number above 0")
    print_memory(config, resolve_name(config), args.memory, args.prompt_tokens)
    return 0


def run_info(config: Config) -> int:
    """Print what a run would use. Keys are reported as set or not set, never shown."""
    import torch

    from .policy.kernel_build import kernel_status
    from .policy.student import resolve_name

    shown = config.model_dump(mode="json", exclude={"models", "teacher_tiers"})
    print(yaml.safe_dump({"configuration": shown}, sort_keys=False, allow_unicode=True).rstrip())
    name = resolve_name(config)
    print(
        f"student: {name} -> {config.models[name].path} ({config.models[name].quantization}, {config.models[name].dtype})"
    )
    print("versions:")
    print(f"  python: {platform.python_version()}")
    for package in PACKAGES:
        print(f"  {package}: {version(package)}")
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(i)
            print(f"device: cuda:{i} {facts.name}, {facts.total_memory / 2**30:.0f} GiB")
    else:
        print(f"device: cpu, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads")
    print(f"kernels: {kernel_status()}" if config.engine.native == "auto" else "kernels: off (engine.native)")
    print("tiers:")
    print("  none: no teachers; the student alone")
    for tier, spec in config.teacher_tiers.items():
        key = spec.key_variable
        needs = "needs no key" if key is None else f"{key} is {'set' if os.environ.get(key) else 'not set'}"
        models = ", ".join(teacher.model for teacher in spec.teachers) or "no models named"
        place = "in this process" if spec.base_url is None else spec.base_url
        print(f"  {tier}: {place} ({needs}): {models}")
    return 0


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
