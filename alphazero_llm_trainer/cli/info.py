"""The `info` command: what a run would use, told without torch."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from ..config.load import AUTO_LARGE, AUTO_SMALL, Config, load_training
from ..engine.kernel_build import kernel_status
from ..engine.precision import kernel_threads, product_unit, uncovered, unit_name
from ..problems.load import opening
from .base import add_config_arguments, add_json, add_model, add_source, print_facts, resolve
from .train import add_method

LIBRARIES = ("torch", "transformers", "trl", "peft", "datasets", "verifiers", "openai")
EXTRAS = (
    "bitsandbytes",
    "vllm",
    "ray",
    "reasoning-gym",
    "mlflow",
    "tensorboard",
    "trackio",
    "wandb",
)
DRIVER_SECONDS = 10  # for nvidia-smi to answer


def add_info(commands: Any) -> None:
    parser = commands.add_parser(
        "info", help="what a run would use: versions, device, student, keys, places"
    )
    add_model(parser, key="train.student")
    add_source(parser)
    add_method(parser)
    add_json(parser)
    about = "also print the whole configuration, with FILE's keys in it"
    add_config_arguments(parser, nargs="?", const=True, help=about)
    parser.set_defaults(run=run_info)


def run_info(args: argparse.Namespace) -> int:
    """Print the facts, as YAML or as JSON. Keys are reported as set or not set, never shown."""
    whole, args.config = args.config is not None, None if args.config is True else args.config
    config = resolve(args, load=load_training)
    facts = gather(config)
    if whole:
        facts["configuration"] = config.model_dump(mode="json", exclude={"models", "teacher_tiers"})
    print_facts(facts, args.json)
    if not whole and not args.json:
        print(
            "# the whole configuration: info --config; what a training run takes: train --dry-run"
        )
    return 0


def gather(config: Config) -> dict[str, Any]:
    """The facts by name."""
    libraries = {name: version(name) for name in LIBRARIES}
    devices = gpus()
    cuda = bool(devices) and "+cpu" not in (libraries["torch"] or "")
    name = config.student if config.student != "auto" else AUTO_LARGE if cuda else AUTO_SMALL
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    student, shown = student_facts(config, name), opening(config, name=name)
    return {
        "version": version("alphazero-llm-trainer"),
        "python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        "gpus": devices,
        "cuda": cuda,  # False, too, where torch is built for the CPU
        "cores": cores,
        "kernels": kernel_status() if config.engine.native == "auto" else "off (engine.native)",
        "products": products(config, name, student["parameters"] or 0, cores),
        "engine": config.engine.backend,
        "student": student,
        "source": config.problems.source,
        "prompt": {"system_prompt": shown.system_prompt, "shots": shown.shots},
        "limits": {"max_tokens": config.search.max_tokens, "max_depth": config.search.max_depth},
        "tier": config.teachers.tier,
        "tiers": {tier: tier_facts(spec) for tier, spec in config.teacher_tiers.items()},
        "places": {
            "outputs": str(Path(config.train.checkpoint_dir).absolute()),
            "data": config.problems.path or os.environ.get("ALPHAZERO_DATA_DIR"),
            "hub cache": constants.HF_HUB_CACHE,
        },
        "libraries": libraries,
        "extras": {name: there for name in EXTRAS if (there := version(name)) is not None},
    }


def products(config: Config, name: str, parameters: int, cores: int) -> str:
    """What the kernels multiply in for the student on a CPU, and on how many threads; or why torch
    does it.
    """
    from ..training.start import find_config

    spec = config.models[name]
    shape = find_config(config, spec)
    reason = (
        "the kernels compute no quantised weights"
        if spec.quantization != "none"
        else shape and uncovered(shape)
    )
    if reason:
        return f"by torch in {spec.dtype}, many times slower on a CPU: {reason}"
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[
        0
    ]  # it may have a number for each level of nesting
    threads = kernel_threads(parameters, int(wanted) if wanted.isdigit() else cores)
    return f"{unit_name(product_unit(config.engine.dtype, parameters))}, {threads} thread{'s' * (threads > 1)}"


def student_facts(config: Config, name: str) -> dict[str, Any]:
    """The student's name, where its weights come from, how many they are, in what numbers, and
    which are trained.
    """
    from ..training.memory import Counts
    from ..training.start import find_shape

    spec = config.models[name]
    shape = find_shape(config, spec)
    return {
        "name": name,
        "path": config.train.student or spec.path,
        "parameters": None if shape is None else Counts.of(shape, spec.lora).whole,
        "numbers": spec.dtype
        if spec.quantization == "none"
        else f"{spec.quantization}, computed in {spec.dtype}",
        "trained": config.train.adapter or spec.adapter,
    }


def tier_facts(spec: Any) -> dict[str, Any]:
    """Where a tier of teachers answers, which variable holds its key, and whether that is set."""
    return {
        "place": "in this process" if spec.base_url is None else spec.base_url,
        "key": spec.key_variable,
        "set": spec.key_variable is not None and bool(os.environ.get(spec.key_variable)),
        "models": [teacher.model for teacher in spec.teachers],
    }


def gpus() -> list[str]:
    """The NVIDIA GPUs that the driver shows to this process, with their memory; torch isn't
    asked.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None or os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return []
    command = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        listed = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=DRIVER_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in listed.splitlines() if line.strip()]


def version(package: str) -> str | None:
    """The version that is installed, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
