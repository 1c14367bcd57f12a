"""Pages of speed and memory: engines, training steps, plans."""

from __future__ import annotations

from typing import Any

from .page import (
    FIXED,
    RATIOS,
    REPOSITORY,
    TINY,
    Page,
    Row,
    command,
    judged,
    listed,
    load,
    seeds_of,
    share,
    table,
)


def engine(data: Row) -> Page:
    found = data["search"]
    best = next(row for row in data["decode"] if row["batch"] == 32)
    rows = (
        row | {"name": row["model"] + (f", {row['samples_a_prompt']} a prompt" if row["samples_a_prompt"] > 1 else "")}
        for row in data["decode"]
    )
    columns = {
        "model": "{name}",
        "batch": "{batch}",
        "engine": "{ours_tokens_per_second:,.0f}",
        "`generate`": "{hf_generate_tokens_per_second:,.0f}",
        "ratio": "{over_hf_generate:.1f}x",
        "decoding only: ratio": "{decode_over_hf_generate:.1f}x",
        "of the floor": "{share_of_floor:.0%}",
        "over re-prefill": "{over_reprefill:.0f}x",
    }
    return Page(
        "The in-process engine against `generate`",
        f"{best['over_hf_generate']:.1f} times Hugging Face `generate` at batch 32, on one CPU thread",
        "Tokens a second of CPU time for 48 new tokens a row, prompts included. The floor is the time of the linear layers'"
        " matrix products alone, as PyTorch computes them at that batch; a share above 100% means that the engine's own"
        " kernels are faster than those.",
        {
            "Problems": "embedded prompts, or random tokens for the random Llama",
            "Seeds": FIXED,
            "Tokens": "48 new tokens a row",
            "Threads": "1",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"A step-level search of {found['trees']} trees runs {found['simulations_per_second']:,.0f} simulations a second,"
            f" samples {found['sampled_tokens_per_second']:,.0f} tokens a second and computes"
            f" {found['computed_per_unique_token']:.2f} tokens a distinct tree token"
            f" ({found['without_reuse_per_unique_token']:.1f} without reuse).",
        ],
        ["Measured on a CPU. On CUDA the engine runs PyTorch's forward; nothing was measured there.", RATIOS],
    )


def real_engine(data: Row) -> Page:
    rows, gaps = data["rows"], data["numerics"]
    one = {row["way"]: row for row in rows if row["threads"] == 1}
    ratio = one["kernels, bfloat16"]["tokens_per_cpu_second"] / one["kernels, fp32"]["tokens_per_cpu_second"]
    columns = {
        "forward": "{way}",
        "threads": "{threads}",
        "tokens a CPU second": "{tokens_per_cpu_second:,.0f}",
        "tokens a second": "{tokens_per_second:,.0f}",
        "floor: products alone, tokens a CPU second": "{floor_tokens_per_cpu_second:,.0f}",
        "floor, GFLOP/s a CPU second": "{floor_gflops:,.0f}",
    }
    return Page(
        "The engine on a real model",
        f"{data['parameters'] / 1e6:.0f} M parameters: bfloat16 is {ratio:.1f} times as fast as fp32 on one CPU thread",
        f"{data['questions']} GSM8K questions ({data['prompt_tokens']:,} prompt tokens) at once, {data['new_tokens']} new"
        " tokens each, with log-probabilities. The floor is the time of the linear layers' products alone, as PyTorch"
        " computes them in that precision at a decode step's rows.",
        {
            "Problems": "GSM8K test questions",
            "Seeds": FIXED,
            "Tokens": f"{data['new_tokens']} new tokens a question",
            "Model": data["model"],
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"Log-probabilities in bfloat16 differ from the model's own forward in fp32 by {gaps['sampled_mean']:.3f} nats in"
            f" the mean and {gaps['sampled_max']:.3f} at most ({gaps['tokens']} sampled tokens). A training run measures its"
            " own and keeps it in `run.json` (`engine.numerics`).",
        ],
        ["One model on one machine, which others used at the same time.", RATIOS],
    )


