"""`info --plan --machine 8xh100-80`: who runs where, in how much memory, for how many hours and dollars. Nothing is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config.load import Config, merge, resolve_name, validate
from ..config.machines import Machine, Machines, parse_machine, read_machines
from ..errors import ConfigError
from ..problems.source import open_source
from ..training.machine import Placement, Rates, Work, hours
from ..training.memory import GIB, Forecast
from ..training.size import RunSize
from .base import print_json
from .plan import find_shape, memory_facts, memory_table

ESTIMATES = "estimates from data sheets and assumed shares of them: nothing of this was measured on a GPU"
ENGINE_SHARE = 0.9  # of a card that a vLLM server takes (engine.vllm.gpu_memory's usual value there)
APART = {"engine": {"backend": "vllm-server"}}


def forecast_of(config: Config, name: str, prompt: int | None, memory: int, shards: int = 1) -> tuple[Forecast, str]:
    """The memory forecast of a CUDA card with so many bytes, and where the shape was read. Raises ConfigError without one."""
    spec = config.models[name]
    found = find_shape(config, spec)
    if found is None:
        raise ConfigError(
            f"student {name} has no shape to plan with: add models.{name}.shape, or download its config.json first"
        )
    shape, source = found
    longest = open_source(config).prompt_tokens if prompt is None else prompt
    return Forecast(config, spec, shape, "cuda", longest, memory, shards), source


def placements(config: Config, machine: Machine, table: Machines, prompt: int | None) -> list[Placement]:
    """The ways a run can use the machine, the quickest that fits first."""
    name = resolve_name(config)
    memory = int(machine.memory * GIB)
    forecast, _ = forecast_of(config, name, prompt, memory)
    work = Work.of(forecast, RunSize.of(config))
    plan = forecast.plan(memory)
    backend = "inprocess" if config.engine.backend == "inprocess" else "vllm"
    one = Placement("one card", "train: search and training share it", 1, 1, plan.peak / GIB, plan.fits, {})
    found = [(one, backend)]
    batch = config.train.settings.batch_size
    if machine.count > 1 and batch % machine.count == 0 and config.train.method != "ppo" and backend == "inprocess":
        how = f"accelerate launch --num_processes {machine.count} train_vllm.py: each searches its share and trains under DDP"
        copies = plan.peak / GIB + (forecast.trained * sum(forecast.trained_parameters)) / GIB  # DDP's gradient buckets
        ranks = Placement("ranks", how, machine.count, machine.count, copies, copies <= machine.memory, {})
        found.append((ranks, backend))
        if not forecast.lora and not forecast.quantised:
            parts, _ = forecast_of(config, name, prompt, memory, machine.count)
            each = parts.plan(memory)
            how = f"accelerate launch --config_file examples/accelerate_fsdp.yaml --num_processes {machine.count} train_vllm.py"
            sharded = Placement("sharded", how, machine.count, machine.count, each.peak / GIB, each.fits, {})
            found.append((sharded, backend))
    if machine.count > 1 and forecast.lora:
        # A server takes new adapters and no new weights.
        apart, _ = forecast_of(validate(merge(config.model_dump(), APART)), name, prompt, memory)
        needs, rest = apart.plan(memory), machine.count - 1
        served = forecast.counts.whole * forecast.width + forecast.rows * forecast.length * forecast.token_bytes
        fits = needs.fits and served <= ENGINE_SHARE * memory
        how = f"train on one card, a vLLM server on {rest} (engine.backend=vllm-server; --data-parallel-size {rest})"
        found.append((Placement("apart", how, rest, 1, max(needs.peak, served) / GIB, fits, {}), "vllm"))
    if machine.card is not None:
        found = [
            (replace(p, hours=hours(work, Rates.of(forecast, machine, table, b), p.engines, p.trainers)), b)
            for p, b in found
        ]
    return sorted((p for p, _ in found), key=lambda p: (not p.fits, p.total))


def print_machine(
    config: Config, text: str, dollars: float | None, prompt: int | None = None, as_json: bool = False
) -> None:
    """The memory of a card, then every placement with its hours and dollars."""
    table = read_machines()
    machine = parse_machine(text, table)
    name = resolve_name(config)
    memory = int(machine.memory * GIB)
    forecast, source = forecast_of(config, name, prompt, memory)
    plan = forecast.plan(memory)
    found, card = placements(config, machine, table, prompt), machine.card
    price = dollars if dollars is not None or card is None else card.dollars
    work = Work.of(forecast, RunSize.of(config))
    backends = ("inprocess", "vllm")
    rates = {} if card is None else {b: Rates.of(forecast, machine, table, b) for b in backends}
    if as_json:
        print_json(
            {
                "machine": machine.name,
                "note": ESTIMATES,
                "card": None if card is None else card.model_dump(),
                "dollars_a_card_hour": price,
                "tokens": {name: getattr(work, name) for name in Work.__slots__},
                "tokens_a_second": {b: {n: getattr(r, n) for n in Rates.__slots__} for b, r in rates.items()},
                "memory": memory_facts(plan, source),
                "placements": [p.as_dict(price, machine.count) for p in found],
            }
        )
        return
    print(f"machine {machine.name}: {ESTIMATES}")
    if card is None:
        print("  hours and dollars: name a card (such as 4090 or h100-80) to have them")
    else:
        print(f"  a card: {card.tflops:g} TFLOP/s, {card.gb_s:,.0f} GB/s ({card.source})")
        for backend, rate in rates.items():
            print(f"  {backend:9} {rate.decode:10,.0f} tokens a second sampled ({forecast.rows} rows at once)")
        rate = rates[backends[0]]
        print(f"  {'trainer':9} {rate.train:10,.0f} tokens a second trained, {rate.score:,.0f} scored")
    print(
        f"run: at most {work.sampled:,} tokens sampled, {work.scored:,} scored, {work.evaluated:,} in evaluation,"
        f" {work.trained:,} trained ({config.train.method})"
    )
    for placement in found:
        print(placement_line(placement, machine, price))
    print(memory_table(plan, source).replace("memory on cuda", "memory of one card that does all"))


def placement_line(placement: Placement, machine: Machine, price: float | None) -> str:
    """A placement in one or two lines."""
    verdict = "fits" if placement.fits else "does NOT fit"
    lines = [
        f"{placement.name}: {placement.how}",
        f"  {placement.needs:.1f} of {machine.memory:g} GiB on the fullest card: {verdict}",
    ]
    if placement.hours:
        parts = ", ".join(f"{phase} {value:.2f}" for phase, value in placement.hours.items())
        facts: dict[str, Any] = placement.as_dict(price, machine.count)
        money = "dollars unknown: add --dollars" if facts["dollars"] is None else f"${facts['dollars']:,.2f}"
        lines.append(f"  {placement.total:.2f} hours ({parts}), {money}")
    return "\n".join(lines)
