"""Memory that one 4-bit base under many adapters saves against a copy each, on a random Llama; exact sizes, no timing.

    uv run python benchmarks/shared_base.py [--hidden 768 --layers 12]

Writes benchmarks/results/shared_base.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.sections import StudentModel  # noqa: E402
from alphazero_llm_trainer.policy.adapters import own_parameters  # noqa: E402
from alphazero_llm_trainer.policy.student import load_model  # noqa: E402
from alphazero_llm_trainer.training.models import attach, make_trainable  # noqa: E402
from benchmarks import provenance  # noqa: E402

NAMES = ("default", "value", "prm-implicit", "critic")
RESULTS = Path(__file__).parent / "results" / "shared_base.json"


def size(tensors: Any) -> float:
    """MB of distinct storages."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values()) / 1e6


def tensors_of(model: Any) -> list[torch.Tensor]:
    found = [*model.parameters(), *model.buffers()]
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            found += [state.absmax, *([state.state2.absmax] if state.nested else [])]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    heads = args.hidden // 64
    shape = LlamaConfig(
        vocab_size=args.vocabulary, hidden_size=args.hidden, intermediate_size=4 * args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2 or 1, tie_word_embeddings=True,
    )  # fmt: skip
    spec = StudentModel(path="random", adapter="lora", quantization="nf4", dtype="bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        plain = LlamaForCausalLM(shape).to(torch.bfloat16)
        count = sum(p.numel() for p in plain.parameters())
        plain.save_pretrained(folder)
        del plain
        model = load_model(folder, spec, "random")
    base = size(tensors_of(model))
    make_trainable(model, spec, "lora")
    for name in NAMES[1:]:
        attach(model, spec.lora, name)
    shared = size(tensors_of(model))
    adapter = size(own_parameters(model, "default").values())
    copies = base + len(NAMES) * (base + adapter)  # the reference is a copy without an adapter
    result = {
        "parameters": count, "base_mb": round(base, 1), "adapter_mb": round(adapter, 1), "adapters": len(NAMES),
        "shared_mb": round(shared, 1), "copies_mb": round(copies, 1), "saved_mb": round(copies - shared, 1),
    }  # fmt: skip
    provenance.write(args.out, "shared_base", result)
    for name, value in result.items():
        print(f"{name:12} {value:,}")


if __name__ == "__main__":
    main()
