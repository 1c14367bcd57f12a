"""Tree GRPO against plain TRL GRPO from the shipped student: held-out accuracy over generated tokens.

    uv run python benchmarks/tree_grpo.py --seeds 7 8 9

Plain TRL is `trl.GRPOTrainer` as it comes: its own `generate`, independent samples, a correctness reward function, no
replayed demonstrations (it has none), every sampled response trained on. Ours runs twice: with the default replay of
demonstrations, and without any, which is the like-for-like arm. All arms see the same questions in the same order, the
same optimiser, learning-rate shape, clip range, loss normalisation and passes over the samples, and stop at the same
number of generated tokens: what our arms used, the smaller of the two. TRL's rate is tuned with the first seed (`arms.py`).
Each arm ends with the weights that were best on validation problems.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import Arm, Seed, climb, figures, groups, less, options, outcomes, read, sampled  # noqa: E402

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.grading import GRADERS  # noqa: E402
from alphazero_llm_trainer.problems.load import opening, tasks_of  # noqa: E402
from alphazero_llm_trainer.problems.prompts import SYSTEM_PROMPT  # noqa: E402
from alphazero_llm_trainer.training.models import save_student  # noqa: E402
from benchmarks import provenance  # noqa: E402

STUDENT = ROOT / "alphazero_llm_trainer" / "assets" / "student"
ROUNDS = "train.questions_per_round=96 train.save_every=480"
OURS = {
    "tree GRPO": Arm("grpo", ROUNDS),
    "tree GRPO, no replay": Arm("grpo", f"{ROUNDS} train.demonstration_share=0"),
}
PLAIN, RATE = "plain TRL GRPO", 2e-4
SAMPLES = 8  # responses a question of the plain arm
QUESTIONS = 24  # of one of its generation batches
BATCH = 48  # rows of one of its updates


def stages(seed: Seed, factors: dict[str, float]) -> None:
    """All of one seed."""
    args, start = seed.args, ("--model", str(STUDENT))
    runs = {name: seed.train(name, arm, start, args.questions) for name, arm in OURS.items()}
    budget = min(map(sampled, runs.values()))
    tried: dict[float, Path] = {}
    for factor in [factors[PLAIN]] if PLAIN in factors else args.factors:
        tried[factor] = out = seed.folder(f"{PLAIN} x{factor:g}")
        if not (out / "manifest.json").exists():
            print(f"seed {seed.seed}: {out.name}", flush=True)
            command = [sys.executable, __file__, "--one", str(seed.seed), str(factor * RATE), str(budget)]
            command += ["--questions", str(args.questions), "--out", str(out)]
            subprocess.run([*command, *(word for one in args.set for word in ("--set", one))], check=True)
    factors[PLAIN] = max(tried, key=lambda factor: read(tried[factor] / "manifest.json")["validation_accuracy"])
    students = {"start": STUDENT, **{name: run / "student" for name, run in runs.items()}, PLAIN: tried[factors[PLAIN]]}
    if not args.train_only:
        for name, student in students.items():
            seed.evaluate(name, student, ["greedy"])


def plain_run(seed: int, rate: float, budget: int, args: argparse.Namespace) -> None:
    """TRL's GRPO on the same questions until it has generated `budget` tokens; writes its best student to --out."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    config = load_config(overrides=["student=embedded", f"seed={seed}", *args.set])
    student = load_student(config, path=STUDENT, opening=opening(config))
    model: Any = student.model
    tasks = tasks_of(config, "train", args.questions, config.train.demonstrations)
    validation = tasks_of(config, "validation", config.train.validation_size)

    def correct(problems: list[Any]) -> list[bool]:
        training = model.training
        model.eval()
        student.engine.set_policy(None, student.engine.version + 1)
        found = answer(student, problems, max_tokens=config.search.max_tokens).first
        model.train(training)
        return found

    mean_length = answer(student, validation, max_tokens=config.search.max_tokens).tokens / len(validation)
    rows, epochs = QUESTIONS * SAMPLES, config.train.optimizer.epochs
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
        return [grade.score for grade in GRADERS["numbers"].grade_many(list(zip(completions, gold, strict=True)))]

    class Watch(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **kwargs: Any) -> None:
            over = spent["tokens"] >= budget and state.global_step % updates == 0
            if state.global_step % every == 0 or over or state.global_step == state.max_steps:
                accuracy = sum(correct(validation)) / len(validation)
                curve.append((spent["tokens"], accuracy))
                if accuracy > best["accuracy"]:
                    best.update(accuracy=accuracy, weights=copy.deepcopy(model.state_dict()))
            control.should_training_stop = control.should_training_stop or over

    grpo = config.train
    settings = GRPOConfig(
        output_dir=str(args.out),
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
        weight_decay=grpo.optimizer.weight_decay,
        max_grad_norm=grpo.optimizer.max_grad_norm,
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
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=correctness,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": prompts, "gold": [task.gold for task in tasks]}),
        processing_class=student.tokenizer,
        callbacks=[Watch()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model.load_state_dict(best["weights"])
    args.out.mkdir(parents=True, exist_ok=True)
    save_student(student, "full", config.problems.source, args.out, args.out / "adapter")
    facts = {"steps": trainer.state.global_step, "validation_accuracy": best["accuracy"], "tokens": spent["tokens"]}
    (args.out / "manifest.json").write_text(json.dumps({**facts, "learning_rate": rate, "curve": curve}))


def prompt_text(student: Any, question: str) -> str:
    """The chat that asks `question` as text: TRL tokenises it to the ids that our arms use."""
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
    return student.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def table(seeds: Sequence[Seed]) -> dict[str, Any]:
    """Each arm's gain, and over plain TRL. Intervals are over distinct problems and over seeds."""
    same, before = groups(seeds[0]), outcomes(seeds, "start")
    summary = []
    for arm in (*OURS, PLAIN):
        row, found = figures(seeds, arm, same), outcomes(seeds, arm)
        row |= {"arm": arm, "after": row["accuracy"][0], "gain": less(found, before, same)}
        row["over_plain"] = None if arm == PLAIN else less(found, outcomes(seeds, PLAIN), same)
        cards = [read(path) for seed in seeds for path in seed.path.glob("plain-TRL-GRPO*/manifest.json")]
        row["tokens"] = sum(card["tokens"] for card in cards) // len(cards) if arm == PLAIN else row["training_tokens"]
        print(f"{arm:24} {row['after']:.3f}, over plain TRL {row['over_plain']}, {row['tokens']:,} tokens")
        summary.append(row)
    return {"distinct": len(set(same)), "summary": summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=5760, help="of our arms")
    options(parser, "tree_grpo", first=0, num=1000)
    parser.add_argument("--one", type=float, nargs=3, metavar=("SEED", "RATE", "BUDGET"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        seed, rate, budget = args.one
        plain_run(int(seed), rate, int(budget), args)
        return
    args.work, args.set = args.work.resolve(), ["student=embedded", *args.set]
    seeds = [Seed(seed, args) for seed in args.seeds]
    factors = climb(seeds, stages, args.jobs)
    if not args.train_only:
        facts = {"seeds": args.seeds, "questions": args.questions, "problems": args.num, "rate_factors": factors}
        provenance.write(args.out, "tree_grpo", facts | table(seeds))


if __name__ == "__main__":
    main()
