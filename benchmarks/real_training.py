"""Supervised updates of a real language model: tokens a second in fp32 and with bfloat16 products,
beside stock TRL.

    uv run --extra gguf python scripts/fetch_smollm2.py
    # FOLDER/gsm8k/train.jsonl: GSM8K's rows
    uv run python benchmarks/real_training.py --data FOLDER
    uv run python benchmarks/real_training.py --data FOLDER --model runs/qwen --lora

Each arm is a process of its own: the same rows of GSM8K, 16 an update in forwards of 4. The first
update warms up and isn't counted. `products` is the floor: the model's matrix products alone,
forward and backward, in bfloat16. --lora trains an adapter of each layer's seven products (rank 32)
in place of all weights: backward then goes through each product once and not twice.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import provenance

ARMS = {
    "ours, fp32": "float32",
    "ours, bfloat16": "bfloat16",
    "TRL's SFTTrainer, bfloat16": "trl",
    "products": "products",
}
# fp32 takes too much memory
ADAPTER = {name: arm for name, arm in ARMS.items() if arm != "float32"}
BATCH, MICRO, SEED = 16, 4, 0


def products(shape: Any, tokens: int, lora: bool) -> tuple[float, float]:
    """CPU and wall seconds of the products of one update over `tokens` tokens; of the frozen ones
    with an adapter.
    """
    import torch

    head = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    h, f, kv = shape.hidden_size, shape.intermediate_size, shape.num_key_value_heads * head
    layer = [(h, h), (h, kv), (h, kv), (h, h), (h, f), (h, f), (f, h)]
    pairs = [(pair, shape.num_hidden_layers) for pair in layer] + [((h, shape.vocab_size), 1)]
    spent = [0.0, 0.0]
    for (inner, outer), times in pairs:
        x, w = torch.randn(tokens, inner).bfloat16(), torch.randn(outer, inner).bfloat16()
        y = torch.randn(tokens, outer).bfloat16()
        steps = (lambda x=x, w=w: x @ w.T, lambda y=y, w=w: y @ w, lambda x=x, y=y: y.T @ x)
        for product in steps[: 2 if lora else 3]:
            product()
            cpu, wall = time.process_time(), time.perf_counter()
            product()
            spent[0] += times * (time.process_time() - cpu)
            spent[1] += times * (time.perf_counter() - wall)
    return spent[0], spent[1]


def measure(arm: str, args: argparse.Namespace) -> dict[str, float]:
    """One arm in this process."""
    import torch
    from transformers import TrainerCallback

    from alphazero_llm_trainer.config.load import load_config
    from alphazero_llm_trainer.learning.methods.expert_iteration import Likelihood
    from alphazero_llm_trainer.learning.models import MemoryOptions, make_trainable
    from alphazero_llm_trainer.live import Progress
    from alphazero_llm_trainer.policy.folders import with_model
    from alphazero_llm_trainer.policy.student import load_student
    from alphazero_llm_trainer.problems.load import tasks_of
    from alphazero_llm_trainer.runs.fit import fit
    from alphazero_llm_trainer.runs.sft import sft_rows

    torch.set_num_threads(args.threads)
    overrides = [f"problems.path={args.data}", "problems.source=gsm8k"]
    overrides += [f"train.sft_steps={args.updates}", f"train.optimizer.batch_size={BATCH}"]
    overrides += ["train.optimizer.learning_rate=1e-5"]
    config, folder = with_model(
        args.model, overrides, lambda given: load_config(overrides=given, recipe="sft.yaml")
    )
    student = load_student(config, path=folder)
    tasks = tasks_of(config, "train", BATCH * args.updates)
    rows = sft_rows(tasks, student, 1.0)
    if arm == "products":
        tokens = sum(map(length, rows)) // args.updates
        cpu, wall = products(student.model.config, tokens, args.lora)
        return {"tokens": tokens, "cpu_seconds": cpu, "wall_seconds": wall}
    marks: list[tuple[float, float]] = []

    def mark() -> None:
        marks.append((time.process_time(), time.perf_counter()))

    class Callback(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            mark()

    class Steps(Progress):
        def at(self, done: int) -> None:
            mark()

    if arm == "trl":
        with tempfile.TemporaryDirectory() as folder:
            stock(student, rows, args, Path(folder), Callback())
    else:
        model = make_trainable(student.model, student.spec, "lora" if args.lora else "full")
        memory = MemoryOptions(MICRO, autocast=arm == "bfloat16")
        groups, shown = [[row] for row in rows], Steps(quiet=True)
        fit(model, Likelihood(), groups, config.train, SEED, memory, progress=shown)
    (cpu, wall), (cpu_end, wall_end) = marks[0], marks[-1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    # The rows are shuffled: each update is taken to have the same share of all tokens.
    tokens = sum(map(length, rows)) * (args.updates - 1) / args.updates
    return {
        "tokens": tokens,
        "cpu_seconds": cpu_end - cpu,
        "wall_seconds": wall_end - wall,
        "peak_gib": peak,
    }


def length(row: Any) -> int:
    """Tokens of a row."""
    return len(row.prompt_ids) + len(row.completion_ids)


def stock(student: Any, rows: list[Any], args: argparse.Namespace, folder: Path, mark: Any) -> None:
    """TRL's own trainer over the same tokens."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    lora = student.spec.lora
    adapter = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets), task_type="CAUSAL_LM"
    )

    trainer = SFTTrainer(
        model=student.model,
        args=SFTConfig(
            output_dir=str(folder), max_steps=args.updates, per_device_train_batch_size=MICRO,
            gradient_accumulation_steps=BATCH // MICRO, use_cpu=True, learning_rate=1e-5,
            bf16=True, gradient_checkpointing=False, max_length=None, save_strategy="no", report_to="none",
            disable_tqdm=True, seed=SEED, dataloader_pin_memory=False,
        ),
        train_dataset=Dataset.from_list([{"input_ids": [*row.prompt_ids, *row.completion_ids]} for row in rows]),
        processing_class=student.tokenizer,
        callbacks=[mark],
        peft_config=adapter if args.lora else None,
    )  # fmt: skip
    trainer.train()


