"""R1 of PROTOCOL.md: a real model trained on what its greedy answers miss.

    ../shared/models/qwen-coder-0.5b.sh runs/qwen
    uv run python benchmarks/real_rft.py greedy samples --model runs/qwen --threads 1
    uv run python benchmarks/real_rft.py rft --model runs/qwen

On a GPU `--batch 1024 --set engine.max_batch=1024 --set engine.cache_bytes=16000000000` fills it.

Stages: `greedy` answers train rows, `samples` and `forks` answer those that it failed; `rft`,
`forked`, `known` and `gold` train on rows and measure. Each goes on where it stopped, by a line or
some updates, so the same line goes on after a stop; `--work` has what it wrote. `page` writes
`results/real_rft.json` from what there is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import provenance
from arms import Seed, add_work, read
from real import LONGEST, TEST, answered, of_t0

from alphazero_llm_trainer.eval.metrics import paired_bootstrap, wilson
from alphazero_llm_trainer.eval.results import interval_triple

SEED, ROWS, BATCH = 7, 3000, 32  # BATCH of an update
TEMPERATURE, SAMPLES, FORKS = 0.7, 4, 8
RATE, FINAL, WARMUP, EPOCHS, KEPT_EVERY = 2e-4, 0.1, 5, 2, 4
VALIDATION, DRAWS, WARM = 250, 4, 0.6
ARMS = ("rft", "forked", "known", "gold")

Line = dict[str, Any]


def device() -> str:
    """What answers here."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def lines(path: Path) -> list[Line]:
    """What a stage has written so far; a last line that was cut is left out."""
    if not path.is_file():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def batched(items: list[Any], size: int) -> Iterator[list[Any]]:
    """So many of them after so many."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def chosen(arm: str, work: Path, names: set[str]) -> tuple[list[Line], list[Line]]:
    """An arm's answers: the right ones of questions that greedy failed, shortest first and one of a
    question, and as many that greedy answered. `known` has twice as many of the latter, or all;
    `gold` the worked solutions of the questions of `rft`.
    """
    from random import Random

    def right(name: str) -> list[Line]:
        mine = [line for line in lines(work / name) if line["id"] in names]
        ended = [line for line in mine if line["right"] and line["finish"] == "eos"]
        return sorted(ended, key=lambda line: len(line["ids"]))

    drawn = "forks" if arm == "forked" else "samples"
    failed = {line["id"]: line for line in reversed(right(f"{drawn}.jsonl"))}
    greedy = right("greedy.jsonl")
    Random(SEED).shuffle(greedy)
    if arm == "known":
        return [], greedy[: 2 * len(failed)]
    return [*failed.values()], greedy[: len(failed)]


class Real:
    """The model and its train rows, loaded once."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        import yaml

        torch.set_num_threads(args.threads)
        from alphazero_llm_trainer.api.search import load
        from alphazero_llm_trainer.problems.load import load_tasks

        self.args = args
        given = (word.partition("=") for word in args.set)
        settings = {key: yaml.safe_load(value) for key, _, value in given}
        self.student = load(args.model, config={"problems.source": "gsm8k", **settings})
        self.tasks = load_tasks("gsm8k", "train", args.questions)

    def answer(self, out: Path, wanted: list[tuple[Any, Line, Any]]) -> None:
        """Answer (task, facts, request) in batches, and append a line of each to `out`."""
        from alphazero_llm_trainer.grading.graders import GRADERS

        engine, decode = self.student.engine, self.student.decode
        for part in batched(wanted, self.args.batch):
            began = time.monotonic()
            results = asyncio.run(engine.generate([request for _, _, request in part]))
            made = []
            for (task, facts, request), [drawn] in zip(part, results, strict=True):
                prompt = self.student.prompt_ids(task.problem.question)
                ids = [*request.prompt_ids[len(prompt) :], *drawn.token_ids]
                text = decode(ids)
                [grade] = GRADERS["numbers"].grade_many([(text, task.gold)])
                made.append(
                    {
                        "id": task.problem.id, **facts, "right": grade.correct,
                        "finish": drawn.finish, "sampled": len(drawn.token_ids), "ids": ids,
                        "logprobs": [round(value, 4) for value in drawn.logprobs],
                        "commit": provenance.BEGAN["commit"], "device": device(),
                    }
                )  # fmt: skip
            with out.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(line)}\n" for line in made))
            tokens, seconds = sum(line["sampled"] for line in made), time.monotonic() - began
            print(f"{out.stem}: {len(lines(out)):,} lines, {tokens / seconds:.0f} tokens a second")

    def greedy(self, out: Path) -> None:
        """The greedy answer of each row."""
        from alphazero_llm_trainer.engine.protocol import GenerateRequest

        done = {line["id"] for line in lines(out)}
        wanted = []
        for task in self.tasks:
            if task.problem.id not in done:
                prompt = self.student.prompt_ids(task.problem.question)
                request = GenerateRequest(prompt, max_new_tokens=LONGEST, temperature=0.0)
                wanted.append((task, {}, request))
        self.answer(out, wanted)

    def again(self, out: Path, kind: str) -> None:
        """Answers to what greedy failed, until one is right: SAMPLES whole ones, or continuations
        of the greedy answer from its least likely tokens on, at most FORKS and with as many sampled
        tokens in all as `samples` took.
        """
        from alphazero_llm_trainer.engine.protocol import GenerateRequest
        from alphazero_llm_trainer.mcts.seeds import derive_seed

        greedy = {line["id"]: line for line in lines(out.with_name("greedy.jsonl"))}
        budget = sum(line["sampled"] for line in lines(out.with_name("samples.jsonl")))
        for attempt in range(FORKS if kind == "forks" else SAMPLES):
            known = lines(out)
            over = {line["id"] for line in known if line["right"] or line["attempt"] == attempt}
            wanted = []
            for task in self.tasks:
                name, first = task.problem.id, greedy[task.problem.id]
                if first["right"] or name in over:
                    continue
                values = first["logprobs"]
                least = sorted(range(len(values)), key=lambda at, values=values: values[at])
                place = least[min(attempt, len(least) - 1)] if kind == "forks" else 0
                prefix = (*self.student.prompt_ids(task.problem.question), *first["ids"][:place])
                request = GenerateRequest(
                    prefix,
                    max_new_tokens=LONGEST - place,
                    temperature=TEMPERATURE,
                    seed=derive_seed(SEED, kind, name, attempt),
                )
                wanted.append((task, {"attempt": attempt, "place": place}, request))
            for part in batched(wanted, self.args.batch):
                if kind == "forks" and sum(line["sampled"] for line in lines(out)) >= budget:
                    return
                self.answer(out, part)

    # -- training ----------------------------------------------------------------------------------

    def rows(self, arm: str, work: Path) -> list[Any]:
        """An arm's rows."""
        from alphazero_llm_trainer.learning.train_row import TrainRow

        tasks = {task.problem.id: task for task in self.tasks}
        made = []
        for line in [line for part in chosen(arm, work, set(tasks)) for line in part]:
            task = tasks[line["id"]]
            prompt, ids = self.student.prompt_ids(task.problem.question), line["ids"]
            if arm == "gold":
                prompt, ids = self.student.solution_ids(task)
            made.append(TrainRow(tuple(prompt), tuple(ids), weights=(1.0,) * len(ids)))
        return made

    def train(self, arm: str, work: Path) -> Path:
        """The trained student's folder."""
        from transformers import set_seed

        from alphazero_llm_trainer.config.load import load_config
        from alphazero_llm_trainer.learning.learner import Learner, RateSchedule
        from alphazero_llm_trainer.learning.methods.expert_iteration import Likelihood
        from alphazero_llm_trainer.learning.models import MemoryOptions, make_trainable
        from alphazero_llm_trainer.runs.fit import draw_minibatches
        from alphazero_llm_trainer.runs.saving import save_student

        out, kept = work / arm / "student", work / arm / "kept"
        if out.is_dir():
            return out
        student, rows = self.student, self.rows(arm, work)
        updates = EPOCHS * len(self.rows("rft", work)) // BATCH  # of all arms
        layers = [f"train.optimizer.batch_size={BATCH}", f"student={student.name}"]
        spec = {"models": {student.name: student.spec.model_dump(mode="json")}}
        config = load_config(overrides=[spec, *layers])
        set_seed(SEED)
        make_trainable(student.model, student.spec, "lora")
        learner = Learner(
            student.model,
            Likelihood(),
            MemoryOptions.of(config, student),
            RateSchedule(RATE, WARMUP, updates + 1, FINAL),
            config.train.optimizer,
        )
        learner.schedule.step()  # its first rate is 0
        start = 0
        if (kept / "updates.json").is_file():
            start = read(kept / "updates.json")["updates"]
            learner.restore(kept / str(start), start)
        drawn = draw_minibatches([[row] for row in rows], BATCH, SEED)
        for number, batch in islice(enumerate(drawn, 1), start, updates):
            began = time.monotonic()
            said = learner.update(batch)
            with (work / f"{arm}.jsonl").open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps({'update': number, **said})}\n")
            seconds = time.monotonic() - began
            print(f"{arm}: update {number}/{updates}, loss {said['loss']:.4f}, {seconds:.0f} s")
            if number % KEPT_EVERY == 0:
                learner.save(kept / str(number))
                (kept / "updates.json").write_text(json.dumps({"updates": number}))
        student.model.eval()
        save_student(student, "lora", "gsm8k", out, work / arm / "adapter")
        return out


