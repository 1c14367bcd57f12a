"""Tree GRPO against plain TRL GRPO from the same student: held-out accuracy over generated tokens.

    uv run python benchmarks/tree_grpo.py --seeds 7 8 9

Plain TRL is `trl.GRPOTrainer` as it comes: its own `generate`, independent samples, a correctness reward function, no
replayed demonstrations (it has none), every sampled response trained on. Ours runs twice: with the default replay of
demonstrations, and without any, which is the like-for-like arm. All arms see the same questions in the same order, the
same optimiser, learning-rate shape, clip range, loss normalisation and passes over the samples, and stop at the same
number of generated tokens: what our arms used, the smaller of the two. Plain TRL runs at each of `--plain-rates`; the
rate with the best validation accuracy counts. Validation is measured along the way, test problems once at the end, on
the weights that were best on validation. An interrupted benchmark goes on where it was. Prints a table, writes JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.eval.metrics import bootstrap_over_seeds, repeats  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.grading import RULES  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.problems.prompts import SYSTEM_PROMPT  # noqa: E402
from alphazero_llm_trainer.types import Opening  # noqa: E402
from benchmarks import provenance  # noqa: E402

OURS = {"tree GRPO": [], "tree GRPO, no replay": ["--set", "train.demonstration_share=0"]}
PLAIN = "plain TRL GRPO"
SAMPLES = 8  # responses a question of the plain arm
QUESTIONS = 24  # of one of its generation batches
BATCH = 48  # rows of one of its updates


def run(command: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def levels_flag(levels: list[int] | None) -> list[str]:
    return [] if levels is None else ["--set", f"problems.levels={levels}"]


def ours(arm: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One of our runs as a row; its curve comes from its metrics."""
    directory = args.work / f"{seed} {arm}".replace(" ", "-").replace(",", "")
    flags = ["--use-grpo", "--seed", str(seed), "--num-examples", str(args.num_examples)]
    flags += ["--eval-size", str(args.eval_size), "--save-every", str(args.save_every), *OURS[arm]]
    flags += ["--set", f"train.validation_size={args.validation_size}", *levels_flag(args.levels)]
    flags += [] if args.student is None else ["--model", str(args.student)]
    folder = directory / "run-001"
    card = json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {}
    if "after" not in card:
        resumed = ["--resume", str(folder)] if card else flags
        run([sys.executable, "train_vllm.py", *resumed, "--checkpoint-dir", str(directory)])
        card = json.loads((folder / "run.json").read_text())
    tokens, curve = 0, [(0, card["validation_before"])]
    spent: dict[int, int] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "cost" in record:
            tokens += record["cost"]["sampled_tokens"]
            spent[record["round"]] = tokens
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "validation_accuracy" in record:
            curve.append((spent[record["round"]], record["validation_accuracy"]))
    return {
        "arm": arm,
        "seed": seed,
        "before": card["before"]["correct"],
        "correct": card["after"]["correct"],
        "curve": curve,
        "tokens": tokens,
        "seconds": card["seconds"]["training"],
        "command": " ".join(["python train_vllm.py", *flags]),
    }


def plain(seed: int, rate: float, budget: int, args: argparse.Namespace) -> dict[str, Any]:
    """`plain_run` in a process of its own."""
    out = args.work / f"{seed}-plain-{rate}-{budget}.json"
    if not out.exists():
        command = [sys.executable, __file__, "--one", str(seed), str(rate), str(budget), "--out", str(out)]
        command += ["--eval-size", str(args.eval_size), "--validation-size", str(args.validation_size)]
        command += ["--num-examples", str(args.num_examples), "--work", str(args.work)]
        command += [] if args.student is None else ["--student", str(args.student)]
        command += [] if args.levels is None else ["--levels", *map(str, args.levels)]
        run(command)
    return json.loads(out.read_text())


