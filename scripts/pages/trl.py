"""Pages of comparisons with TRL's own trainers."""

from __future__ import annotations

from .page import EMBEDDED, TINY, Page, Row, command, gain, judged, listed, table, triple

SHARE = "share_of_plain_tokens_to_its_best_validation"


def tree_grpo(data: Row) -> Page:
    arms = {row["arm"]: row for row in data["summary"]}
    like = arms["tree GRPO, no replay"]
    shown = (
        row
        | {
            "gain": gain(triple(row["gain"])),
            "over": "" if row["over_plain"] is None else judged(triple(row["over_plain"])),
            "share": listed("never" if one is None else f"{one:.2f}" for one in row[SHARE]),
        }
        for row in data["summary"]
    )
    columns = {
        "trainer": "{arm}",
        "greedy accuracy": "{after:.3f}",
        "gain": "{gain}",
        "over plain TRL": "{over}",
        "sampled tokens": "{tokens:,}",
        "tokens to plain TRL's best": "{share}",
    }
    plain = next(row for row in data["summary"] if row["over_plain"] is None)
    stuck = " Plain TRL's never got above its start." if not any(plain[SHARE]) else ""
    rates = sorted({row["learning_rate"] for row in data["runs"] if "learning_rate" in row})
    return Page(
        "GRPO on trees against TRL's GRPO",
        f"without replayed demonstrations {judged(triple(like['over_plain']))} over TRL's trainer as it comes, with them"
        f" {judged(triple(arms['tree GRPO']['over_plain']))}".replace("<br>", " "),
        "`trl.GRPOTrainer` as it comes (its own `generate`, eight independent samples a question, every one trained on) against"
        " our trees, from the shipped student, on the same questions, with the same optimiser and the same number of sampled"
        " tokens.",
        {
            "Problems": f"{data['problems']:,} {EMBEDDED}, {data['distinct']:,} of them distinct",
            "Seeds": listed(data["seeds"]),
            "Tokens": listed(f"{row['tokens']:,} ({name})" for name, row in arms.items()) + ", sampled",
            "Command": command(data),
        },
        [
            *table(shown, columns),
            "The last column is the share of plain TRL's tokens after which an arm's validation accuracy"
            f" ({data['validation_problems']} problems) had reached the best that plain TRL ever had there, seed by seed. The"
            " arm without replay is the like-for-like one: plain TRL has no demonstrations. Each arm is measured with the"
            " weights that were best on validation." + stuck,
        ],
        [
            TINY,
            f"Plain TRL ran at a learning rate of {listed(rates)}, ours at its default."
            + (" One seed: the intervals are over problems alone." if len(data["seeds"]) == 1 else ""),
            "Time was not compared: the arms shared a busy machine, and TRL's own engine for sampling is vLLM.",
        ],
    )


PAGES = (tree_grpo,)