def real_training(data: Row) -> Page:
    arms = data["arms"]
    ratio = arms["ours, bfloat16"]["tokens_a_cpu_second"] / arms["ours, fp32"]["tokens_a_cpu_second"]
    rows = (
        {"name": name, "memory": f"{arm['peak_gib']:.1f} GiB" if "peak_gib" in arm else ""} | arm
        for name, arm in arms.items()
    )
    columns = {
        "trainer": "{name}",
        "tokens a CPU second": "{tokens_a_cpu_second:,.0f}",
        "tokens a second": "{tokens_a_second:,.0f}",
        "peak memory": "{memory}",
    }
    return Page(
        "Supervised updates of a real model",
        f"bfloat16 products make training {ratio:.1f} times as fast as fp32, on {data['threads']} CPU thread",
        "Updates of 16 GSM8K rows in forwards of 4, all tokens in the loss. `products` are the model's matrix products alone,"
        " forward and twice backward, in bfloat16: what nothing can be faster than.",
        {
            "Problems": f"{data['rows']} rows of GSM8K's training split",
            "Seeds": str(data["seed"]),
            "Model": data["model"],
            "Threads": str(data["threads"]),
            "Command": command(data),
        },
        list(table(rows, columns)),
        [
            "A few updates of one model on one machine, which others used at the same time; the arms ran one after the other.",
            "The gap to the products is attention, elementwise work and the 49,152-wide loss.",
            RATIOS,
        ],
    )


def search(data: Row) -> Page:
    columns = {
        "search": "{label}",
        "trees": "{trees}",
        "at once": "{together}",
        "simulations/s": "{simulations_per_second:,.1f}",
        "CPU ms a simulation": "{cpu_ms_per_simulation:.2f}",
        "over (a)": "{cpu_gain:.0f}x",
        "tokens a simulation": "{tokens_per_simulation:.1f}",
        "tokens a unique token": "{tokens_per_unique_token:.2f}",
        "in the forward": "{forward_share:.0%}",
        "identical trees": "{same}",
    }
    body = []
    for part, title in (("feasibility", "A random Llama of 3 M parameters"), ("student", "The embedded student")):
        rows = (
            row
            | {
                "together": row["at_once"] or row["trees"],
                "same": f"{row['identical_trees']} of {row['compared_trees']}" if "compared_trees" in row else "",
            }
            for row in data[part]["rows"]
        )
        body += ["", f"## {title}", *table(rows, columns)]
    work = {
        "work": "{label}",
        "CPU ms a simulation": "{cpu_ms_per_simulation:.2f}",
        "CPU time": "{cpu_growth:.1f}x",
        "computed tokens": "{token_growth:.1f}x",
    }
    base = {"cpu_growth": 1.0, "token_growth": 1.0}
    body += [
        "## Cost against work",
        *table((base | row for row in data["work"]), work),
        "Time grows with trees and simulations as the work does, and with length faster than tokens: attention.",
    ]
    best = max(
        (row for row in data["feasibility"]["rows"] if row["label"].startswith("(c)")), key=lambda row: row["cpu_gain"]
    )
    return Page(
        "Token-level search against the plain way",
        f"{best['cpu_gain']:.0f} times less CPU time a simulation than the plain way with {best['at_once']} trees at once",
        f"24 simulations a tree, {data['top_k']} children a node, c = {data['exploration']:.0f}. (a) and (b) are the plain way"
        " (`benchmarks/plain_search.py`): the prefix is computed again for every call, one tree at a time. The feasibility"
        " setting has prompts of 160 tokens, a horizon of 96 and a reward that is a hash of the response.",
        {
            "Problems": "trees as the table says",
            "Seeds": seeds_of(data),
            "Tokens": "computed a simulation, in the table",
            "Device": data["device"],
            "Command": command(data),
        },
        body,
        [
            "The aim was 100 times less CPU time at 64 trees. It depends on what else the machine does: repeated runs of this"
            " command came out on both sides of it.",
            "How often trees branch decides a lot: see the rows with other rewards. Beam rollouts gain far less.",
            RATIOS,
        ],
    )


