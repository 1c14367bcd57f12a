"""Shared prefixes trained once: forward and backward of a tree's responses, packed against the flat batch.

    uv run python benchmarks/tree_training.py

Trees are real: 60 iterations with 4 samples each by the shipped student at temperature 1, on problems of the default
mix and on the longer ones (levels 3 and 4). A batch is one tree's distinct responses; only trees that teach count, with
right and wrong responses (on the longer problems, which the shipped student hardly solves, with two different
responses). "all trees" adds up every such tree, one batch each, as a run that trains on all of them would; "4 trees
together" is one batch. The flat way is TRL's: one row a response, padded; the packed way is the trainer's own plan. Both
go through the same model forward and TRL's fused head; gradients are compared before anything is timed. Sharing ratio:
tokens of the flat rows without padding, over distinct prefixes. Times are CPU seconds of one thread, the median of
several alternating repeats. What 60 samples of one tree repeat is merged before either way (see `weigh_repeats`).
Prints a table, writes JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer import add_fused_lm_head

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.collect import Collector  # noqa: E402
from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.mcts.extract import trajectories  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.training.packing import PackingPlan, Work, plan, spread, tensors  # noqa: E402
from benchmarks import provenance  # noqa: E402

CPU = torch.device("cpu")
Row = tuple[np.ndarray, np.ndarray]  # prompt, completion


@dataclass(slots=True)
class Batch:
    name: str
    rows: list[Row]

    @property
    def flat_tokens(self) -> int:
        return sum(len(p) + len(c) for p, c in self.rows)

    @property
    def unique_tokens(self) -> int:
        prefixes: set[tuple[int, ...]] = set()
        for p, c in self.rows:
            whole = (*p.tolist(), *c.tolist())
            prefixes |= {whole[:end] for end in range(1, len(whole) + 1)}
        return len(prefixes)

    @property
    def ratio(self) -> float:
        return self.flat_tokens / self.unique_tokens


def grown(levels: list[int] | None, trees: int, iterations: int, samples: int) -> list[list[Row]]:
    """Each tree's distinct responses as rows."""
    overrides: list[Any] = [
        "student=embedded",
        {
            "rewards": {"use_student_model": False},
            "problems": {"levels": levels},
            "train": {"iterations": iterations, "samples": samples, "requeue_limit": 0},
        },
    ]
    config = load_config(overrides=overrides)
    student = load_student(config)
    collector = Collector(student, config, None)
    tasks = load_tasks("embedded", "train", trees, levels=config.problems.levels, start=config.train.demonstrations)

    async def collect() -> dict[str, list[Row]]:
        found = {}
        async for tree in collector.collect([(task.problem.id, task) for task in tasks], config.seed):
            prompt, responses = np.array(tree.prompt_ids), trajectories(tree.tree)
            if len({t.hre for t in responses}) > 1 or (levels is not None and len(responses) > 1):
                found[tree.key] = [(prompt, np.array(t.token_ids)) for t in responses]
        return found

    by_key = asyncio.run(collect())
    return [by_key[task.problem.id] for task in tasks if task.problem.id in by_key]


