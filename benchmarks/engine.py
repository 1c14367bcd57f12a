"""The in-process engine against Hugging Face `generate` and against re-prefilling, in one run.

    uv run python benchmarks/engine.py
    uv run python benchmarks/engine.py --model FOLDER --data FOLDER   # results/real_engine.json
    # a real model in an environment with vLLM, and the same with `inprocess`:
    ENV/bin/python -P benchmarks/engine.py --step-search vllm --data FOLDER

Both small models: the embedded student on real problems, and a random 3 M-parameter Llama. Prints,
at batch 1, 8, 32 and 64 (same prompts, same number of new tokens, every row runs to its end):

- tokens/s with the prompts' prefill, of the engine, of `generate`, and of re-prefilling;
- tokens/s of decoding alone: the time of all new tokens less the time of one new token;
- the floor: tokens/s if the linear layers' matrix products (torch.mm on their true shapes, head
  included) were all there is, and the share of it that the engine's decoding reaches. The products
  are torch's: a share may exceed 1;
- the share of the engine's step that is inside the model's forward, and which forward that was.

And of a step-level search: tokens computed a unique tree token. The fastest of the repeats counts,
and the ways take turns, so that a busy machine slows all of them. Ratios hold, absolute times are
this machine's.

A real model answers GSM8K questions, all at once, in fp32 and bfloat16, by wall clock and CPU time,
beside the floor in that precision; with --llama-bench and --gguf beside llama.cpp.

--step-search is `train`'s search over GSM8K questions with a real model in bfloat16, one thread,
over the in-process engine or behind vLLM with its prefix cache (`scripts/vllm_cpu.py --env-dir ENV`
makes ENV). CPU seconds count vLLM's processes, and each call adds its engine to the JSON. The
engines draw from random numbers of their own, so the trees are not the same: figures are by
simulation and by sampled token. The first round of questions warms up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.api.settings import configure_call  # noqa: E402
from alphazero_llm_trainer.config.load import Config, load_config  # noqa: E402
from alphazero_llm_trainer.config.sections import EngineConfig  # noqa: E402
from alphazero_llm_trainer.engine.inprocess import InProcessEngine  # noqa: E402
from alphazero_llm_trainer.engine.protocol import GenerateRequest  # noqa: E402
from alphazero_llm_trainer.engine.step_ends import StepEnds  # noqa: E402
from alphazero_llm_trainer.learning.collector import Collector  # noqa: E402
from alphazero_llm_trainer.learning.methods.by_name import method_of  # noqa: E402
from alphazero_llm_trainer.policy.backend import check_numerics  # noqa: E402
from alphazero_llm_trainer.policy.student import QUESTION, load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.types import Task  # noqa: E402
from benchmarks import provenance  # noqa: E402

NEW_TOKENS = 48
SEED = 7
BATCHES = (1, 8, 32, 64)


def told(row: dict[str, Any]) -> str:
    """The figures of a row as text."""
    return ", ".join(
        f"{key} {value:,.2f}" for key, value in row.items() if isinstance(value, float)
    )


def random_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(shape).eval()


CLOCK = time.perf_counter


def timed(
    ways: dict[str, Callable[[], None]], repeats: int, clock: Callable[[], float] | None = None
) -> dict[str, float]:
    """Seconds of the fastest of `repeats` calls of each way, by CLOCK where no clock is given; the
    ways take turns.
    """
    clock = CLOCK if clock is None else clock
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, call in ways.items():
            began = clock()
            call()
            best[name] = min(best[name], clock() - began)
    return best


def linear_layers(model: Any, batch: int, dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    """The matrix products of one decode step's linear layers, head included, and nothing else."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    weights = [layer.weight.detach().to(dtype).t() for layer in layers]
    pairs = [(torch.randn(batch, weight.shape[0]).to(dtype), weight) for weight in weights]

    def products() -> None:
        with torch.inference_mode():
            for rows, weight in pairs:
                torch.mm(rows, weight)

    return products


