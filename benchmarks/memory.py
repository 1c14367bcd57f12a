"""The memory planner against real peaks, on the CPU.

    uv run python benchmarks/memory.py

Random Llamas of three sizes, trained whole in fp32 and as NF4 with LoRA, go through load -> tree search -> GRPO updates,
each in a process of its own, with activations kept and with them computed again (gradient checkpointing); or through load ->
tree search -> the training of a value network or a process reward model on the trees, with made-up grades. The peak of a
phase is the most that torch's allocator had handed out at once, summed from the profiler's record of every allocation: the
CPU's counterpart of `torch.cuda.max_memory_allocated`, which is what the planner forecasts. The process's resident peak is
printed beside it; it also holds the interpreter, its libraries and the profiler's own record, keeps what the C library does
of freed blocks, and lacks reserved pages that nobody touched. Prints forecast / real a phase, whole and of what the phase
adds to the loaded model; the search is the second round's, with the optimiser's states there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.cli.plan import read_shape  # noqa: E402
from alphazero_llm_trainer.config.load import Config, load_config  # noqa: E402
from alphazero_llm_trainer.training.judge_memory import EXTRA_LAYERS, JudgeForecast  # noqa: E402
from alphazero_llm_trainer.training.memory import AFTER_LOAD, PHASES, Forecast  # noqa: E402
from benchmarks import provenance  # noqa: E402

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden": 128, "layers": 2, "inner": 256, "heads": 2, "kv_heads": 1, "words": 512, "tied": True},
    "20M": {"hidden": 384, "layers": 10, "inner": 1024, "heads": 6, "kv_heads": 2, "words": 8192, "tied": True},
    "60M": {"hidden": 512, "layers": 14, "inner": 1536, "heads": 8, "kv_heads": 8, "words": 8192, "tied": False},
    "120M": {"hidden": 768, "layers": 14, "inner": 2048, "heads": 12, "kv_heads": 4, "words": 32000, "tied": True},
}
WHOLE = {"adapter": "full", "quantization": "none", "dtype": "float32"}
NF4 = {"adapter": "lora", "quantization": "nf4", "dtype": "bfloat16"}
# What is trained, and whether activations are kept or computed again.
ARMS = {"full": (WHOLE, "off"), "full, again": (WHOLE, "on"), "nf4": (NF4, "off"), "nf4, again": (NF4, "on")}
JUDGES = {"value": (WHOLE, "off"), "value, nf4": (NF4, "on"), "prm": (WHOLE, "off"), "prm, nf4": (NF4, "on")}
ARMS |= JUDGES
HEAD_DIM, BATCH = 64, 4


def build(size: str, dtype: str, folder: Path) -> None:
    """A random Llama with the embedded student's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from alphazero_llm_trainer.policy.student import PACKAGED

    given = SIZES[size]
    torch.manual_seed(0)
    shape = LlamaConfig(
        hidden_size=given["hidden"],
        num_hidden_layers=given["layers"],
        intermediate_size=given["inner"],
        num_attention_heads=given["heads"],
        num_key_value_heads=given["kv_heads"],
        head_dim=HEAD_DIM,
        vocab_size=given["words"],
        tie_word_embeddings=given["tied"],
        max_position_embeddings=1024,
    )
    LlamaForCausalLM(shape).to(getattr(torch, dtype)).save_pretrained(folder)
    for file in PACKAGED.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            shutil.copy(file, folder)


def configuration(arm: str, folder: Path, overrides: list[str]) -> Config:
    """Torch's forwards, as on a GPU: the C kernels allocate past torch."""
    judge = {"batch_size": BATCH, "epochs": 3, "evaluate_every": 1, "collect": {"iterations": 2, "samples": 4}}
    return load_config(
        overrides=[
            {
                "models": {"random": {"path": str(folder), "cpu": True, **ARMS[arm][0]}},
                "student": "random",
                "engine": {"native": "off", "max_context": 512, "cache_tokens": 8192, "max_batch": 32},
                "rewards": {"use_student_model": False},
                "search": {"max_tokens": 160, "concurrent": 8, "samples": 4},
                "train": {"iterations": 2, "samples": 4, "extend": "none", "eval_size": 0, "validation_size": 0},
            },
            {
                "train": {
                    "gradient_checkpointing": ARMS[arm][1],
                    "grpo": {"batch_size": BATCH, "epochs": 1, "pack": "off"},
                    "value": judge,
                    "prm": judge,
                }
            },
            *overrides,
        ]
    )


