"""The `eval` command: a run, a run that is cut off and goes on, and every kind of bad input."""

import html
import json
from collections import Counter

from support import tiny_chat
from tables import read_json, read_jsonl, write_jsonl

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_answering, load_config, load_training
from alphazero_llm_trainer.eval import evaluation as eval_run
from alphazero_llm_trainer.eval.methods import ANSWERING
from alphazero_llm_trainer.eval.names import METHOD_NAMES
from alphazero_llm_trainer.live import StoppedError
from alphazero_llm_trainer.problems.load import with_context
from alphazero_llm_trainer.runs import plan

SMALL = "eval --num 12 --model embedded --budget-tokens 60 120".split()


def results(out):
    """results.json without what a clock or a path decides."""
    found = read_json(out / "results.json")
    for row in found["rows"]:
        row.pop("seconds")
    found.pop("command")
    return found


def test_a_run_writes_its_folder_and_prints_the_tables(tmp_path, capsys):
    out = tmp_path / "out"
    assert set(METHOD_NAMES) == set(ANSWERING)
    assert main([*SMALL, *f"--out {out} --samples 2".split()]) == 0
    said, found = capsys.readouterr().out, read_json(out / "results.json")
    assert said.startswith("embedded at 60 tokens: ") and "pass@k" in said
    cells = {(row["method"], row["budget"]) for row in found["rows"]}
    assert cells == {(method, budget) for method in ANSWERING for budget in (60, 120)}
    for row in found["rows"]:
        assert len(row["outcomes"]) == 12 and row["most_tokens"] <= row["budget"]
        assert row["outcomes"].count("1") / 12 == row["accuracy"][0]
    names = {path.name for path in out.iterdir()}
    assert names == {"cells", "results.json", "report.html", "answers.jsonl"}
    answers = read_jsonl(out / "answers.jsonl")
    page = html.unescape((out / "report.html").read_text())
    assert Counter((row["method"], row["budget"]) for row in answers) == dict.fromkeys(cells, 12)
    failed = found["failures"]["embedded"]["answers"]
    for failure in failed:
        assert failure["question"] in page and failure["verdict"] != "correct"
    assert failed


def test_choices_are_made_on_other_problems_than_the_test(tmp_path, capsys):
    hashes, flags = [], f"eval -n 3 --methods greedy --set train.checkpoint_dir={tmp_path}".split()
    for number, split in enumerate(("test", "validation"), 1):
        assert main([*flags, "--split", split]) == 0
        found = read_json(tmp_path / f"eval-00{number}" / "results.json")  # the default folder
        hashes.append(found["benchmarks"]["embedded"]["data_hash"])
    assert hashes[0] != hashes[1]
    assert "embedded, validation problems, at 160 tokens" in capsys.readouterr().out
    assert main([*flags, "--split", "validation", "--resume"]) == 0
    assert not (tmp_path / "eval-003").exists()
    # Four of the student's answers.
    for overrides, budget in (
        (["student=qwen2.5-0.5b", "search.verify.reserve=9"], 1000),
        (["student=qwen3-0.6b", "models.qwen3-0.6b.thinking=on"], 5000),
    ):
        assert load_answering(overrides=overrides).answer_budget == budget


def test_a_resumed_run_equals_an_undisturbed_one(tmp_path, capsys, monkeypatch):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    command = """
        --methods greedy best-of-n mcts --samples 2 --verifier calculator+log-probability --out
    """
    command = [*SMALL, *command.split()]
    assert main([*command, str(whole)]) == 0
    # Stopped inside the third cell.
    real, started = eval_run.run_cell, []

    async def stopped_in_the_third(*given):
        started.append(given)
        cell = await real(*given)
        if len(started) == 3:
            raise StoppedError
        return cell

    with monkeypatch.context() as patch:
        patch.setattr(eval_run, "run_cell", stopped_in_the_third)
        assert main([*command, str(cut)]) == 130
    assert "--resume" in capsys.readouterr().err
    assert len([*(cut / "cells").iterdir()]) == 2 and not (cut / "results.json").exists()
    assert main([*command, str(cut)]) == 0
    assert results(cut) == results(whole)


