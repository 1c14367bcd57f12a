"""Report and comparison pages against the JSON files that they are made of."""

import csv
import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
from finished import finished_run
from tables import read_json, read_jsonl

import alphazero_llm_trainer as az
from alphazero_llm_trainer.cli import main as cli
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.eval.greedy import Answers
from alphazero_llm_trainer.eval.metrics import Interval, bootstrap_over_seeds, wilson
from alphazero_llm_trainer.files import read_lines, write_json
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.report.critics import critic_text
from alphazero_llm_trainer.report.training import run_verdict, shows_reward, validation_points
from alphazero_llm_trainer.runs.gain import paired_gain, summarise_answers


class Page:
    """The text of a page, which is well-formed and fetches nothing."""

    def __init__(self, path):
        self.raw = path.read_text(encoding="utf-8")
        self.root = ElementTree.fromstring(self.raw.partition("\n")[2])
        self.text = [*self.root.itertext()]
        assert not re.search(r'\b(?:src|onclick)=|href="[^"]*//', self.raw)

    def texts(self, text):
        """How many of the page's own texts are just this."""
        return self.text.count(text)

    def __contains__(self, text):
        return text in " ".join(self.text)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run, and it again as if it had differed in one key."""
    run = finished_run("grpo", tmp_path_factory)
    other = tmp_path_factory.mktemp("checkpoints") / "run-002"
    shutil.copytree(run, other, ignore=shutil.ignore_patterns("*.html", "student", "checkpoint-*"))
    card = read_json(other / "run.json")
    card["config"]["train"]["optimizer"]["epochs"] = 1
    write_json(other / "run.json", card)
    return [run, other]


def test_a_finished_run_has_its_page(runs):
    page = Page(runs[0] / "report.html")
    card = read_json(runs[0] / "run.json")
    for name in ("before", "after"):
        assert f"{Interval(**card[name]['accuracy'])}" in page
    assert "batch_size: 5" in page
    card["config"]["train"]["validation_size"] = 200  # of which the source had 12
    for _, share in validation_points(card, read_lines(runs[0] / "metrics.jsonl")):
        assert share == wilson(round(12 * share.value), 12)
    assert " → ".join(f"{card[n]['accuracy']['value']:.3f}" for n in ("before", "after")) in page
    assert f"{Interval(**card['gain']):+}" in page
    for title in ("Greedy accuracy, validation", "Loss", "Outcomes of the questions"):
        assert page.texts(title) == 1
    assert 'href="trees.html"' in page.raw
    first, trees = read_jsonl(runs[0] / "journal.jsonl")[0], (runs[0] / "trees.html").read_text()
    # As `view` writes them: tokens as text, and the choice.
    assert all(text in trees for text in (first["problem"]["id"], '"pieces":{', '"why":"'))


def test_a_run_that_is_not_finished_is_reported_too(runs, tmp_path, capsys):
    cut = tmp_path / "run-001"
    shutil.copytree(
        runs[0], cut, ignore=shutil.ignore_patterns("*.html", "student", "checkpoint-*")
    )
    card = read_json(cut / "run.json")
    for key in ("after", "gain", "reward_gain", "seconds", "kept", "rounds", "search_cost", "ends"):
        del card[key]  # what stands there after the last round
    (cut / "run.json").write_text(json.dumps(card))
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "mean_rew')  # a process that is writing
    assert cli.main(["report", str(cut)]) == 0
    assert capsys.readouterr().out.strip() == str(cut / "report.html")
    page = Page(cut / "report.html")
    assert "This run is not finished: it has no test result" in page
    assert "questions planned" in page
    assert page.texts("Mean reward of sampled responses") == 1


def test_a_run_of_zero_variance_says_that_nothing_was_learnt(runs, tmp_path, capsys):
    run = tmp_path / "run-001"
    run.mkdir()
    shutil.copy(runs[0] / "run.json", run)
    lines = read_jsonl(runs[0] / "metrics.jsonl")
    for line in lines:
        if "mean_reward" in line:
            line |= {"rows": 0, "all_wrong": 7, "all_right": 1}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert train_main(["--resume", str(run)]) == 0
    said = "Nothing was learnt from search: no response to 24 questions was one to learn from (21"
    assert capsys.readouterr().out.startswith(said)
    page = Page(run / "report.html")
    assert said in page and "try easier problems" in page
    card = read_json(run / "run.json")
    card["config"]["rewards"]["custom"] = "mine.py:reward"  # equal rewards aren't wrong answers
    said, _ = run_verdict(card, lines)
    assert "Nothing was learnt" in said and "wrong" not in said
    lines[0]["rows"] = 7
    said, _ = run_verdict(json.loads((run / "run.json").read_text()) | {"kept_round": 1}, lines)
    assert said.startswith("Training ") and said.endswith("on the same 12 held-out problems")


def seeded(run, place, seed, right, **after):
    """A run as another seed would have left it."""
    shutil.copytree(run, place, ignore=shutil.ignore_patterns("*.html", "student", "checkpoint-*"))
    card = json.loads((place / "run.json").read_text())
    card["seed"] = card["config"]["seed"] = seed
    card["after"] |= {"correct": [letter == "1" for letter in right], **after}
    (place / "run.json").write_text(json.dumps(card))
    return place


RIGHT = ("111100001111", "110000001111"), ("111111111111", "111101111111")


def test_two_settings_over_seeds(runs, tmp_path, capsys):
    sides = [
        [str(seeded(run, tmp_path / run.name / f"seed-{seed}" / "run-001", seed, right))
         for seed, right in enumerate(rights)]
        for run, rights in zip(runs, RIGHT, strict=True)
    ]  # fmt: skip
    out = tmp_path / "page"
    assert cli.main(["compare", *sides[0], "--", *sides[1], "--json", "--out", str(out)]) == 0
    facts = json.loads(capsys.readouterr().out)
    before, after = ([[float(letter) for letter in row] for row in rights] for rights in RIGHT)
    groups = json.loads((runs[0] / "run.json").read_text())["after"]["groups"]
    assert facts["gain"] == asdict(bootstrap_over_seeds(after, before, groups=groups))
    assert [side["name"] for side in facts["settings"]] == [
        "train.optimizer.epochs=2", "train.optimizer.epochs=1",
    ]  # fmt: skip
    page = Page(out / "report.html")
    assert page.texts("Validation accuracy") == 1 and "clearly better" in page
    same = az.compare(*(tmp_path / run.name for run in runs))  # as `train --seeds` has them
    assert same.gain.value == facts["gain"]["value"]
    assert same.to_pandas()["seed"].tolist() == [0, 1, 0, 1]
    assert len(same.plot().axes[0].containers) == 2  # a curve a setting
    files = [str(out / f"figure{suffix}") for suffix in (".csv", ".pdf", ".svg")]
    assert cli.main(["compare", *sides[0], "--", *sides[1], "--save", *files]) == 0
    table, pdf, svg = ((out / Path(file).name).read_bytes() for file in files)
    assert (pdf[:5], b"</svg>" in svg) == (b"%PDF-", True)
    first, *_ = csv.DictReader(table.decode().splitlines())
    before = read_json(runs[0] / "run.json")["before"]["accuracy"]["value"]
    assert (first["setting"], first["seed"], float(first["before"])) == ("A", "0", before)
    with pytest.raises(SystemExit):
        cli.main(["compare", "--save"])
    assert cli.main(["report", str(runs[0]), "--save", str(out / "figure.txt")]) == 2
    one = str(out / "one.csv")
    assert cli.main(["report", str(runs[0]), "--out", str(out), "--save", one]) == 0
    assert len(Path(one).read_text().splitlines()) == 2
    assert cli.main(["report", *sides[0], *sides[1], "--out", str(out)]) == 0
    assert all(Page(out / "report.html").texts(run) for side in sides for run in side)


def test_runs_that_cannot_be_compared_are_refused(runs, tmp_path, capsys):
    one, two = map(str, runs)
    right = RIGHT[0][0]
    twin = str(seeded(runs[0], tmp_path / "twin", 7, right))
    sibling = str(seeded(runs[1], tmp_path / "sibling", 8, right))
    elsewhere = str(seeded(runs[1], tmp_path / "elsewhere", 8, right, rows="others"))
    unfinished = str(seeded(runs[1], tmp_path / "unfinished", 8, right, accuracy=None))
    for words, field in (
        ([one, "--", one], "named twice"),
        ([one, twin, "--", two], "one seed"),
        ([one, sibling, "--", two], "train.optimizer.epochs differs"),
        ([one, "--", elsewhere], "other held-out problems"),
        ([one, "--", unfinished], "no held-out accuracy"),
        ([one, "--", str(tmp_path)], "no run's folder"),
    ):
        assert cli.main(["compare", *words]) == 2
        assert field in capsys.readouterr().err
    assert cli.main(["report", one, two]) == 2
    assert cli.main(["report", one, unfinished, "--out", str(tmp_path / "page")]) == 0


def critic_card(earned, gain, kind="prm"):
    test = {"pair accuracy": [0.7, 0.6, 0.8], "pair accuracy, log-probability": [0.6, 0.5, 0.7],
            "AUC": [0.75, 0.65, 0.85], "pair accuracy over log-probability": gain}  # fmt: skip
    return {"kind": kind, "earned": earned, "why": "AUC 0.5 doesn't beat chance",
            "rollout_weight": 0.4, "test": test, "questions": {"test": 20},
            "pairs": {"test": 30}}  # fmt: skip


def test_a_critic_s_verdict_comes_first(tmp_path):
    better, level = critic_card(True, [0.1, 0.05, 0.15]), critic_card(True, [0.1, -0.05, 0.25])
    yes = (
        "Better than log-probability at ranking steps: yes, 0.700 [0.600, 0.800] against 0.600 "
        "[0.500, 0.700]"
    )
    assert critic_text(better).startswith(yes)
    assert "ranking steps: not clearly, " in critic_text(level)
    value = critic_card(True, [-0.1, -0.15, -0.05], "value")
    told = "Better than chance at telling which states end right: AUC 0.750 [0.650, 0.850]"
    assert critic_text(value).startswith(told)
    assert "lambda" in critic_text(value) and "lambda" not in critic_text(better)
    from_file = critic_card(True, [0.1, 0.05, 0.15])
    del from_file["test"]["pair accuracy, log-probability"]
    assert critic_text(from_file).startswith("Better than chance at ranking steps: 0.700")
    assert critic_text(critic_card(False, [0.1, 0.05, 0.15])).startswith(
        "Not better than chance: don't use it"
    )
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.7, "held_out_loss": 0.6}\n')
    for card, big, said in ((better, "0.700", yes), (value, "0.750", told)):
        (tmp_path / "critic.json").write_text(json.dumps(card))
        assert cli.main(["report", str(tmp_path)]) == 0
        page = Page(tmp_path / "report.html")
        assert said in page and page.raw.count("<svg") == 2 and page.texts(big)


def test_with_a_reward_of_ones_own_its_gain_is_the_verdict(runs):
    card = read_json(runs[0] / "run.json") | {"kept_round": 1}
    card["gain"] = {"value": 0.0, "low": -0.05, "high": 0.05}
    card["reward_gain"] = {"value": 0.12, "low": 0.02, "high": 0.25}
    assert not run_verdict(card, [])[1]  # a source with partial credit: right answers come first
    card["config"]["rewards"]["custom"] = "mine.py:reward"
    assert run_verdict(card, [])[1] == "good"


def test_grades_between_wrong_and_right_have_their_mean_before_and_after():
    tasks = load_tasks("embedded", "test", 4)

    def found(*grades, partial=True):
        right = [[grade == 1.0] for grade in grades]
        return summarise_answers(
            Answers(right, [["x"]] * 4, 4, 0.1, 0, [*grades], partial=partial), tasks
        )

    before = found(0.0, 0.5, 1.0, 0.25)
    after = found(1.0, 1.0, 1.0, 0.0)  # all or nothing by chance
    more = paired_gain(before["rewards"], after["rewards"], tasks)
    assert before["reward"]["value"] == pytest.approx(0.4375)
    assert more["value"] == pytest.approx(0.3125) and before["accuracy"]["value"] == 0.25
    assert "reward" not in found(0.0, 1.0, 1.0, 0.0, partial=False)
    # It is told where it differs from accuracy.
    assert [
        shows_reward(found(*grades)) for grades in ((0.0, 0.5, 1.0, 0.25), (0.0, 1.0, 1.0, 0.0))
    ] == [True, False]