def child(arm: str, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Load, search, train under the profiler; peaks in bytes."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from alphazero_llm_trainer.collect import Collector
    from alphazero_llm_trainer.policy.student import load_student
    from alphazero_llm_trainer.problems.load import load_tasks
    from alphazero_llm_trainer.training.models import make_trainable

    config = configuration(arm, folder, overrides)
    tasks = load_tasks("embedded", "train", config.search.concurrent)
    resident = {}

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        forget_peak()
        with record_function("phase load"):
            student = load_student(config)
        resident["load"] = resident_peak()
        with record_function("phase search" if arm in JUDGES else "phase first search"):
            if arm not in JUDGES:
                model = make_trainable(student.model, student.spec, student.spec.adapter)
                student.model.eval()
                student.engine.set_policy(None, 0)
            collector = Collector(student, config, None)

            async def grow() -> list[Any]:
                return [tree async for tree in collector.collect([(t.problem.id, t) for t in tasks], config.seed)]

            trees = asyncio.run(grow())
            student.engine.rest()
        resident["search"] = resident_peak()
        with record_function("phase train"):
            if arm in JUDGES:
                lengths = train_judge(arm, student, config, trees, folder)
            else:
                lengths, trainer = train_policy(model, student, config, trees, folder)
        resident["train"] = resident_peak()
        if arm not in JUDGES:
            with record_function("phase search"):  # of the second round: the optimiser's states are there now
                student.model.eval()
                student.engine.set_policy(None, 1)
                asyncio.run(grow())
            resident["search"] = resident_peak()
            del trainer
    peaks = allocated(record.profiler.kineto_results.events())
    return {**lengths, "allocated": peaks, "resident": resident, "threads": torch.get_num_threads()}


def train_policy(
    model: Any, student: Any, config: Config, trees: list[Any], folder: Path
) -> tuple[dict[str, int], Any]:
    """Two GRPO updates on the longest responses; their prompts' and rows' longest, in tokens, and the trainer."""
    from alphazero_llm_trainer.mcts.extract import trajectories
    from alphazero_llm_trainer.training.grpo import make_grpo_trainer
    from alphazero_llm_trainer.training.models import Economy
    from alphazero_llm_trainer.training.rows import TrainRow

    rows = []
    for tree in trees:
        for found in trajectories(tree.tree):
            sign = 1.0 if len(rows) % 2 else -1.0
            silent = (sign,) * len(found.token_ids)
            rows.append(TrainRow(tree.prompt_ids, found.token_ids, found.logprobs, silent))
    rows = sorted(rows, key=lambda row: -len(row.prompt_ids) - len(row.completion_ids))[:BATCH]
    student.model.train()
    trainer = make_grpo_trainer(
        model,
        student.tokenizer,
        config.train.grpo,
        rounds=2,
        rows_per_round=BATCH,
        rows_of_round=lambda number: rows,
        output_dir=folder / "run",
        save_every_rounds=100,
        seed=config.seed,
        max_completion=config.search.max_tokens,
        economy=Economy.of(config, student.spec),
    )
    trainer.train()
    prompt = max(len(row.prompt_ids) for row in rows)
    return {"prompt": prompt, "length": max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)}, trainer


def train_judge(arm: str, student: Any, config: Config, trees: list[Any], folder: Path) -> dict[str, int]:
    """Three updates of a judge on trees with made-up grades; the longest prompt and packed tree, in tokens."""
    from alphazero_llm_trainer.mcts.extract import trajectories
    from alphazero_llm_trainer.training import prm, value
    from alphazero_llm_trainer.training.models import bare, checkpoint_layers, make_trainable
    from alphazero_llm_trainer.training.rows import pack_values

    settings: Any = config.train.value if arm.startswith("value") else config.train.prm
    rows: list[Any] = []
    for number, tree in enumerate(trees):
        found = [response.token_ids for response in trajectories(tree.tree)]
        if arm.startswith("value"):
            rows.append(pack_values(str(number), tree.prompt_ids, [(ids, i % 2, 1.0) for i, ids in enumerate(found)]))
        else:
            steps = [prm.LabelledStep((), ids, i % 2) for i, ids in enumerate(found)]
            pairs = [prm.StepPair((), good, bad) for bad, good in zip(found[::2], found[1::2], strict=False)]
            rows.append(prm.pack_steps(str(number), tree.prompt_ids, steps, pairs))
    rows.sort(key=lambda row: -len(row.token_ids))
    parts = rows[:BATCH], rows[BATCH:]
    if arm.startswith("value"):
        if "nf4" in arm:
            network = value.adapter_network(student.model, student.spec.lora)
            checkpoint_layers(bare(network))
        else:
            network = make_trainable(
                value.new_network(student.model, EXTRA_LAYERS), student.spec, "full", task="TOKEN_CLS"
            )
        value.train_network(network, *parts, settings, out_dir=folder / "run", seed=config.seed)
    else:
        if "nf4" in arm:
            scorer = prm.adapter_scorer(student.model, settings.kind, settings, student.spec.lora)
            checkpoint_layers(scorer.bare)
        else:
            scorer = prm.new_scorer(student.model, settings.kind, settings, 0)
        prm.train_scorer(scorer, settings.kind, *parts, settings, out_dir=folder / "run", seed=config.seed)
    prompt = max(len(tree.prompt_ids) for tree in trees)
    return {"prompt": prompt, "length": len(rows[0].token_ids)}