def test_ones_own_code_that_changed_is_seen(tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text("def reward(problem, response, task):\n    return 1.0\n")
    flags = f"-n 2 --reward {own}:reward --out".split()
    for command in ("eval --methods greedy", "sample"):
        words = [*command.split(), *flags, str(tmp_path / command[:4])]
        assert main(words) == main([*words, "--resume"]) == 0
        text = own.read_text()
        own.write_text(text + "# other\n")
        assert main([*words, "--resume"]) == 2
        assert f"SHA-256 of {own} is" in capsys.readouterr().err
        own.write_text(text)


# -- budgets and contexts --------------------------------------------------------------------------


def test_answers_that_were_cut_are_told_as_that_and_not_compared(tmp_path, capsys):
    flags = "eval -n 12 --model embedded --methods greedy mcts best-of-n".split()
    for budget, best, of_those in (
        ("8", "every method's answers were cut or silent", 3),
        ("20", "no difference shown between best-of-n and greedy; best-of-n has", 1),
    ):
        out = tmp_path / budget
        assert main([*flags, *f"--budget-tokens {budget} --out {out}".split()]) == 0
        said = capsys.readouterr()
        assert said.out.startswith(f"embedded at {budget} tokens: {best}"), said.out
        assert "2 questions tried, up to" in said.err and "a budget of" in said.err
        found = results(out)
        cut = [row["method"] for row in found["rows"] if row["cut"]]
        assert (
            len(cut) == of_those and said.out.count("were cut by the budget: --budget-tokens") == 1
        )
        compared = {name for pair in found["pairs"] for name in (pair["method"], pair["over"])}
        assert not compared & set(cut) and (out / "report.html").exists()
    assert main([*flags, "--out", str(tmp_path / "usual")]) == 0
    assert "raise" not in capsys.readouterr().err


def long_rows(folder, words):
    """--source of four questions with so many words each."""
    file, more = folder / "long.jsonl", " She has 2 pens." * (words // 5)
    rows = [{"question": f"Ana has {n} pens.{more}", "answer": "2"} for n in range(4)]
    write_jsonl(file, (row | {"split": "test"} for row in rows))
    return file


def test_the_context_follows_the_rows(tmp_path, capsys):
    file, model = long_rows(tmp_path, 1500), tiny_chat(tmp_path / "model")
    shape = read_json(model / "config.json")
    (model / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 4096}))
    flags = f"""
        eval --source {file} --model {model} --methods greedy -n 4 --set search.max_tokens=8
        --budget-tokens 8 --out
    """.split()
    assert main([*flags, str(tmp_path / "out")]) == 0
    assert read_json(tmp_path / "out" / "results.json")["rows"][0]["too long"] == 0
    capsys.readouterr()
    assert main([*flags, *f"{tmp_path / 'out2'} --set engine.max_context=1024".split()]) == 2
    said = capsys.readouterr().err
    assert "error: 4 of 4 questions don't fit engine.max_context, which is 1,024" in said


def test_a_source_s_long_prompts_are_in_the_context_and_in_the_plan(tmp_path):
    def context(source, *overrides):
        asked = ["student=qwen2.5-0.5b", f"problems.source={source}", *overrides]
        return with_context(load_config(overrides=asked)).engine.context

    assert context("gsm8k") == context("embedded") == 1024
    assert context("hotpotqa") == 3800
    assert context("hotpotqa", "engine.max_context=1500") == 1500
    assert context("gsm8k", "models.qwen2.5-0.5b.thinking=on") == 1720
    file = long_rows(tmp_path, 9000)
    assert context(file) > 9000
    config = load_training(overrides=[f"problems.source={file}", "engine.max_context=1024"])
    assert "raise engine.max_context" in plan.describe_context(config)
    assert "raise" not in plan.describe_context(with_context(load_training()))
