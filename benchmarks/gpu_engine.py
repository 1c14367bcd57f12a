"""How fast the in-process engine is on a CUDA device, with a random model of Qwen2.5 0.5B's shape.

    uv run python benchmarks/gpu_engine.py [--out results.json]

Rows of 102 prompt tokens and 256 sampled ones (128 at 1,024 rows) at temperature 0.7, a second time
after a first that captures the graphs; then 32 rows of 64 whose kernels are launched one by one
(`engine.native: off`), and whether they say the same. Without CUDA it is small and slow.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import provenance
import torch
from gpu import CUDA, DEVICE, TINY, entry, save_random
from transformers import Qwen2Config, Qwen2ForCausalLM

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import Generated, GenerateRequest
from alphazero_llm_trainer.policy.student import Student, load_student

QWEN_05B = {
    "num_hidden_layers": 24,
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151_936,
}
ROWS = {1: 256, 32: 256, 256: 256, 1024: 128} if CUDA else {1: 16, 4: 16}  # tokens of each row
LAUNCHED, COMPARED = (32, 64) if CUDA else (4, 16)  # rows and tokens
CACHE = {"max_batch": 1024, "cache_tokens": 700_000, "cache_bytes": 1 << 34}


def student_of(folder: Path, native: str) -> Student:
    engine = {"engine": {**CACHE, "backend": "inprocess", "native": native}}
    return load_student(load_config(overrides=[entry(folder), engine]), inference=True)


def draw(student: Student, rows: int, tokens: int) -> list[Generated]:
    """A sample after each of `rows` prompts."""
    start = [5 + i % 90 for i in range(100)]
    requests = [
        GenerateRequest(
            (*start, 5 + row % 90, 5 + row // 90), max_new_tokens=tokens, seed=row, temperature=0.7
        )
        for row in range(rows)
    ]
    made = [sample for [sample] in asyncio.run(student.engine.generate(requests))]
    student.engine.reset_prefix_cache()
    return made


def timed(student: Student, rows: int, tokens: int) -> tuple[list[Generated], dict[str, float]]:
    began = time.perf_counter()
    made = draw(student, rows, tokens)
    seconds = time.perf_counter() - began
    sampled = sum(len(one.token_ids) for one in made)
    return made, {"seconds": seconds, "tokens_per_second": sampled / seconds}


def agreement(found: list[Generated], right: list[Generated]) -> dict[str, float]:
    """Tokens until the first that differs, and the mean distance (nats) of their
    log-probabilities.
    """
    same, apart, whole = 0, 0.0, sum(len(one.token_ids) for one in right)
    for one, other in zip(found, right, strict=True):
        for at, token in enumerate(other.token_ids):
            if one.token_ids[at] != token:
                break
            same += 1
            apart += abs(one.logprobs[at] - other.logprobs[at])
    return {"tokens": whole, "same": same, "mean_gap": apart / max(1, same)}


def main() -> None:
    parser = provenance.make_parser(__doc__)
    parser.set_defaults(out=Path("gpu_engine.json"))
    args = parser.parse_args()
    device = torch.cuda.get_device_name() if CUDA else "cpu"
    figures: dict[str, Any] = {"device": device, "torch": torch.__version__, "rows": {}}
    with TemporaryDirectory() as place:
        torch.manual_seed(0)
        with torch.device(DEVICE):
            shape = QWEN_05B if CUDA else TINY
            config = Qwen2Config(**shape, tie_word_embeddings=False, max_position_embeddings=4096)
            save_random(Qwen2ForCausalLM(config), Path(place))
        fast = student_of(Path(place), "auto")
        samples = {}
        for rows, tokens in ROWS.items():
            draw(fast, rows, tokens)
            samples[rows], figures["rows"][rows] = timed(fast, rows, tokens)
            print(rows, figures["rows"][rows], flush=True)
        if CUDA:
            figures["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        slow = student_of(Path(place), "off")
        draw(slow, LAUNCHED, 4)
        made, figures["launched"] = timed(slow, LAUNCHED, COMPARED)
        figures["launched"] |= {"rows": LAUNCHED, **agreement(samples[LAUNCHED], made)}
        print(figures["launched"], flush=True)
        provenance.write(args.out, figures)


if __name__ == "__main__":
    main()