def hf_generate(model: Any, prompts: list[tuple[int, ...]], new_tokens: int) -> None:
    """Left-padded batch, sampled at temperature 1, exactly `new_tokens` tokens a row."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with torch.inference_mode():
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            pad_token_id=0,
        )


def reprefill(model: Any, prompts: list[tuple[int, ...]]) -> None:
    """The plain way without keys and values: the whole prefix is computed again for every token."""
    rows = [list(p) for p in prompts]
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            width = max(map(len, rows))
            ids = torch.tensor([[0] * (width - len(r)) + r for r in rows])
            mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
            last = model(input_ids=ids, attention_mask=mask, logits_to_keep=1).logits[:, -1]
            for row, token in zip(
                rows, torch.multinomial(last.softmax(-1), 1)[:, 0].tolist(), strict=True
            ):
                row.append(token)


def decode_table(
    name: str, model: Any, prompts: list[tuple[int, ...]], repeats: int, samples: int = 1
) -> list[dict[str, Any]]:
    """Tokens/s of the three ways at each batch size, as `batch / samples` prompts with `samples`
    responses each.
    """
    rows = []
    for batch in BATCHES:
        if batch < samples:
            continue
        distinct = prompts[: batch // samples]
        chosen = [prompt for prompt in distinct for _ in range(samples)]
        engines: list[InProcessEngine] = []

        def ours(new_tokens: int, distinct: list[tuple[int, ...]] = distinct) -> None:
            # A fresh engine: nothing is remembered from the run before. No end token, so that every
            # row runs to its end.
            engine = InProcessEngine(
                model,
                eos_id=-1,
                step_ends=StepEnds(frozenset()),
                settings=EngineConfig(cache_tokens=16_384),
            )
            requests = [
                GenerateRequest(p, n=samples, max_new_tokens=new_tokens, seed=i)
                for i, p in enumerate(distinct)
            ]
            asyncio.run(engine.generate(requests))
            engines.append(engine)

        seconds = timed(
            {
                "ours": lambda: ours(NEW_TOKENS),
                "ours, one token": lambda: ours(1),
                "hf_generate": lambda: hf_generate(model, chosen, NEW_TOKENS),
                "hf_generate, one token": lambda: hf_generate(model, chosen, 1),
            },
            repeats,
        )
        seconds |= timed({"reprefill": lambda: reprefill(model, chosen)}, 1)
        floor = batch / timed({"floor": linear_layers(model, batch)}, 20 * repeats)["floor"]
        tokens = batch * NEW_TOKENS
        row: dict[str, Any] = {"model": name, "batch": batch, "samples_a_prompt": samples}
        row["forward"] = engines[0].forward.name
        for way in ("ours", "hf_generate", "reprefill"):
            row[f"{way}_tokens_per_second"] = tokens / seconds[way]
        for way in ("ours", "hf_generate"):
            row[f"{way}_decode_tokens_per_second"] = (tokens - batch) / (
                seconds[way] - seconds[f"{way}, one token"]
            )
        row["floor_tokens_per_second"] = floor
        row["over_hf_generate"] = seconds["hf_generate"] / seconds["ours"]
        row["over_reprefill"] = seconds["reprefill"] / seconds["ours"]
        row["decode_over_hf_generate"] = (
            row["ours_decode_tokens_per_second"] / row["hf_generate_decode_tokens_per_second"]
        )
        row["share_of_floor"] = row["ours_decode_tokens_per_second"] / floor
        long = [engine.stats for engine in engines if engine.stats.forwards > 1]
        row["forward_share"] = sum(s.forward_seconds for s in long) / sum(
            s.step_seconds for s in long
        )
        rows.append(row)
        print(f"{name:20} {batch:5}", told(row), flush=True)
    return rows


def grown(student: Any, config: Config, tasks: list[Task], seed: int) -> list[Any]:
    """Trees of `train`'s search."""

    async def grow() -> list[Any]:
        keyed = [(task.problem.id, task) for task in tasks]
        collector = Collector(student, config, method_of(config.train.method), None)
        return [tree async for tree in collector.collect(keyed, seed)]

    return asyncio.run(grow())


def search_table(questions: int) -> dict[str, Any]:
    """A step-level search over many trees at once: what is computed against what the trees hold."""
    config = load_config(
        overrides=["student=embedded", "rewards.use_student_model=false", "search.simulations=15"]
    )
    student = load_student(config)
    tasks = load_tasks("embedded", "train", questions, start=5000)
    began = time.perf_counter()
    trees = grown(student, config, tasks, SEED)
    seconds = time.perf_counter() - began
    stats = student.engine.stats
    prompts = {student.prompt_ids(task.problem.question) for task in tasks}
    unique = sum(map(len, prompts)) + sum(sum(map(len, t.tree.token_ids)) for t in trees)
    sampled = sum(t.cost.sampled_tokens for t in trees)
    simulations = sum(t.tree.N[0] for t in trees)
    # Without any reuse every call would compute its prefix again, and every sample its own tokens.
    naive = sampled + sum(t.cost.prompt_tokens + t.cost.cached_tokens for t in trees)
    row = {
        "trees": questions,
        "simulations": simulations,
        "simulations_per_second": simulations / seconds,
        "sampled_tokens_per_second": sampled / seconds,
        "computed_per_unique_token": stats.computed_tokens / unique,
        "computed_per_simulation": stats.computed_tokens / simulations,
        "without_reuse_per_unique_token": naive / unique,
        "rows_per_forward": stats.rows / stats.forwards,
        "forward_share": stats.forward_seconds / seconds,
    }
    print("step-level search, embedded student:", told(row))
    return row


