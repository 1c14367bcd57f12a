"""The page of a real language model: what it learns from its own samples."""

from __future__ import annotations

from .page import (
    REPEATED,
    REPOSITORY,
    Page,
    Row,
    command,
    gain,
    judged,
    listed,
    load,
    mean,
    share,
    table,
    triple,
    twins,
)

ARMS = {
    "rft": "its own right samples (`rft`)",
    "expert": "expert iteration (`train` as it comes)",
    "expert-more": "expert iteration, three times the questions",
    "grpo": "GRPO, chains",
    "grpo-trees": "GRPO, trees",
    "grpo-trees-hre": "GRPO, trees, without the perplexity reward",
    "more-sft": "more SFT, as many updates",
}
COLUMNS = {"student": "{name}", "greedy accuracy": "{accuracy}", "paired gain": "{gain}", "sampled": "{tokens}"}
BEST = "expert-more"  # whose two seeds are compared with those of rft


def named(stage: str) -> str | None:
    """What a stage is called, its other seed with it; None for one that is no arm."""
    arm, _, seed = stage.rpartition("-")
    if stage in ARMS:
        return ARMS[stage]
    return f"{ARMS[arm]}, seed {seed}" if arm in ARMS and seed.isdigit() else None


def students(stages: Row) -> list[Row]:
    """The student as published, after SFT, and after each arm."""
    sft = stages["sft"]
    rows: list[Row] = [
        {"name": "as it is published", "accuracy": share(triple(sft["test_before"])), "gain": "", "tokens": ""},
        {
            "name": f"SFT on {sft['rows']} worked solutions",
            "accuracy": share(triple(sft["test_greedy"])),
            "gain": gain(triple(sft["gain"])),
            "tokens": "",
        },
    ]
    for stage, arm in stages.items():
        name = named(stage)
        if name is None:
            continue
        after = arm["test_greedy"] if stage == "more-sft" else arm["after"]["accuracy"]
        sampled = f"{arm['search_cost']['sampled_tokens']:,}" if "search_cost" in arm else ""
        found = {"name": f"then {name}", "accuracy": share(triple(after)), "tokens": sampled}
        rows.append(found | {"gain": judged(triple(arm["gain"]))})
    return rows


def kept(stages: Row) -> str:
    """Which checkpoint each arm kept."""
    found = ((named(stage), arm["kept"]) for stage, arm in stages.items() if "kept" in arm)
    return "; ".join(f"{name}: {text}" for name, text in found) + "."