def measure(arm: str, model: Path, args: argparse.Namespace) -> Line:
    """Greedy answers to the test rows and DRAWS samples of validation rows, of an arm or of the
    `published` model, on the device that is here.
    """
    seed = Seed(SEED, args)
    warm = ("--samples", str(DRAWS), "--set", f"search.temperature={WARM}")
    drawn = answered(seed, f"{arm}, validation", model, "validation", VALIDATION, *warm)
    folder = seed.folder(f"{arm}, validation") / "cells" / f"gsm8k.samples.{DRAWS}.json"
    counts = [sum(map(bool, row)) / DRAWS for row in read(folder)["correct"]]
    made = {"validation_mean": sum(counts) / len(counts), "validation": counts}
    made["validation_greedy"] = drawn["rows"][0]["accuracy"]
    outcomes = answered(seed, f"{arm}, test", model, "test", TEST)["rows"][0]["outcomes"]
    made |= {
        "test": interval_triple(wilson(outcomes.count("1"), len(outcomes))),
        "outcomes": outcomes,
    }
    made["device"] = device()
    (args.work / f"{arm}.json").write_text(json.dumps(made))
    return made


def page(args: argparse.Namespace) -> None:
    """`results/real_rft.json`."""
    from alphazero_llm_trainer.problems.load import load_tasks

    names = {task.problem.id for task in load_tasks("gsm8k", "train", args.questions)}
    facts: Line = {"questions": args.questions, "seed": SEED, "stages": {}, "arms": {}}
    for name in ("greedy", "samples", "forks"):
        told = lines(args.work / f"{name}.jsonl")
        facts["stages"][name] = {
            "answers": len(told),
            "questions": len({line["id"] for line in told}),
            "right": len({line["id"] for line in told if line["right"]}),
            "sampled_tokens": sum(line["sampled"] for line in told),
            "commits": sorted({str(line["commit"]) for line in told}),
            "devices": Counter(line.get("device", "cpu") for line in told),
        }
    for arm in ("published", *ARMS):
        if (args.work / f"{arm}.json").is_file():
            facts["arms"][arm] = read(args.work / f"{arm}.json")
            if arm != "published":
                rows = map(len, chosen(arm, args.work, names))
                updates = {line["update"] for line in lines(args.work / f"{arm}.jsonl")}
                facts["arms"][arm] |= {"rows": [*rows], "updates": len(updates)}
    arms = facts["arms"]
    on_cpu = {"outcomes": of_t0("test")["outcomes"], "device": "cpu"}
    pairs = [(arm, "published") for arm in ARMS] + [("forked", "rft"), ("rft", "known")]
    for arm, name in pairs:
        if arm not in arms:
            continue
        known = [arms.get(name, {}), *[on_cpu] * (name == "published")]
        for before in (one for one in known if one.get("device") == arms[arm]["device"]):
            for key, what in (("outcomes", "test"), ("validation", "validation")):
                if key in before:
                    values = [list(map(float, one[key])) for one in (arms[arm], before)]
                    arms[arm][f"{what}_less_{name}"] = interval_triple(paired_bootstrap(*values))
    provenance.write(args.out, facts)


def stages(args: argparse.Namespace) -> Iterator[Callable[[], Any]]:
    """The calls of the named stages."""
    work: Path = args.work
    for stage in args.stage:
        if stage == "greedy":
            yield lambda: Real(args).greedy(work / "greedy.jsonl")
        elif stage in ("samples", "forks"):
            yield lambda stage=stage: Real(args).again(work / f"{stage}.jsonl", stage)
        elif stage == "published":
            yield lambda: measure("published", args.model, args)
        elif stage == "page":
            yield lambda: page(args)
        else:
            yield lambda stage=stage: measure(stage, Real(args).train(stage, work), args)


def main() -> None:
    parser = provenance.make_parser(__doc__, "real_rft")
    add_work(parser, "real-rft")
    known = ["greedy", "samples", "forks", "published", *ARMS, "page"]
    parser.add_argument("stage", nargs="+", choices=known)
    parser.add_argument("--model", type=Path, required=True, help="a folder with a chat model")
    parser.add_argument("--questions", type=int, default=ROWS, help="train rows; fewer: a trial")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="rows answered at once")
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    args.rows = None
    for call in stages(args):
        call()


if __name__ == "__main__":
    main()
