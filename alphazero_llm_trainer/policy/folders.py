"""Which student is meant and what its folder holds, told before torch is imported."""

from __future__ import annotations

from pathlib import Path

from ..config.load import Config
from ..errors import CheckpointError, ConfigError

PACKAGED = Path(__file__).parent.parent / "assets" / "student"
SMALL = ("package", "scratch")  # paths of students that `sft` trains from scratch
LARGE = "llama-3.2-3b"  # what `auto` is where there is a GPU
ADAPTER_FILE, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"


def resolve_name(config: Config, name: str | None = None) -> str:
    """`name`, or the configured one, with `auto` resolved: Llama 3.2 3B where CUDA is there, else the embedded one."""
    chosen = config.student if name is None else name
    if chosen == "auto":
        import torch

        return LARGE if torch.cuda.is_available() else "embedded"
    if chosen not in config.models:
        raise ConfigError(f"student is {chosen!r}: choose one of {', '.join(['auto', *config.models])}")
    return chosen


def check_folder(folder: Path) -> None:
    """Raise CheckpointError for a folder with neither a model nor an adapter."""
    if not any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG)):
        raise CheckpointError(f"student folder {folder} has no config.json: name a folder that `train` or `sft` wrote")