def flat_scores(model: Any, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """TRL's way: prompts padded on the left, completions on the right; log-probabilities and entropies `[B, T]`."""
    before, after = max(len(p) for p, _ in rows), max(len(c) for _, c in rows)
    ids = torch.zeros(len(rows), before + after, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, (p, c) in enumerate(rows):
        ids[i, before - len(p) : before], mask[i, before - len(p) : before] = torch.from_numpy(p), 1
        ids[i, before : before + len(c)], mask[i, before : before + len(c)] = torch.from_numpy(c), 1
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :before] = -100
    out = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    return out.log_probs[:, -after:], out.entropy[:, -after:]


def planned(model: Any, rows: Sequence[Row]) -> PackingPlan:
    return plan([p for p, _ in rows], [c for _, c in rows], max(len(c) for _, c in rows), Work.of(model.config))


def packed_scores(model: Any, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """The trainer's way, planning included."""
    made = planned(model, rows)
    outputs = [model(**tensors(one, model.dtype, CPU), fused_lm_head=True) for one in made.batches]
    return spread([o.log_probs for o in outputs], made.where), spread([o.entropy for o in outputs], made.where)


def backward(model: Any, scores: Callable[..., Any], rows: Sequence[Row], weights: torch.Tensor) -> float:
    """CPU seconds of one forward and backward of a GRPO-like loss."""
    model.zero_grad()
    began = time.process_time()
    logps, _ = scores(model, rows)
    mask = weights != 0
    (-(torch.exp(logps - logps.detach()) * weights).sum() / mask.sum()).backward()
    return time.process_time() - began


def measure(model: Any, batch: Batch, repeats: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    longest = max(len(c) for _, c in batch.rows)
    weights = torch.randn(len(batch.rows), longest, generator=generator)
    for i, (_, c) in enumerate(batch.rows):
        weights[i, len(c) :] = 0.0
    gradients = []
    for scores in (flat_scores, packed_scores):
        backward(model, scores, batch.rows, weights)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    difference = ((gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max()).item()
    times: dict[str, list[float]] = {"flat": [], "packed": []}
    for _ in range(repeats):
        times["flat"].append(backward(model, flat_scores, batch.rows, weights))
        times["packed"].append(backward(model, packed_scores, batch.rows, weights))
    made = planned(model, batch.rows)
    flat, packed = (statistics.median(times[way]) for way in ("flat", "packed"))
    return {
        "batch": batch.name,
        "rows": len(batch.rows),
        "ratio": round(batch.ratio, 2),
        "flat_tokens": batch.flat_tokens,
        "unique_tokens": batch.unique_tokens,
        "computed_flat": made.flat_tokens,
        "computed_packed": made.tokens,
        "sequences": sum(map(len, made.batches)),
        "flat_seconds": flat,
        "packed_seconds": packed,
        "speedup": round(flat / packed, 2),
        "gradient_difference": difference,
    }


def total(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Several batches after one another as one row."""
    sums = ("rows", "flat_tokens", "unique_tokens", "computed_flat", "computed_packed", "sequences")
    added: dict[str, Any] = {
        name: sum(part[name] for part in parts) for name in (*sums, "flat_seconds", "packed_seconds")
    }
    return {
        "batch": f"{parts[0]['batch']} ({len(parts)})",
        "ratio": round(added["flat_tokens"] / added["unique_tokens"], 2),
        **added,
        "speedup": round(added["flat_seconds"] / added["packed_seconds"], 2),
        "gradient_difference": max(part["gradient_difference"] for part in parts),
    }


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['model']:26} {row['batch']:36} {row['rows']:5} {row['ratio']:6.2f} {row['computed_flat']:11,}"
        f" {row['computed_packed']:7,} {row['flat_seconds']:7.3f} {row['packed_seconds']:8.3f} {row['speedup']:8.2f}",
        flush=True,
    )


def models() -> dict[str, Any]:
    """The shipped student (0.65 M parameters) and a random Llama of 3 M."""
    student: Any = load_student(load_config(overrides=["student=embedded"])).model
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=student.config.vocab_size,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        attn_implementation="sdpa",
    )
    found = {"embedded student": student, "random Llama": LlamaForCausalLM(shape)}
    named = {}
    for name, model in found.items():
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        model.train()
        named[f"{name}, {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M"] = model
    return named


def spaced(trees: list[list[Row]], count: int, name: str) -> list[Batch]:
    """`count` trees evenly spaced over their sharing ratios."""
    batches = sorted((Batch(name, rows) for rows in trees if len(rows) > 1), key=lambda b: b.ratio)
    return [batches[round(i * (len(batches) - 1) / max(count - 1, 1))] for i in range(min(count, len(batches)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=40, help="trees grown for each set of problems")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--batches", type=int, default=6, help="one-tree batches timed for each set, spaced by ratio")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "tree_training.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    batches: list[Batch] = []
    whole: dict[str, list[Batch]] = {}
    sets: list[tuple[str, list[int] | None]] = [("default mix", None), ("levels 3, 4", [3, 4])]
    for name, levels in sets:
        trees = grown(levels, args.trees, args.iterations, args.samples)
        batches += spaced(trees, args.batches, name)
        batches.append(Batch(f"{name}, 4 trees together", [row for rows in trees[:4] for row in rows]))
        whole[name] = [Batch(f"{name}, all trees", rows) for rows in trees]
    print(
        f"{'model':26} {'batch':36} {'rows':>5} {'ratio':>6} {'tokens flat':>11} {'packed':>7} {'flat s':>7}"
        f" {'packed s':>8} {'speed-up':>8}"
    )
    rows = []
    for name, model in models().items():
        for batch in batches:
            rows.append({"model": name, **measure(model, batch, args.repeats)})
            show(rows[-1])
        for of_set in whole.values():
            rows.append({"model": name, **total([measure(model, batch, 1) for batch in of_set])})
            show(rows[-1])
    worst = max(row["gradient_difference"] for row in rows)
    print(f"largest relative gradient difference {worst:.1e}")
    command = "python benchmarks/tree_training.py " + " ".join(sys.argv[1:])
    provenance.write(args.out, "tree_training", {"command": command.strip(), "rows": rows})


if __name__ == "__main__":
    main()