def real_ladder(data: Row) -> Page:
    stages, first = data["stages"], load("real_ladder_first")
    sft, best, plain = stages["sft"], stages[BEST], stages["rft"]
    minutes = {stage: data["seconds"][stage] / 60 for stage in stages if stage == "sft" or named(stage)}
    times = listed(f"{value:.0f} minutes ({name})" for name, value in minutes.items())
    body = [
        *table(students(stages), COLUMNS),
        "The gain of a `then` line is over the SFT student on the same problems. After SFT pass@8 is"
        f" {share(triple(sft['test_pass_at_8']))} and the mean at temperature 1 {sft['test_mean_at_temperature_1']:.3f}."
        f" Every arm starts from it, with a seed of 7 where none is named, asks {plain['questions']} new questions"
        f" ({best['questions']:,} where it says three times) in {plain['rounds']} rounds of {data['updates']} updates and keeps"
        f" its best checkpoint on {data['validation']} validation problems. `rft` draws eight samples a question; expert"
        " iteration searches under the rule that a step's written results are right, until a first right response. The control"
        " makes as many updates on"
        f" worked solutions, {stages['more-sft']['rows'] - sft['rows']} of which it hadn't seen.",
        "",
        f"With measurements and evaluations the stages took {times} on {data['cores']} cores, some beside other work.",
        "",
        f"Kept in the end: {kept(stages)}",
        *compared(data["arms"]),
        "The intervals are over problems, not over seeds.",
    ]
    for name in (found for found in stages if found.startswith("eval-")):
        body += searched(name.removeprefix("eval-"), stages[name])
    for prefix, what in (("answers", "The same embedded test problems"), ("gsm8k", "Test rows of GSM8K")):
        asked = {name.removeprefix(f"{prefix}-"): stages[name] for name in stages if name.startswith(f"{prefix}-")}
        rows = [
            {"student": name, "accuracy": share(one["rows"][0]["accuracy"]), "problems": one["rows"][0]["problems"]}
            for name, one in asked.items()
        ]
        if rows:
            columns = {"student": "{student}", "problems": "{problems}", "accuracy": "{accuracy}"}
            body += ["", f"### {what}, greedy", "", *table(rows, columns)]
    body += judges_of_its_own(load("real_judges"))
    body += held_out_structures(load("real_structures"))
    body += [
        *("", "## An earlier run", ""),
        "The same commands and seed, of before; its student after SFT is not to the bit the one above, and the first two lines"
        " are of"
        f" {first['stages']['sft']['test_greedy']['problems']} problems. 100 validation problems. Kept in the end:"
        f" {kept(first['stages'])}",
        *table(students(first["stages"]), COLUMNS),
    ]
    for name in (found for found in first["stages"] if found.startswith("eval-")):
        body += searched(name.removeprefix("eval-"), first["stages"][name])
    body += ["", f"Its [JSON]({REPOSITORY}/blob/main/benchmarks/results/real_ladder_first.json)."]
    numerics = best["engine"].get("numerics", {})
    if numerics:
        gap = f"{numerics['sampled_mean']:.3f} nats in the mean"
        body += ["", f"The engine's bfloat16 log-probabilities differed from the trainer's by {gap}."]
    tokens = {name: stages[name]["search_cost"]["sampled_tokens"] for name in ("rft", "expert", BEST)}
    return Page(
        "A real model, taught on two cores",
        f"SmolLM2-135M: {sft['test_before']['value']:.3f} -> {sft['test_greedy']['value']:.3f} by SFT,"
        f" {gain(triple(best['gain']))} more by expert iteration, {gain(triple(plain['gain']))} by its own right samples",
        "SmolLM2-135M-Instruct (a copy quantised to 4 bits, dequantised) on embedded problems of levels 1 to 3: supervised on"
        " worked solutions, then taught from its own samples of new questions.",
        {
            "Problems": f"{plain['after']['problems']} embedded test problems, levels 1 to 3,"
            f" {plain['after']['distinct']} of them distinct",
            "Seeds": f"{data['seed']}; the arms whose name says so, {listed(sorted(set(map(str, data['again'].values()))))}",
            "Tokens": listed(f"{count:,} ({name})" for name, count in tokens.items()) + " sampled in training",
            "Model": data["model"],
            "Command": command(data),
        },
        body,
        [
            "One SFT student, one seed or two of an arm, and one learning rate an arm.",
            twins("real_ladder"),
            f"Of the earlier run: {REPEATED[0].lower()}{REPEATED[1:]}",
        ],
    )


def compared(arms: list[Row]) -> list[str]:
    """Arms less others; nothing where those were not run."""
    rows = [
        {"arm": ARMS[row["arm"]], "over": ARMS[row["over"]], "less": judged(triple(row)), "seeds": row["seeds"]}
        for row in arms
    ]
    columns = {"arm": "{arm}", "over": "{over}", "greedy, one less the other": "{less}", "seeds of both": "{seeds}"}
    return ["", "### Arms against each other", "", *table(rows, columns)] if rows else []