def allocated(events: Any) -> dict[str, int]:
    """The most bytes that torch held in each phase."""
    phases = sorted((e.start_ns(), e.name().removeprefix("phase ")) for e in events if e.name().startswith("phase "))
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held, at, phase, peaks = 0, 0, "before", {"before": 0}
    for moment, change in changes:
        while at < len(phases) and phases[at][0] <= moment:
            phase, at = phases[at][1], at + 1
            peaks[phase] = held
        held += change
        peaks[phase] = max(peaks[phase], held)
    return {phase: peaks[phase] for phase in PHASES}


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def resident_peak() -> int:
    """Bytes of the resident peak since the last call."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    forget_peak()
    return peak * 1024


def measure(size: str, arm: str, overrides: list[str]) -> dict[str, Any]:
    """One model's forecast and peaks, from a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build(size, ARMS[arm][0]["dtype"], folder)
        command = [sys.executable, __file__, "--child", arm, str(folder), *overrides]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.stderr.write(done.stderr)
            raise SystemExit(done.returncode)
        real = json.loads(done.stdout.splitlines()[-1])
        config = configuration(arm, folder, overrides)
        shape = read_shape(folder / "config.json")
        assert shape is not None
        spec = config.models["random"]
        # The rows that were trained on, not the longest that there could have been.
        if arm in JUDGES:
            judge: Any = arm.partition(",")[0]
            forecast: Forecast = JudgeForecast(judge, config, spec, shape, "cpu", real["prompt"], tree=real["length"])
        else:
            config = configuration(arm, folder, [*overrides, f"search.max_tokens={real['length'] - real['prompt']}"])
            forecast = Forecast(config, spec, shape, "cpu", real["prompt"])
        plan = forecast.plan(1 << 40)
    row: dict[str, Any] = {"size": size, "arm": arm, "overrides": overrides, **real}
    row["forecast"] = {phase: round(plan.allocated(phase)) for phase in PHASES}
    row["ratio"] = {phase: row["forecast"][phase] / real["allocated"][phase] for phase in PHASES}
    grown = {phase: plan.allocated(phase) - plan.allocated("load") for phase in AFTER_LOAD}
    row["ratio_over_load"] = {
        phase: grown[phase] / (real["allocated"][phase] - real["allocated"]["load"]) for phase in AFTER_LOAD
    }
    row["parts"] = [[part.name, round(part.size), list(part.phases)] for part in plan.parts]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["20M", "60M", "120M"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "memory.json")
    parser.add_argument("--add", action="store_true", help="keep the rows of --out that are not measured again")
    parser.add_argument("--parts", action="store_true", help="print the forecast's parts too")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        arm, folder, *overrides = args.child
        print(json.dumps(child(arm, Path(folder), overrides)))
        return
    heads = " ".join(f"{head:>10}" for head in ("forecast", "real", "ratio", "over load", "resident"))
    print(f"{'model':8} {'trained':12} {'phase':8} {heads}   (MiB)")
    asked = [(size, arm) for size in args.sizes for arm in args.arms]
    rows = json.loads(args.out.read_text())["rows"] if args.add else []
    rows = [row for row in rows if (row["size"], row["arm"]) not in asked]
    for size in args.sizes:
        for arm in args.arms:
            row = measure(size, arm, args.overrides)
            rows.append(row)
            for phase in PHASES:
                print(
                    f"{size:8} {arm:12} {phase:8} {row['forecast'][phase] / 2**20:10,.1f}"
                    f" {row['allocated'][phase] / 2**20:10,.1f} {row['ratio'][phase]:10.2f}"
                    f" {row['ratio_over_load'].get(phase, 1):10.2f}"
                    f" {row['resident'][phase] / 2**20:10,.1f}",
                    flush=True,
                )
            if args.parts:
                for name, size_bytes, phases in row["parts"]:
                    print(f"    {name:22} {size_bytes / 2**20:10,.1f} {' '.join(phases)}")
            keep(args.out, rows)
    print(f"worst: {worst(rows):.0%} off")


def worst(rows: list[dict[str, Any]]) -> float:
    """The forecast's largest share off."""
    return max(abs(ratio - 1) for row in rows for ratio in row["ratio"].values())


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write what was measured so far."""
    command = f"uv run python benchmarks/memory.py {shlex.join(sys.argv[1:])}"
    provenance.write(path, "memory", {"command": command, "rows": rows, "worst": worst(rows)})


if __name__ == "__main__":
    main()