def plain_run(seed: int, rate: float, budget: int, args: argparse.Namespace) -> dict[str, Any]:
    """TRL's GRPO on the same questions until it has generated `budget` tokens."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    config = load_config(overrides=["student=embedded", f"seed={seed}", {"problems": {"levels": args.levels}}])
    student = load_student(config, path=args.student, opening=Opening(SYSTEM_PROMPT))
    model = student.model
    split = {"levels": config.problems.levels}
    tasks = load_tasks("embedded", "train", args.num_examples, start=config.train.demonstrations, **split)
    validation = load_tasks("embedded", "validation", args.validation_size, **split)
    test = load_tasks("embedded", "test", args.eval_size, **split)

    def correct(problems: list[Any]) -> list[bool]:
        training = model.training
        model.eval()
        student.engine.set_policy(None, student.engine.version + 1)
        found = answer(student, problems, max_tokens=config.search.max_tokens).first
        model.train(training)
        return found

    mean_length = answer(student, validation, max_tokens=config.search.max_tokens).tokens / len(validation)
    rows, epochs = QUESTIONS * SAMPLES, config.train.grpo.epochs
    rounds = max(int(budget / (rows * mean_length)), 1)
    updates = epochs * rows // BATCH
    spent = {"tokens": 0}
    curve: list[tuple[int, float]] = [(0, sum(correct(validation)) / len(validation))]
    best = {"accuracy": curve[0][1], "weights": copy.deepcopy(model.state_dict())}
    every = max(rounds // 12, 1) * updates

    def correctness(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], gold: list[str], **more: Any
    ) -> list[float]:
        spent["tokens"] += sum(map(len, completion_ids))
        return [grade.score for grade in RULES["numbers"].grade_many(list(zip(completions, gold, strict=True)))]

    class Watch(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **kwargs: Any) -> None:
            over = spent["tokens"] >= budget and state.global_step % updates == 0
            if state.global_step % every == 0 or over or state.global_step == state.max_steps:
                accuracy = sum(correct(validation)) / len(validation)
                curve.append((spent["tokens"], accuracy))
                if accuracy > best["accuracy"]:
                    best.update(accuracy=accuracy, weights=copy.deepcopy(model.state_dict()))
            control.should_training_stop = control.should_training_stop or over

    grpo = config.train.grpo
    settings = GRPOConfig(
        output_dir=str(args.work / f"{seed}-plain-{rate}"),
        max_steps=rounds * updates,
        per_device_train_batch_size=BATCH,
        steps_per_generation=rows // BATCH,
        num_iterations=epochs,
        num_generations=SAMPLES,
        max_completion_length=config.search.max_tokens,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        beta=0.0,
        epsilon=grpo.clip_low,
        epsilon_high=grpo.clip_high,
        loss_type="bnpo",
        scale_rewards="group",
        learning_rate=rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.05},
        warmup_steps=4 * updates,
        adam_beta2=0.98,
        weight_decay=grpo.weight_decay,
        max_grad_norm=grpo.max_grad_norm,
        seed=seed,
        shuffle_dataset=False,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=updates,
        report_to="none",
        disable_tqdm=True,
    )
    prompts = [prompt_text(student, task.problem.question) for task in tasks]
    model.requires_grad_(True)
    before = correct(test)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=correctness,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": prompts, "gold": [task.gold for task in tasks]}),
        processing_class=student.tokenizer,
        callbacks=[Watch()],
    )
    trainer.remove_callback(PrinterCallback)
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    model.load_state_dict(best["weights"])
    return {
        "arm": PLAIN,
        "seed": seed,
        "learning_rate": rate,
        "validation": best["accuracy"],
        "before": before,
        "correct": correct(test),
        "curve": curve,
        "tokens": spent["tokens"],
        "seconds": seconds,
    }


def prompt_text(student: Any, question: str) -> str:
    """The chat that asks `question` as text: TRL tokenises it to the ids that our arms use."""
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
    return student.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--num-examples", type=int, default=5760, help="questions of our arms")
    parser.add_argument("--save-every", type=int, default=480, help="questions between validations of our arms")
    parser.add_argument("--eval-size", type=int, default=1000)
    parser.add_argument("--validation-size", type=int, default=500)
    parser.add_argument("--plain-rates", type=float, nargs="+", default=[5e-4, 1e-4])
    parser.add_argument("--student", type=Path, help="a student folder to start from (default: the shipped one)")
    parser.add_argument("--levels", type=int, nargs="+", help="problem levels (default: the mix)")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side, one thread each")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "tree_grpo")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "tree_grpo.json")
    parser.add_argument("--one", type=float, nargs=3, metavar=("SEED", "RATE", "BUDGET"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.one:
        seed, rate, budget = args.one
        args.out.write_text(json.dumps(plain_run(int(seed), rate, int(budget), args)))
        return

    def told(row: dict[str, Any]) -> dict[str, Any]:
        rate = f", rate {row['learning_rate']}" if "learning_rate" in row else ""
        accuracy = sum(row["correct"]) / len(row["correct"])
        print(
            f"seed {row['seed']}, {row['arm']}{rate}: {accuracy:.3f} after {row['tokens']:,} tokens, {row['seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        return row

    with ThreadPoolExecutor(args.jobs) as pool:
        wanted = [(arm, seed) for seed in args.seeds for arm in OURS]
        rows = list(pool.map(lambda job: told(ours(*job, args)), wanted))
        budget = {seed: min(row["tokens"] for row in rows if row["seed"] == seed) for seed in args.seeds}
        tries = [(seed, rate) for seed in args.seeds for rate in args.plain_rates]
        plains = list(pool.map(lambda job: told(plain(*job, budget[job[0]], args)), tries))
    for seed in args.seeds:
        rows.append(max((row for row in plains if row["seed"] == seed), key=lambda row: row["validation"]))
    report(rows, plains, args)


def report(rows: list[dict[str, Any]], plains: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """The table and JSON. Intervals are over distinct problems and over seeds."""
    groups = repeats(load_tasks("embedded", "test", args.eval_size, levels=args.levels))

    def by_seed(arm: str, key: str = "correct") -> list[list[float]]:
        return [[float(one) for one in row[key]] for row in rows if row["arm"] == arm]

    def mean(found: list[list[float]]) -> float:
        return sum(map(sum, found)) / sum(map(len, found))

    summary = []
    for arm in (*OURS, PLAIN):
        mine = [row for row in rows if row["arm"] == arm]
        after, before = by_seed(arm), by_seed(arm, "before")[:1]
        gain = bootstrap_over_seeds(after, before, groups=groups)
        versus = bootstrap_over_seeds(after, by_seed(PLAIN), groups=groups)
        tokens = sum(row["tokens"] for row in mine) // len(mine)
        print(f"{arm:24} {mean(before):.3f} -> {mean(after):.3f}, over plain TRL {versus}, {tokens:,} tokens")
        summary.append(
            {
                "arm": arm,
                "before": mean(before),
                "after": mean(after),
                "gain": vars_of(gain),
                "over_plain": None if arm == PLAIN else vars_of(versus),
                "tokens": tokens,
            }
        )
    runs = [row for row in rows if row["arm"] != PLAIN] + plains
    for row in runs:
        del row["seconds"]  # the arms may have shared the machine with others
        for name in ("correct", "before"):
            row[name] = "".join("1" if x else "0" for x in row[name])
    facts = {
        "seeds": args.seeds,
        "questions": args.num_examples,
        "problems": args.eval_size,
        "distinct": len(set(groups)),
        "validation_problems": args.validation_size,
        "summary": summary,
        "runs": runs,
    }
    provenance.write(args.out, "tree_grpo", facts)


def vars_of(interval: Any) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


if __name__ == "__main__":
    main()
