"""Getting a model of models.yaml from the hub."""

from __future__ import annotations

import httpx

from ..config.hub import ask_hub_or_cache, offline_because
from ..config.sections import StudentModel
from ..errors import ConfigError, DataError
from .folders import fetched_path

# Of a hub repository: weights and tokenizer.
FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")


def fetch_model(name: str, spec: StudentModel) -> str:
    """The folder of the model `name` on this machine, downloaded where it isn't there yet.

    Raises ConfigError where there is nothing to fetch, and DataError where the hub doesn't give it.
    """
    if spec.path in ("package", "scratch"):
        raise ConfigError(f"{name} is no model of the hub: it needs no fetching")
    if (fetched_path(spec.path) / "config.json").is_file():
        return str(fetched_path(spec.path))
    try:
        return from_hub(spec.path)
    except (OSError, ValueError, httpx.HTTPError) as error:
        why = offline_because() or type(error).__name__
        raise DataError(
            f"{name} ({spec.path}) can't be fetched from the hub ({why}): connect, and set "
            "HF_TOKEN for a gated model"
        ) from error


def from_hub(repository: str) -> str:
    """The folder in the hub's cache, downloaded where it isn't there yet."""
    from huggingface_hub import snapshot_download

    ask_hub_or_cache()
    return snapshot_download(repository, allow_patterns=list(FILES), etag_timeout=5)
