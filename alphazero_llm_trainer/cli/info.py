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

import yaml

from ..config.load import AUTO_LARGE, AUTO_SMALL, Config, load_config
from ..engine.kernel_build import kernel_status
from ..engine.precision import kernel_threads, product_unit, unit_name
from ..policy.folders import SMALL
from ..problems.load import opening
from .base import add_config_arguments, add_json, add_model, add_source, print_json, resolve

LIBRARIES = ("torch", "transformers", "trl", "peft", "datasets", "verifiers", "openai")
EXTRAS = {
    "gpu": ("bitsandbytes", "vllm"),
    "scale": ("ray",),
    "tasks": ("reasoning-gym",),
    "track": ("mlflow", "tensorboard", "trackio", "wandb"),
}
DRIVER_SECONDS = 10  # for nvidia-smi to answer


def add_info(commands: Any) -> None:
    parser = commands.add_parser("info", help="what a run would use: versions, device, student, keys, places")
    add_model(parser, key="train.student")
    add_source(parser)
    add_json(parser)
    about = "also print the whole configuration, with FILE's keys in it"
    add_config_arguments(parser, nargs="?", const=True, help=about)
    parser.set_defaults(run=run_info)


def run_info(args: argparse.Namespace) -> int:
    """Print the facts. Keys are reported as set or not set, never shown."""
    whole, args.config = args.config is not None, None if args.config is True else args.config
    config = resolve(args, load=load_config)
    facts = gather(config)
    shown = config.model_dump(mode="json", exclude={"models", "teacher_tiers"}) if whole else None
    if args.json:
        print_json(facts if shown is None else facts | {"configuration": shown})
        return 0
    print(text(facts))
    if shown is not None:
        print(yaml.safe_dump({"configuration": shown}, sort_keys=False, allow_unicode=True).rstrip())
    else:
        print("the whole configuration: info --config; what a training run takes: train --dry-run")
    return 0


def gather(config: Config) -> dict[str, Any]:
    """The facts, as `--json` prints them."""
    libraries = {name: version(name) for name in LIBRARIES}
    devices = gpus()
    cuda = bool(devices) and "+cpu" not in (libraries["torch"] or "")
    name = config.student if config.student != "auto" else AUTO_LARGE if cuda else AUTO_SMALL
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    student, told = student_facts(config, name), opening(config, name=name)
    return {
        "version": version("alphazero-llm-trainer"),
        "python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        "gpus": devices,
        "cuda": cuda,
        "cores": cores,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "kernels": kernel_status() if config.engine.native == "auto" else "off (engine.native)",
        "products": products(config, student["parameters"] or 0, cores or 1),
        "engine": config.engine.backend,
        "student": student,
        "source": config.problems.source,
        "prompt": {"system_prompt": told.system_prompt, "shots": told.shots},
        "limits": {"max_tokens": config.search.max_tokens, "max_depth": config.search.max_depth},
        "tier": config.teachers.tier,
        "tiers": {tier: tier_facts(spec) for tier, spec in config.teacher_tiers.items()},
        "places": {
            "outputs": str(Path(config.train.checkpoint_dir).absolute()),
            "data": config.dataset.path or os.environ.get("ALPHAZERO_DATA_DIR"),
            "hub cache": hub_cache(),
        },
        "libraries": libraries,
        "extras": {extra: {name: version(name) for name in names} for extra, names in EXTRAS.items()},
    }


def products(config: Config, parameters: int, cores: int) -> str:
    """What the kernels multiply in for a plain fp32 Llama of the student's size, and on how many threads."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # it may have a number for each level of nesting
    threads = kernel_threads(parameters, int(wanted) if wanted.isdigit() else cores)
    return f"{unit_name(product_unit(config.engine.dtype, parameters))}, {threads} thread{'s' * (threads > 1)}"


def student_facts(config: Config, name: str) -> dict[str, Any]:
    """The student's name, where its weights come from, how many they are and in what numbers."""
    from ..training.memory import Counts
    from ..training.start import find_shape

    spec = config.models[name]
    shape = find_shape(config, spec)
    return {
        "name": name,
        "path": config.train.student or spec.path,
        "parameters": None if shape is None else Counts.of(shape, spec.lora).whole,
        "numbers": spec.dtype if spec.quantization == "none" else f"{spec.quantization}, computed in {spec.dtype}",
        "trained": config.train.adapter or spec.adapter,
        "template": spec.path not in SMALL,
    }