def vllm_cpu(data: Row) -> Page:
    ratios = [row["ratio_tokens_per_second"] for row in data["rows"]]
    columns = {
        "model": "{model}",
        "in": "{dtype}",
        "requests": "{batch}",
        "engine, tokens/s": "{ours_tokens_per_second:,.0f}",
        "vLLM": "{vllm_tokens_per_second:,.0f}",
        "vLLM with log-probabilities": "{vllm_logprobs_tokens_per_second:,.0f}",
        "ratio": "{ratio_tokens_per_second:.1f}x",
        "ratio by CPU time": "{ratio_tokens_per_cpu_second:.1f}x",
    }
    return Page(
        "The engine against vLLM's CPU build",
        f"{min(ratios):.1f} to {max(ratios):.1f} times vLLM {data['theirs']['vllm']} on one thread",
        "Same prompts, one thread, temperature 1, best of several repeats. The engine always returns log-probabilities;"
        " vLLM was timed without and with them.",
        {
            "Problems": "random or embedded prompts, of SmolLM2 GSM8K test questions, as many as the requests",
            "Seeds": seeds_of(data),
            "Tokens": f"{data['rows'][0]['new_tokens']} new tokens a request",
            "Device": data["device"],
            "Command": command(data),
        },
        [*table(data["rows"], columns), *step_search(load("step_search_vllm"))],
        ["Small models on a CPU, which is not what vLLM is made for. Nothing was measured on a GPU.", RATIOS],
    )


def step_search(data: Row) -> list[str]:
    """The same search over either engine."""
    names = {"inprocess": "the in-process engine", "vllm": f"vLLM {data['versions']['vllm-cpu']}"}
    columns = {
        "search over": "{name}",
        "simulations a CPU second": "{simulations_per_cpu_second:.2f}",
        "sampled tokens a CPU second": "{tokens_per_cpu_second:.0f}",
        "simulations": "{simulations:,}",
        "tokens": "{tokens:,}",
    }
    count = data["questions"]
    return [
        *("", "## A search that drives either", ""),
        f"`train`'s step search with {data['model']} in {data['dtype']}: {data['simulations']} iterations of four samples for"
        f" each of {count} GSM8K questions at once, {data['rounds']} times with other questions. vLLM keeps its prefix cache."
        f" By CPU time the in-process engine does {data['ratios']['simulations_per_cpu_second']:.1f} times the simulations and"
        f" {data['ratios']['tokens_per_cpu_second']:.1f} times the tokens.",
        *("", *table((data["engines"][key] | {"name": name} for key, name in names.items()), columns)),
        f"Written by `{data['command']}`: [JSON]({REPOSITORY}/blob/main/benchmarks/results/step_search_vllm.json).",
    ]


def vllm_contract(data: Row) -> Page:
    def cell(found: Any) -> str:
        if isinstance(found, list):
            return ", ".join(map(str, found))
        return "" if found is None else f"{found:.1e}" if 0 < abs(found) < 0.01 else f"{found:,}"

    rows = (row | {key: cell(row[key]) for key in ("inprocess", "vllm", "difference")} for row in data["rows"])
    columns = {
        "check": "{what}",
        "backend": "{backend}",
        "in-process engine": "{inprocess}",
        "vLLM": "{vllm}",
        "difference": "{difference}",
    }
    return Page(
        "vLLM gives what the in-process engine gives",
        f"log-probabilities within {max(row['difference'] for row in data['rows'] if 'nats' in row['what']):.0e} nats on every"
        " check",
        "The same requests go to the in-process engine and to vLLM's CPU build, in process and as a server on loopback.",
        {
            "Problems": "prompts and trees as the rows say, embedded student",
            "Seeds": "fixed in the script",
            "Tokens": "as the rows say",
            "Device": data["device"],
            "Versions": ", ".join(f"{name} {version}" for name, version in data["versions"].items()),
            "Command": "`VLLM_CPU_ENV=ENV scripts/vllm_cpu.sh`",
        },
        table(rows, columns),
        ["Sleep and wake, 4-bit loading in vLLM and CUDA graphs need a GPU and were not run."],
    )