# -- a real model ----------------------------------------------------------------------------------

WAYS = {
    "kernels, bfloat16": {"dtype": "bfloat16"},
    "kernels, fp32": {"dtype": "float32"},
    "torch, fp32": {"native": "off"},
}


def measure(
    model: Any, prompts: list[tuple[int, ...]], new_tokens: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Seconds by clock and CPU of one fresh engine: nothing is remembered, and no token ends a
    response.
    """
    engine = InProcessEngine(
        model, eos_id=-1, step_ends=StepEnds(frozenset()), settings=EngineConfig(**settings)
    )
    requests = [
        GenerateRequest(prompt, max_new_tokens=new_tokens, seed=i)
        for i, prompt in enumerate(prompts)
    ]
    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(engine.generate(requests))
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "products": engine.facts["forward"]["products"],
        "forward": engine.stats.forward_seconds / engine.stats.step_seconds,
    }


def real_table(
    model: Any, prompts: list[tuple[int, ...]], new_tokens: int, repeats: int
) -> list[dict[str, Any]]:
    """A row of each way at one thread and at two."""
    rows, tokens = [], len(prompts) * new_tokens
    for threads in (1, 2):
        torch.set_num_threads(threads)
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(repeats):
            for way, settings in WAYS.items():
                runs[way].append(measure(model, prompts, new_tokens, settings))
        for way, found in runs.items():
            products = linear_layers(
                model, len(prompts), torch.bfloat16 if "bfloat16" in way else torch.float32
            )
            row = {
                "way": way,
                "threads": threads,
                "products": found[0]["products"],
                "tokens_per_cpu_second": tokens / min(one["cpu"] for one in found),
                "tokens_per_second": tokens / min(one["wall"] for one in found),
                "floor_tokens_per_cpu_second": len(prompts)
                / timed({"floor": products}, 10, time.process_time)["floor"],
                "forward_share": min(one["forward"] for one in found),
            }
            rows.append(row)
            print(f"{way:20} {threads} threads", told(row), flush=True)
    return rows


def llama_table(
    bench: Path, file: Path, batch: int, prompt: int, new_tokens: int
) -> list[dict[str, Any]]:
    """llama.cpp's own benchmark at one thread and at two: as many prompts of the mean length, and
    no log-probabilities.
    """
    rows = []
    for threads in (1, 2):
        context = batch * (prompt + new_tokens) + 64
        words = [
            "-m",
            file,
            "-c",
            context,
            "-npp",
            prompt,
            "-ntg",
            new_tokens,
            "-npl",
            batch,
            "-ub",
            512,
            "-t",
            threads,
        ]
        told = subprocess.run(
            [bench, *map(str, words), "--output-format", "jsonl"],
            capture_output=True,
            text=True,
            check=False,
        )
        # Its build of some formats ends with an illegal instruction on some processors.
        if told.returncode:
            print(f"llama.cpp ended with {told.returncode} on {file.name}: left out", flush=True)
            continue
        found = json.loads(next(line for line in told.stdout.splitlines() if line.startswith("{")))
        tokens = batch * new_tokens
        rates = {
            "tokens_per_second": tokens / found["t"],
            "decoding_tokens_per_second": found["speed_tg"],
        }
        rows.append({"way": f"llama.cpp, {file.stem}", "threads": threads, **rates})
        print(f"llama.cpp {threads} threads", found, flush=True)
    return rows


def of_a_real_model(args: argparse.Namespace) -> None:
    """The engine on the model in --model."""
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)

    def prompt(question: str) -> tuple[int, ...]:
        turn = [{"role": "user", "content": question}]
        return tuple(
            tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ]
        )

    tasks = load_tasks("gsm8k", "test", 32, path=args.data)
    prompts = [prompt(task.problem.question) for task in tasks]
    rows = real_table(model, prompts, 2 * NEW_TOKENS, args.repeats)
    if args.llama_bench:
        mean = sum(map(len, prompts)) // len(prompts)
        for file in args.gguf:
            rows += llama_table(args.llama_bench, file, len(prompts), mean, 2 * NEW_TOKENS)
    engine = InProcessEngine(
        model, eos_id=-1, step_ends=StepEnds(frozenset()), settings=EngineConfig(dtype="bfloat16")
    )
    result = {
        "model": args.model.name, "parameters": model.num_parameters(), "torch": torch.__version__,
        "questions": len(prompts), "prompt_tokens": sum(map(len, prompts)),
        "new_tokens": 2 * NEW_TOKENS, "rows": rows,
        # bfloat16's log-probabilities against the model's forward in fp32, nats
        "numerics": check_numerics(engine, model, prompt(QUESTION)),
    }  # fmt: skip
    provenance.write(args.out or provenance.RESULTS / "real_engine.json", result)


# -- a step search of a real model, over either engine ---------------------------------------------


def cpu_seconds() -> float:
    """Of this process and those that it started."""
    import psutil

    me = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in [me, *me.children(recursive=True)])


def step_search(args: argparse.Namespace) -> None:
    """Sums over the rounds of one engine, added to what --out has of the other."""
    from scripts.vllm_cpu import SETTINGS

    os.environ |= SETTINGS
    backend, model = args.step_search, str(args.model or "smollm2-135m")
    keys: dict[str, Any] = {"rewards.use_student_model": False, "search.simulations": 12}
    keys |= {"engine.backend": backend}
    if backend == "inprocess":
        keys["engine.dtype"] = "bfloat16"
    if backend == "vllm" and args.model is None:  # a folder's weights are what its config.json says
        keys[f"models.{model}.dtype"] = "bfloat16"
    config, folder = configure_call(model, keys, {})
    student: Any = load_student(config, path=folder)
    torch.set_num_threads(1)  # a real model's student takes all cores
    found: dict[str, float] = {}
    questions = min(args.trees, 8)
    for number in range(args.repeats):
        tasks = load_tasks("gsm8k", "test", questions, start=questions * number, path=args.data)
        cpu, wall = cpu_seconds(), time.perf_counter()
        trees = grown(student, config, tasks, SEED + number)
        row = {"cpu_seconds": cpu_seconds() - cpu, "seconds": time.perf_counter() - wall}
        row |= {"simulations": sum(int(one.tree.N[0]) for one in trees)}
        row |= {"tokens": sum(one.cost.sampled_tokens for one in trees)}
        found = {key: found.get(key, 0) + value for key, value in row.items()} if number else {}
    if backend == "vllm":
        student.engine.close()
    rates = {
        f"{key}_per_cpu_second": found[key] / found["cpu_seconds"]
        for key in ("simulations", "tokens")
    }
    out = args.out or provenance.RESULTS / "step_search_vllm.json"
    engines = json.loads(out.read_text())["engines"] if out.exists() else {}
    engines[backend] = found | rates
    result = {
        "model": Path(model).name,
        "dtype": "bfloat16",
        "questions": questions,
        "simulations": 12,
        "rounds": args.repeats - 1,
    }
    result |= {"seed": SEED, "engines": engines}
    if len(engines) == 2:
        result["ratios"] = {key: engines["inprocess"][key] / engines["vllm"][key] for key in rates}
    provenance.write(out, result)
    print(backend, told(engines[backend]))


def main() -> None:
    parser = provenance.make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trees", type=int, default=96)
    parser.add_argument(
        "--model", type=Path, help="a model's folder, with a chat template: measure it alone"
    )
    parser.add_argument("--data", help="a folder with gsm8k/test.jsonl, for --model")
    parser.add_argument(
        "--llama-bench",
        type=Path,
        help="llama.cpp's llama-batched-bench, built here: beside it, for --model",
    )
    parser.add_argument(
        "--gguf", type=Path, nargs="+", help="the model for it, in one precision or more"
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the process's CPU seconds (on a busy machine)",
    )
    parser.add_argument(
        "--step-search",
        choices=["inprocess", "vllm"],
        help="measure a step search over this engine alone",
    )
    args = parser.parse_args()
    if args.step_search:
        step_search(args)
        return
    if args.cpu_time:
        global CLOCK  # noqa: PLW0603
        CLOCK = time.process_time
    if args.model:
        of_a_real_model(args)
        return
    torch.set_num_threads(args.threads)
    student = load_student(load_config(overrides=["student=embedded"]))
    prompts = [
        student.prompt_ids(t.problem.question)
        for t in load_tasks("embedded", "train", 64, start=5000)
    ]
    print(f"{NEW_TOKENS} new tokens a row, {args.threads} thread(s)")
    decode = decode_table("embedded", student.model, prompts, args.repeats)
    decode += decode_table("embedded, 8 a prompt", student.model, prompts, args.repeats, samples=8)
    generator = torch.Generator().manual_seed(1)
    random_prompts = [
        tuple(torch.randint(2, 512, (60,), generator=generator).tolist()) for _ in range(64)
    ]
    decode += decode_table("random Llama 3 M", random_llama(), random_prompts, args.repeats)
    search = search_table(args.trees)
    result = {"torch": torch.__version__, "decode": decode, "search": search}
    provenance.write(args.out or provenance.RESULTS / "engine.json", result)


if __name__ == "__main__":
    main()
