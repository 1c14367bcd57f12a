"""The plan's tokens a second against measured ones, on the CPU.

    uv run python benchmarks/plan_rates.py

`info --plan --machine` reckons from a device's peak, its memory's bandwidth and the share of them that a phase reaches. Here
both are measured on one thread of a CPU (a matrix product, a copy), the shares are fitted on the smallest of three random
Llamas in fp32, and the same formulas then forecast the two others: decoding of 32 rows at once and of one, scoring, and a
forward with its backward. Seconds are CPU seconds; the best of three repeats counts, as other work runs beside. Prints
forecast / real. It says how well the formulas carry over sizes. It says nothing of a GPU's shares, which nobody measured here.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from memory import SIZES, build, configuration  # noqa: E402

from alphazero_llm_trainer.cli.plan import read_shape  # noqa: E402
from alphazero_llm_trainer.config.machines import Card, Machine, Machines, Shares, StepMs  # noqa: E402
from alphazero_llm_trainer.engine.protocol import GenerateRequest  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.training.machine import Rates  # noqa: E402
from alphazero_llm_trainer.training.memory import Forecast  # noqa: E402
from benchmarks import provenance  # noqa: E402

PROMPT, NEW, REPEATS = 48, 64, 3
ROWS = {"decode, 32 rows": 32, "decode, 1 row": 1}
PHASES = (*ROWS, "score", "train")
NO_STEP = StepMs(inprocess=1e-6, vllm=1e-6)  # on a CPU nothing is launched


def cpu_seconds(work: Callable[[], Any]) -> float:
    """The least of the repeats, after one that isn't counted."""
    work()
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def peaks() -> tuple[float, float]:
    """TFLOP/s of a matrix product in fp32 and GB/s of reading memory, one thread."""
    a, b = torch.randn(512, 1024), torch.randn(1024, 2048)
    product = cpu_seconds(lambda: [a @ b for _ in range(20)])
    long = torch.randn(1 << 26)
    return 20 * 2 * 512 * 1024 * 2048 / product / 1e12, long.numel() * 4 / cpu_seconds(long.sum) / 1e9


def measure(size: str) -> tuple[dict[str, float], dict[str, Forecast]]:
    """Tokens a CPU second of each phase, and the forecast that goes with it."""
    real: dict[str, float] = {}
    planned: dict[str, Forecast] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build(size, "float32", folder)
        shape = read_shape(folder / "config.json")
        assert shape is not None
        for phase, rows in ROWS.items():
            few = [] if rows > 1 else ["search.concurrent=1", "search.samples=1", "train.samples=1"]
            config = configuration("full", folder, [*few, f"search.max_tokens={NEW}"])
            planned[phase] = Forecast(config, config.models["random"], shape, "cpu", PROMPT)
            assert planned[phase].rows == rows
        planned["score"] = planned["train"] = planned["decode, 32 rows"]
        student = load_student(configuration("full", folder, []))
        engine, words = student.engine, shape.vocabulary
        ids = [tuple((7 * i + row) % (words - 200) + 150 for i in range(PROMPT)) for row in range(32)]
        for phase, rows in ROWS.items():
            wanted = [GenerateRequest(ids[row], max_new_tokens=NEW, temperature=1.0, seed=row) for row in range(rows)]
            made: list[int] = []

            def sampled(wanted: Any = wanted, made: Any = made) -> None:
                engine.forget()
                found = asyncio.run(engine.generate(wanted))
                made.append(sum(len(one.token_ids) for [one] in found))

            taken = cpu_seconds(sampled)
            real[phase] = min(made) / taken
        pairs = [(ids[row], ids[-row]) for row in range(1, 17)]

        def scored() -> None:
            engine.forget()
            asyncio.run(engine.score(pairs))

        real["score"] = sum(len(p) + len(r) for p, r in pairs) / cpu_seconds(scored)
        batch = torch.tensor([prompt + prompt for prompt in ids[:8]])

        def trained() -> None:
            student.model.zero_grad()
            student.model(input_ids=batch, labels=batch).loss.backward()

        student.model.train()
        real["train"] = batch.numel() / cpu_seconds(trained)
        engine.close()
    return real, planned


def forecast(planned: dict[str, Forecast], card: Card, shares: Shares) -> dict[str, float]:
    """Tokens a second of each phase, from the plan's own formulas."""
    table = Machines(shares=shares, step_ms_per_layer=NO_STEP, cards={"cpu": card})
    machine = Machine("this CPU", 1, 8, card)
    rates = {phase: Rates.of(one, machine, table, "inprocess") for phase, one in planned.items()}
    return {p: {"score": r.score, "train": r.train}.get(p, r.decode) for p, r in rates.items()}


def fitted(real: dict[str, float], planned: dict[str, Forecast], card: Card) -> Shares:
    """The shares with which the formulas give what was measured."""
    whole = Shares(train=1.0, forward=1.0, decode=1.0, bandwidth=1.0)
    shares: dict[str, float] = {}
    named = {"train": "train", "forward": "score", "decode": "decode, 32 rows", "bandwidth": "decode, 1 row"}
    for name, phase in named.items():
        # The other share of decoding is left out of the way while one is fitted.
        aside = {"decode": {"bandwidth": 1e6}, "bandwidth": {"decode": 1e6}}.get(name, {})
        shares[name] = real[phase] / forecast(planned, card, whole.model_copy(update=aside))[phase]
    return Shares(**shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["20M", "60M", "120M"])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "plan_rates.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tflops, gb_s = peaks()
    card = Card(memory=8, tflops=tflops, gb_s=gb_s, source="measured here")
    print(f"one thread: {tflops * 1e3:.0f} GFLOP/s in fp32, {gb_s:.1f} GB/s read")
    rows: list[dict[str, Any]] = []
    shares: Shares | None = None
    for size in args.sizes:
        real, planned = measure(size)
        shares = fitted(real, planned, card) if shares is None else shares
        made = forecast(planned, card, shares)
        ratio = {phase: made[phase] / real[phase] for phase in PHASES}
        rows.append({"size": size, "fitted": not rows, "real": real, "forecast": made, "ratio": ratio})
        for phase in PHASES:
            print(f"{size:6} {phase:16} {made[phase]:10,.0f} {real[phase]:10,.0f} {ratio[phase]:6.2f}", flush=True)
    assert shares is not None
    worst = max((abs(r - 1) for row in rows[1:] for r in row["ratio"].values()), default=0.0)
    result = {
        "command": "uv run python " + " ".join(["benchmarks/plan_rates.py", *sys.argv[1:]]),
        "threads": 1,
        "gflops": tflops * 1e3,
        "gb_s": gb_s,
        "shares": shares.model_dump(),
        "rows": rows,
        "worst": worst,
    }
    provenance.write(args.out, "plan_rates", result)
    print(f"shares fitted on {args.sizes[0]}: {shares.model_dump()}; worst of the others: {worst:.0%} off")


if __name__ == "__main__":
    main()