def tier_facts(spec: Any) -> dict[str, Any]:
    """Where a tier of teachers answers, which variable holds its key, and whether that is set."""
    return {
        "place": "in this process" if spec.base_url is None else spec.base_url,
        "key": spec.key_variable,
        "set": spec.key_variable is not None and bool(os.environ.get(spec.key_variable)),
        "models": [teacher.model for teacher in spec.teachers],
    }


def text(facts: dict[str, Any]) -> str:
    """The facts as lines for people."""
    student, places, tiers = facts["student"], facts["places"], facts["tiers"]
    device = "; ".join(facts["gpus"]) or "cpu (no NVIDIA driver answers here)"
    if facts["gpus"] and not facts["cuda"]:
        device += f", but torch {facts['libraries']['torch']} is built for the CPU"
    size = "size not known" if student["parameters"] is None else f"{millions(student['parameters'])} parameters"
    path = "in the wheel" if student["path"] == "package" else student["path"]
    trained = {"full": "all weights are trained", "lora": "LoRA adapters are trained"}[student["trained"]]
    threads = facts["threads"] or ("1" if student["name"] == "embedded" else f"{facts['cores']}")
    missing = [
        f"{tier} needs {spec['key']}, which is {'set' if spec['set'] else 'not set'}"
        for tier, spec in tiers.items()
        if spec["key"] is not None
    ]
    extras = {
        extra: [f"{name} {v}" for name, v in found.items() if v is not None] for extra, found in facts["extras"].items()
    }
    lines = {
        "version": f"alphazero-llm-trainer {facts['version']}",
        "python": facts["python"],
        "device": device,
        "cores": f"{facts['cores']}, torch takes {threads}",
        "kernels": facts["kernels"] + (f"; products in {facts['products']}" if facts["kernels"][0] == "C" else ""),
        "engine": facts["engine"],
        "student": f"{student['name']} ({path}), {size}, {student['numbers']}, {trained}",
        "problems": facts["source"] + (f", rows from {places['data']}" if places["data"] else ""),
        "prompt": told(facts),
        "responses": "{max_tokens} tokens and {max_depth} steps at most".format(**facts["limits"]),
        "teachers": f"{facts['tier']}; tiers: {', '.join(tiers)}; {'; '.join(missing)}",
        "outputs": places["outputs"],
        "hub cache": places["hub cache"],
        "libraries": ", ".join(f"{name} {v or 'not installed'}" for name, v in facts["libraries"].items()),
        "extras": "; ".join(f"{extra}: {', '.join(found) or 'not installed'}" for extra, found in extras.items()),
    }
    width = max(map(len, lines)) + 1
    return "\n".join(f"{name + ':':{width}} {value}" for name, value in lines.items())


def told(facts: dict[str, Any]) -> str:
    """What the student is told before a question, in a line."""
    prompt, shots = facts["prompt"]["system_prompt"], facts["prompt"]["shots"]
    if not facts["student"]["template"]:
        text = "none (the student's chat template leaves system prompts out)"
    else:
        text = "none" if prompt is None else repr(prompt)
    return f"{text}; {shots} worked solutions before the question" if shots else text


def millions(count: int) -> str:
    """A number of parameters as people say it."""
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.2g} M" if count < 1e7 else f"{count / 1e6:.0f} M"


def gpus() -> list[str]:
    """The NVIDIA GPUs that the driver shows to this process, with their memory; torch isn't asked."""
    tool = shutil.which("nvidia-smi")
    if tool is None or os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return []
    command = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DRIVER_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rpartition(",") for line in found.splitlines() if line.strip()]
    return [f"{name.strip()}, {float(mib) / 1024:.0f} GiB" if mib.strip().isdigit() else name for name, _, mib in rows]


def hub_cache() -> str:
    """Where models and data sets of the hub are kept."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return HF_HUB_CACHE


def version(package: str) -> str | None:
    """The version that is installed, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