def held_out_structures(data: Row) -> list[str]:
    """The same commands with whole structures held out for the test."""
    stages = data["stages"]
    arm = stages[BEST]
    return [
        *("", "## Stories of a kind that nobody trained on", ""),
        "The same commands with `problems.hold_out=structures`: no student saw a structure of the"
        f" {arm['after']['problems']} test problems ({arm['after']['distinct']} distinct solutions), nor one of the"
        f" {data['validation']} validation problems that chose its checkpoint.",
        *("", *table(students(stages), COLUMNS)),
        *compared(data["arms"]),
        f"Kept in the end: {kept(stages)} [JSON]({REPOSITORY}/blob/main/benchmarks/results/real_structures.json), written by"
        f" `{data['command']}`.",
    ]


def judges_of_its_own(data: Row) -> list[str]:
    """The SFT student's answers under a PRM and a value that were trained on its own trees."""
    stages = data["stages"]
    prm, value = stages["prm"], stages["value"]
    names = {"policy log-probability": "the student's own log-probability", prm["kind"]: f"the PRM ({prm['kind']})"}
    names["kept + policy log-probability"] = "both, as the PRM's folder has them"
    figures = ("step AUC", "step AUC, as drawn", "pair accuracy")
    rows = [
        {"judge": text, **{figure: share(prm["test"][figure][name]) for figure in figures}}
        for name, text in names.items()
    ]
    asked = prm["questions"]
    return [
        *("", "## Under judges of its own", ""),
        f"Trees of {sum(asked.values())} new questions (three expansions of eight samples, {prm['cost']['sampled_tokens']:,}"
        f" sampled tokens) taught a process reward model and a linear probe of the SFT student's states as a value, on"
        f" {asked['training']} of the questions. On {asked['test']} others the PRM tells right steps from wrong ones as the"
        " student's log-probability of a step does, which sampling gave already:",
        "",
        *table(rows, {"judge": "{judge}"} | {figure: f"{{{figure}}}" for figure in figures}),
        f"The value's AUC on those questions is {share(value['test']['AUC'])}, its ranking of siblings"
        f" {share(value['test']['sibling ranking'])} where chance is .5.",
        *searched("sft", stages["eval-sft-prm"], "judged by the PRM"),
        *searched("sft", stages["eval-sft-value"], "judged by the value"),
        *searched("sft", stages["eval-sft"], "steps checked by a calculator, the same student"),
        f"This student is not to the bit the one above. [JSON]({REPOSITORY}/blob/main/benchmarks/results/real_judges.json),"
        f" written by `{data['command']}`.",
    ]


def searched(student: str, found: Row, judge: str = "steps checked by a calculator") -> list[str]:
    """Methods at equal tokens, asked of a stage's student, with what the repairing ones gain over adaptive best-of-n."""
    over = {
        (row["method"], row["budget"]): judged(row["gain"])
        for row in found["pairs"]
        if row["over"] == "adaptive-best-of-n"
    }
    shown = (
        row | {"share": share(row["accuracy"]), "over": over.get((row["method"], row["budget"]), "")}
        for row in found["rows"]
    )
    columns = {
        "method": "{method}",
        "budget": "{budget}",
        "accuracy": "{share}",
        "sampled": "{sampled_tokens:.0f}",
        "over adaptive best-of-n": "{over}",
    }
    problems = found["rows"][0]["problems"]
    title = f"### Asked in several ways: the {student} student, {problems} problems, {judge}"
    return ["", title, "", *table(shown, columns)]