def tree_training(data: Row) -> Page:
    most = max(row["ratio"] for row in data["rows"])
    rows = [row for row in data["rows"] if "all trees" in row["batch"] or "together" in row["batch"]]
    rows += [row | {"batch": "the largest tree"} for row in data["rows"] if row["ratio"] == most]
    usual = next(row for row in rows if row["batch"].startswith("default mix, all trees"))
    columns = {
        "model": "{model}",
        "batch": "{batch}",
        "rows": "{rows}",
        "flat / unique tokens": "{ratio:.2f}",
        "flat tokens": "{flat_tokens:,}",
        "unique tokens": "{unique_tokens:,}",
        "speed-up": "{speedup:.2f}x",
    }
    return Page(
        "Shared prefixes trained once",
        f"{usual['speedup']:.1f} times less CPU time a step on the default problems, same gradient",
        "CPU seconds of forward and backward: one row a response (flat) against all responses of a question in one sequence"
        " (packed), on real trees of 60 simulations.",
        {
            "Problems": "trees of embedded training problems",
            "Seeds": FIXED,
            "Tokens": "flat and unique tokens of a batch, in the table",
            "Threads": "1",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"Gradients of the two ways differ by at most {max(row['gradient_difference'] for row in data['rows']):.0e}"
            " (relative). Masked attention is about a third of the packed time, so the gain is smaller than the ratio of"
            " tokens.",
        ],
        [RATIOS],
    )


def startup(data: Row) -> Page:
    rows = [{**row, "name": f"`{row['command']}`"} for row in data["rows"]]
    last = rows[-1]
    return Page(
        "Starting a command",
        f"`search` of the embedded student: {last['median']:.1f} CPU seconds, {last['share']:.2f} times the import of torch"
        " and transformers",
        "A command's CPU seconds from start to end, beside those of importing torch and transformers, which training needs.",
        {
            "Problems": "none but one searched question",
            "Seeds": "the configuration's",
            "Tokens": "those of one small search",
            "Command": command(data),
        },
        table(
            rows,
            {"command": "{name}", "CPU seconds, median": "{median:.2f}", "share of the import": "{share:.2f}"},
        ),
        [RATIOS, f"Medians of {data['runs']} runs, with files in the page cache."],
    )


# In the order of the index.
def lag(data: Row) -> Page:
    rows, said = [], []
    for method in data["methods"]:
        waiting = next(arm for arm in method["arms"] if arm["arm"] == "actors")
        for arm in method["arms"]:
            seconds = arm["training_seconds"]
            rows.append(
                arm
                | {"method": method["method"], "share": share(arm["greedy"]), "tokens": f"{arm['sampled_tokens']:,}"}
                | {"ratio": seconds / waiting["training_seconds"]}
            )
        fast = next(arm for arm in method["arms"] if arm["arm"] == "actors, lag 1")
        saved = 1 - fast["training_seconds"] / waiting["training_seconds"]
        said.append((method["method"], saved, method["lag_1_less_lag_0"]))
    columns = {
        "method": "{method}",
        "way": "{arm}",
        "seconds of training": "{training_seconds:.0f}",
        "over actors": "{ratio:.2f}",
        "of them searched": "{search_seconds:.0f}",
        "sampled": "{tokens}",
        "greedy accuracy": "{share}",
    }
    return Page(
        "Searching the next round while this one is trained on",
        "; ".join(f"{name}: {saved:.0%} of the time saved, accuracy {judged(less)}" for name, saved, less in said),
        "`train.lag=1` searches a round with the weights of before the last round's updates, while these are made. In one"
        " process, with search actors beside the trainer, and with actors and lag.",
        {
            "Problems": f"{data['problems']:,} embedded test problems, {data['distinct']:,} of them distinct",
            "Seeds": listed(map(str, data["seeds"])),
            "Tokens": f"in the table, over {data['questions']:,} training questions",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            *(f"- {name}, lag 1 less lag 0, greedy: {judged(less)}." for name, _, less in said),
            "",
            "With a lag the seconds of searching overlap with the updates. Intervals are over problems and seeds.",
        ],
        [
            TINY,
            "One machine of two cores. Where search and training each have a card of their own the gain is another one: it was"
            " tried on none.",
            RATIOS,
        ],
    )


PAGES = (
    engine,
    real_engine,
    real_training,
    search,
    vllm_cpu,
    vllm_contract,
    tree_training,
    lag,
    startup,
)
