"""The `info` command: what a run would use, told without torch."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from .. import __version__
from ..config.load import Config, cuda_here, load_training
from ..config.shipped import named_file, shipped_path
from ..config.train import recipe_of
from ..engine.kernel_build import kernel_status
from ..errors import EXIT_FAILED
from .base import print_facts, resolve_config

LIBRARIES = (
    "torch", "transformers", "trl", "peft", "datasets", "verifiers", "openai",
    "bitsandbytes", "vllm", "ray", "reasoning-gym",
)  # fmt: skip


def run_info(args: argparse.Namespace) -> int:
    """Print the facts, as YAML or as JSON. Keys are reported as set or not set, never shown."""
    whole, args.config = args.config is not None, None if args.config is True else args.config
    config = resolve_config(args, load=load_training)
    facts = gather_facts(config)
    if args.config is not None:
        facts["places"]["configuration"].append(str(named_file(args.config).absolute()))
    if whole:
        facts["configuration"] = config.model_dump(mode="json", exclude={"models", "teacher_tiers"})
    failed = False
    if args.check_teachers:
        from ..chat.teachers import FAILS, check_teachers

        facts["teachers"] = asyncio.run(check_teachers(config))
        failed = any(said.startswith(FAILS) for said in facts["teachers"].values())
    print_facts(facts, args.json)
    return EXIT_FAILED if failed else 0


def gather_facts(config: Config) -> dict[str, Any]:
    """The facts by name."""
    from ..runs.plan import student_facts, tier_facts

    installed = {each.name: each.version for each in metadata.distributions()}
    return {
        "version": __version__,
        "python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        "cuda": cuda_here(),
        "cores": len(os.sched_getaffinity(0)),
        "kernels": kernel_status() if config.engine.native == "auto" else "off (engine.native)",
        "student": student_facts(config),
        "source": config.problems.source,
        "tier": config.teachers.tier,
        "tiers": {tier: tier_facts(spec) for tier, spec in config.teacher_tiers.items()},
        "places": {
            "configuration": [
                str(shipped_path(name))
                for name in (
                    "training.yaml",
                    "models.yaml",
                    "teacher_models.yaml",
                    recipe_of(config.train.method),
                )
            ],
            "own values": "--config FILE, or --set KEY=VALUE; they lie above these files",
            "outputs": str(Path(config.train.checkpoint_dir).absolute()),
            "data": config.problems.path or os.environ.get("ALPHAZERO_DATA_DIR"),
            "hub cache": constants.HF_HUB_CACHE,
        },
        "libraries": {name: installed[name] for name in LIBRARIES if name in installed},
    }