def results() -> list[Row]:
    """The rows of README's table."""
    data, kinds = load("real_ladder"), load("real_structures")["stages"][BEST]
    stages = data["stages"]
    warm, best, control, plain = stages["sft"], stages[BEST], stages["more-sft"], stages["rft"]
    less = next(row for row in data["arms"] if row["arm"] == BEST)
    problems, tokens = best["after"]["problems"], f"{best['search_cost']['sampled_tokens'] / 1e6:.2f} M"
    what = "expert iteration of a [real model](docs/results/real_ladder.md), SmolLM2-135M, after SFT"
    return [
        {
            "what": what,
            "without": f"after SFT: {warm['test_greedy']['value']:.3f}",
            "with": f"{best['after']['accuracy']['value']:.3f}",
            "difference": gain(triple(best["gain"])),
            "on": f"{problems}, 1, {tokens}",
            "not": "that own samples are worth their time where there are solutions: as many updates of SFT,"
            f" {control['rows'] - warm['rows']} of them unseen, gain {gain(triple(control['gain']))}; or a gain on real rows",
        },
        {
            "what": what,
            "without": f"training on its own right samples: {mean_of(stages, 'rft', data):.3f}",
            "with": f"{mean_of(stages, BEST, data):.3f}",
            "difference": gain(triple(less)),
            "on": f"{problems}, {less['seeds']}, {tokens} and {plain['search_cost']['sampled_tokens'] / 1e6:.2f} M",
            "not": f"equal numbers of questions: it asks {best['questions']:,}, the other {plain['questions']:,}; on kinds of"
            f" stories that nobody trained on it gains {gain(triple(kinds['gain']))} over its SFT",
        },
    ]


def mean_of(stages: Row, arm: str, data: Row) -> float:
    """An arm's greedy accuracy, over its seeds."""
    names = [name for name in (arm, f"{arm}-{data['again'].get(arm)}") if name in stages]
    return mean(stages[name]["after"]["accuracy"]["value"] for name in names)


def real_signal(data: Row) -> Page:
    rows = [{"task": task} | line for task, lines in data["tasks"].items() for line in lines]
    shown = (
        row
        | {name: share((row[name][0], row[name][1], row[name][2])) for name in ("greedy", "pass_at_8", "mixed_groups")}
        for row in rows
    )
    columns = {
        "task": "{task}",
        "worked solutions": "{rows:,}",
        "minutes": "{minutes:.0f}",
        "greedy": "{greedy}",
        "mean at temperature 1": "{mean:.3f}",
        "pass@8": "{pass_at_8}",
        "groups with both outcomes": "{mixed_groups}",
        "tokens an answer": "{tokens_an_answer:.0f}",
    }
    between = [row for row in rows if 0.2 <= row["greedy"][0] <= 0.6]
    taught = listed(f"{row['task']} after {row['rows']:,}" for row in between) or "none of them"
    tool = [
        f"{row['task']} after {row['rows']:,} {share(row['with_calculator'])}"
        for row in rows
        if "with_calculator" in row
    ]
    most = max(rows, key=lambda row: row["mixed_groups"][0])
    return Page(
        "Where a real model has something to learn",
        f"{len(data['tasks'])} tasks: most groups with both outcomes on {most['task']} after {most['rows']:,} solutions"
        f" ({most['mixed_groups'][0]:.2f})",
        "A model learns from its own samples where some of them are right and some are wrong. SmolLM2-135M-Instruct goes on"
        " through growing numbers of worked solutions, each once, and is then asked new problems. The tasks of reasoning-gym"
        " that have no worked solutions teach the answer alone.",
        {
            "Problems": f"{data['problems']} validation problems a task, greedily; {data['grouped']} of them with"
            f" {data['samples']} samples each",
            "Seeds": data["seed"],
            "Tokens": f"at most {data['max_tokens']} an answer; what was sampled is the last column's",
            "Model": data["model"],
            "Command": command(data),
        },
        [
            *table(shown, columns),
            f"Between .2 and .6 greedily, where GRPO and rejection sampling have most to go by: {taught}.",
            "",
            *(
                [f"Greedily with a calculator that writes the result after each `a op b =`: {listed(tool)}."]
                if tool
                else []
            ),
        ],
        [
            "One run a task, with one learning rate. Few problems: intervals are wide.",
            "Where an answer takes a handful of tokens the model guesses without steps: right samples there are luck as well.",
            "Minutes are of one CPU core that shared the machine.",
        ],
    )


PAGES = (real_ladder, real_signal)
