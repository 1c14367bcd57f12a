"""The `info` command: what a run would use."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata
from typing import Any

import yaml

from ..config.load import Config
from ..errors import ConfigError
from .base import add_config_arguments, resolve

PACKAGES = ("torch", "transformers", "trl", "peft", "verifiers", "datasets", "openai", "vllm", "bitsandbytes")


def add_info(commands: Any) -> None:
    parser = commands.add_parser("info", help="resolved configuration, versions, devices, tiers and their keys")
    parser.add_argument("--plan", action="store_true", help="the memory that training takes instead, part by part")
    parser.add_argument("--memory", type=float, metavar="GIB", help="with --plan: for a CUDA device of so much memory")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="with --plan: tokens of the longest prompt")
    add_config_arguments(parser)
    parser.set_defaults(run=lambda args: run_plan(args, resolve(args)) if args.plan else run_info(resolve(args)))


def run_plan(args: argparse.Namespace, config: Config) -> int:
    """Print the memory plan of a training run."""
    from ..policy.folders import resolve_name
    from .plan import print_memory

    for flag, value in (("--memory", args.memory), ("--prompt-tokens", args.prompt_tokens)):
        if value is not None and not value > 0:
            raise ConfigError(f"{flag} is {value}: give a number above 0")
    print_memory(config, resolve_name(config), args.memory, args.prompt_tokens)
    return 0


def run_info(config: Config) -> int:
    """Print what a run would use. Keys are reported as set or not set, never shown."""
    import torch

    from ..policy.folders import resolve_name

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
