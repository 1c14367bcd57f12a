"""The command `merge`: an adapter folded into its base's weights, as a plain folder, and on the hub
where wanted.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from pathlib import Path

from ..config.load import resolve_name
from ..errors import CheckpointError, ConfigError
from ..files import sync_all
from ..live import Progress
from ..policy.folders import ADAPTER_CONFIG, adapter_file, find_model, write_facts
from .base import check_out, resolve_config, tell_loading


def run_merge(args: argparse.Namespace) -> int:
    """Load base and adapter, add them up, write and perhaps upload."""
    adapter: Path = args.adapter
    if (adapter / "student" / "config.json").is_file():
        raise CheckpointError(
            f"--adapter {adapter} is a run that trained the whole student, which needs no merging: "
            f"it is {adapter / 'student'}"
        )
    for file in (adapter / ADAPTER_CONFIG, adapter_file(adapter)):
        if not file.is_file():
            raise CheckpointError(
                f"--adapter {adapter} has no {file.name}: name an adapter that `train` wrote"
            )
    config = resolve_config(args)
    if args.path is not None:  # the base's own weights
        config = resolve_config(args, {"models": {resolve_name(config): {"path": str(args.path)}}})
    elif config.student == "auto":  # nobody names a base: the one that the adapter does
        config = resolve_config(args, find_model(str(adapter), config)[0])
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise ConfigError(f"--out {args.out} is there already: name another folder or remove it")
    check_out(args.out)
    # Nothing is generated here, so that how fast the engine would be is no news.
    logging.getLogger("alphazero_llm_trainer.engine").setLevel(logging.ERROR)
    with Progress(args.quiet) as progress:
        tell_loading(args, progress)
        from ..policy.student import load_student
        from ..runs.merging import bare_model, carry_value, merge_adapter, read_back
        from ..runs.upload import check_hub, upload_folders

        if args.push_to_hub is not None:
            check_hub(args.push_to_hub)
        student = load_student(config, path=adapter, bare=True)
        plain = merge_adapter(bare_model(student.model), adapter)
        # Until all of it is there, and read back.
        part = args.out.with_name(args.out.name + ".part")
        try:
            plain.save_pretrained(str(part))
            student.tokenizer.save_pretrained(part)
            write_facts(part, student.name, config.models[student.name])
            read_back(part, plain)
            carry_value(adapter, student.model, plain, part)
            sync_all(part)
            part.replace(args.out)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        size = sum(file.stat().st_size for file in args.out.iterdir()) / 2**20
        print(
            f"student {student.name} with {adapter}: {args.out}, {size:,.0f} MiB in {plain.dtype}"
        )
        if args.push_to_hub is not None:
            print(f"uploaded to {upload_folders(args.push_to_hub, {'.': args.out})}")
        return 0
