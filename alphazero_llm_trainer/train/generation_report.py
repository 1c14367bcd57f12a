"""What a loop shows at its end: one line a generation, and accuracy over generations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..eval.metrics import Interval


def loop_table(card: dict[str, Any]) -> str:
    """Generations with their arena figures and decisions, then the test split."""
    rows = [
        ("", "questions", "revisited", "champion", "candidate", "greedy gain", "search gain", "tokens", "seconds", "")
    ]
    for one in card["generations"]:
        arena = one.get("arena")
        asked, cost = one["questions"], one["costs"]
        row = [f"generation {one['generation']}", f"{asked['fresh'] + asked['revisited']:,}", f"{asked['revisited']:,}"]
        if arena is None:
            row += ["", "", "", ""]
        else:
            row += [f"{arena[f'{who} greedy']['accuracy'][0]:.3f}" for who in ("champion", "candidate")]
            row += [interval(arena[f"gain {kind}"]) for kind in ("greedy", "search")]
        sampled = sum(part.get("sampled_tokens", 0) + part.get("scored_tokens", 0) for part in cost.values())
        row += [f"{sampled:,}", f"{sum(part['seconds'] for part in cost.values()):.0f}", one["decision"]]
        rows.append(tuple(row))  # type: ignore[arg-type]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1
    lines = [
        "  ".join(
            cell.ljust(width) if i in (0, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    for one in card["generations"]:
        counts = ", ".join(f"{one['questions'][kind]:,} {kind}" for kind in ("solved", "hopeless", "mixed", "extended"))
        under = f"; searched under {one['arena']['candidate search']['verifier']}" if "arena" in one else ""
        lines.append(f"generation {one['generation']} {one['decision']}: {one['why']}{under}; questions: {counts}")
    return "\n".join([*lines, *test_lines(card)])


def test_lines(card: dict[str, Any]) -> list[str]:
    """The last champion against the first student on the test split."""
    champion = "the first student" if not card["champion"] else f"generation {card['champion']}"
    lines = [f"champion: {champion}"]
    test = card.get("test")
    if test is None:
        return lines
    for kind in ("greedy", "search"):
        first, last = test[f"first student {kind}"], test[f"champion {kind}"]
        lines.append(
            f"test, {last['method']}: {first['accuracy'][0]:.3f} at {first['tokens']:.0f} tokens ->"
            f" {last['accuracy'][0]:.3f} at {last['tokens']:.0f} tokens; paired {interval(test[f'gain {kind}'])}"
            f" over {last['problems']:,} problems"
        )
    return lines


def interval(found: list[float]) -> str:
    return f"{found[0]:+.3f} [{found[1]:+.3f}, {found[2]:+.3f}]"


def draw_loop(path: Path, card: dict[str, Any]) -> None:
    """`loop.png`: arena accuracy of champion and candidate over generations, with 95% intervals and decisions."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    met = [one for one in card["generations"] if "arena" in one]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), constrained_layout=True, sharey=True)
    for axis, kind in zip(axes, ("greedy", "search"), strict=True):
        for who, colour, shift in (("champion", "tab:gray", -0.06), ("candidate", "tab:blue", 0.06)):
            found = [Interval(*one["arena"][f"{who} {kind}"]["accuracy"]) for one in met]
            axis.errorbar(
                [one["generation"] + shift for one in met],
                [one.value for one in found],
                yerr=[[one.value - one.low for one in found], [one.high - one.value for one in found]],
                fmt="o",
                capsize=4,
                color=colour,
                label=who,
            )
        for one in card["generations"]:
            up = one["decision"] == "promoted"
            axis.annotate(
                one["decision"],
                (one["generation"], 0.02),
                ha="center",
                color="tab:green" if up else "tab:red",
                fontsize=9,
            )
            axis.plot(one["generation"], 0.09, "^" if up else "v", color="tab:green" if up else "tab:red")
        axis.set(xlabel="generation", ylim=(0, 1), xticks=[one["generation"] for one in card["generations"]])
        axis.set_xlim(0.5, len(card["generations"]) + 0.5)
    method = card["config"]["loop"]["search"]
    axes[0].set(title="Greedy", ylabel="accuracy on the arena's problems")
    axes[1].set(title=f"{method}, at most {card['config']['loop']['budget_tokens']} tokens")
    axes[0].legend(loc="upper left", fontsize=8)
    figure.suptitle(
        f"{card['student']}, seed {card['seed']}, {card['config']['loop']['arena_size']:,} problems, 95% intervals"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