def main() -> None:
    parser = provenance.make_parser(__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", required=True, help="a folder with gsm8k/train.jsonl")
    parser.add_argument(
        "--updates", type=int, default=7, help="of 16 rows; the first isn't counted"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--lora", action="store_true", help="train an adapter in place of all weights"
    )
    parser.add_argument("--arm", choices=list(ARMS.values()), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.arm is not None:
        print(json.dumps(measure(args.arm, args)))
        return
    found = {}
    for name, arm in (ADAPTER if args.lora else ARMS).items():
        command = [
            sys.executable,
            __file__,
            "--arm",
            arm,
            "--model",
            args.model,
            "--data",
            args.data,
        ]
        command += [
            "--updates",
            str(args.updates),
            "--threads",
            str(args.threads),
            *["--lora"] * args.lora,
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
        one = json.loads(done.stdout.strip().splitlines()[-1])
        one["tokens_a_cpu_second"] = one["tokens"] / one["cpu_seconds"]
        one["tokens_a_second"] = one["tokens"] / one["wall_seconds"]
        found[name] = one
        speed = f"{one['tokens_a_cpu_second']:8.0f} tokens a CPU second {one['tokens_a_second']:8.0f} a second"
        print(f"{name:28} {speed} {one.get('peak_gib', 0):6.2f} GiB", flush=True)
    place = "FOLDER" if Path(args.model).is_dir() else args.model
    options = (
        f"--model {place} --updates {args.updates} --threads {args.threads}" + " --lora" * args.lora
    )
    result = {
        "command": f"uv run python benchmarks/real_training.py --data FOLDER {options}",
        "machine": platform.machine(), "threads": args.threads, "model": Path(args.model).name, "rows": BATCH * args.updates,
        "seed": SEED, "arms": found,
    }  # fmt: skip
    name = "real_training_lora" if args.lora else "real_training"
    provenance.write(args.out or provenance.RESULTS / f"{name}.json", result)


if __name__ == "__main__":
    main()
