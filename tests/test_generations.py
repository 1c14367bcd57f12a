"""Generations with the shipped student: gate, curriculum, contamination, roll-back, and a loop that is killed."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.collect import Collector
from alphazero_llm_trainer.config.load import Config, load_config
from alphazero_llm_trainer.errors import CheckpointError, DataError
from alphazero_llm_trainer.eval.metrics import Interval
from alphazero_llm_trainer.mcts.journal import Journal, read
from alphazero_llm_trainer.policy.student import PACKAGED, load_student
from alphazero_llm_trainer.policy.value_function import policy_fingerprint
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.training.arena import gate
from alphazero_llm_trainer.training.checkpoint import fingerprint
from alphazero_llm_trainer.training.contamination import Contamination, normalised
from alphazero_llm_trainer.training.generations import CARD, Loop
from alphazero_llm_trainer.training.size import RunSize
from alphazero_llm_trainer.training.source import RoundSource, RoundStats, outcome
from alphazero_llm_trainer.types import Task

COMMAND = [sys.executable, "-c", "from alphazero_llm_trainer.cli.main import main; raise SystemExit(main())", "loop"]
SMALL = {
    "student": "embedded",
    "seed": 2,  # one roll-back, then a promotion, when this was written
    "rewards": {"use_student_model": False},
    "problems": {"levels": [2, 3]},
    "loop": {
        "generations": 2, "questions": 32, "arena_size": 24, "test_size": 12, "revisit_share": 0.25, "budget_tokens": 120,
        "margin": 1.0,
    },
    "train": {
        "questions_per_round": 8, "save_every": 8, "validation_size": 12, "rows_per_round": 8, "demonstrations": 20,
        "first_question": 3000, "keep_best": False,
        "grpo": {"batch_size": 5, "epochs": 2, "learning_rate": 2e-4},
        "value": {"epochs": 1, "extra_layers": 0},
        "prm": {"epochs": 1},
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    """Sums in one order, so that loops can be compared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(*overrides: Any) -> Config:
    return load_config(overrides=[SMALL, *overrides])


def started(config: Config, out: Path) -> dict[str, Any]:
    loop = Loop(config, out)
    loop.load()
    return loop.execute()


def arguments(out: Path) -> list[str]:
    file = out.with_suffix(".yaml")
    file.write_text(json.dumps(SMALL))  # JSON is YAML
    return ["--config", str(file), "--out", str(out)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed loop, as the command runs it."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("whole") / "loop"
    assert main(["loop", *arguments(out)]) == 0
    return out


def decided(out: Path) -> list[Any]:
    """What must not depend on interruptions: decisions, weights, questions and every arena outcome."""
    card = json.loads((out / CARD).read_text())
    kept = []
    for one in card["generations"]:
        cells = {name: cell["outcomes"] for name, cell in one.get("arena", {}).items() if isinstance(cell, dict)}
        trained = [one.get(name, {}).get("data_sha256") for name in ("value", "prm")]
        kept.append([one["decision"], one["why"], one["weights"], one["questions"], trained, cells])
    test = {name: cell["outcomes"] for name, cell in card["test"].items() if "outcomes" in cell}
    return [kept, card["champion"], test]


# -- the gate ----------------------------------------------------------------------------------------------------------

LEVEL = Interval(0.0, -0.05, 0.05)


@pytest.mark.parametrize(
    ("greedy", "search", "promoted", "why"),
    [
        (Interval(0.03, 0.01, 0.05), LEVEL, True, r"\+0.030"),
        (Interval(0.03, -0.019, 0.08), LEVEL, True, r"\+0.030"),
        (Interval(0.03, -0.02, 0.08), LEVEL, False, "worse by more than 0.02"),
        (Interval(0.0, 0.0, 0.0), LEVEL, False, "not better"),
        (Interval(-0.01, -0.02, 0.0), LEVEL, False, "not better"),
        (Interval(0.03, 0.01, 0.05), Interval(-0.02, -0.04, 0.0), True, "search"),
        (Interval(0.03, 0.01, 0.05), Interval(-0.04, -0.07, -0.01), False, "search is significantly worse"),
        (Interval(math.nan, math.nan, math.nan), LEVEL, False, "not better"),
        (Interval(0.03, 0.01, 0.05), Interval(math.nan, math.nan, math.nan), False, "search"),
    ],
)
def test_the_gate_promotes_what_is_better_and_not_worse(
    greedy: Interval, search: Interval, promoted: bool, why: str
) -> None:
    decision = gate(greedy, search, 0.02)
    assert decision.promoted is promoted
    assert re.search(why, decision.why)


# -- the curriculum ----------------------------------------------------------------------------------------------------


def round_of(folder: Path, extend: str) -> tuple[RoundStats, list[Any]]:
    config = small({"train": {"extend": extend, "groups": "tree", "questions_per_round": 40, "save_every": 40}})
    student = load_student(config)
    tasks = load_tasks("embedded", "train", 40, levels=config.problems.levels, start=3000)
    seen: list[RoundStats] = []
    source = RoundSource(
        student, config, Collector(student, config, None), tasks, [], Journal(folder / f"{extend}.jsonl"),
        size=RunSize.of(config), on_tree=lambda tree: None, on_round=seen.append, stop=lambda: False,
    )  # fmt: skip
    trees, stats = source.search(0)
    return stats, trees


def test_the_rule_decides_which_questions_get_more_search(tmp_path: Path) -> None:
    plain, trees = round_of(tmp_path, "none")
    assert plain.extended == plain.extensions == 0
    assert plain.all_right + plain.all_wrong + plain.mixed == 40 and min(plain.all_right, plain.mixed) > 0
    at_first = {tree.key: outcome(tree.tree) for tree in trees}
    mixed, longer = round_of(tmp_path, "mixed")
    assert {tree.key for tree in longer if tree.extensions} == {
        key for key, kind in at_first.items() if kind == "mixed"
    }
    assert mixed.extended == plain.mixed
    flat, again = round_of(tmp_path, "flat")
    assert {tree.key for tree in again if tree.extensions} == {key for key, kind in at_first.items() if kind != "mixed"}
    assert flat.extended == plain.all_right + plain.all_wrong


def test_mixed_questions_come_back_and_solved_ones_do_not(tmp_path: Path) -> None:
    loop = Loop(small(), tmp_path / "loop")
    loop.load()
    first, none = loop.questions(1, 3000, {})
    assert none == 0 and len({task.problem.id for task in first}) == 32
    known = {task.problem.id: ("solved", "mixed", "hopeless")[i % 3] for i, task in enumerate(first)}
    second, again = loop.questions(2, 3032, known)
    old = [task for task in second if task.problem.id in known]
    assert again == len(old) == 8 and len(second) == 32
    assert {known[task.problem.id] for task in old} == {"mixed"}
    assert [task.problem.id for task in second] == [task.problem.id for task in loop.questions(2, 3032, known)[0]]
    few, again = loop.questions(2, 3032, {first[0].problem.id: "mixed"})
    assert again == 1 and len(few) == 32


# -- contamination -----------------------------------------------------------------------------------------------------


def lines(path: Path, tasks: list[Task]) -> Path:
    path.write_text(
        "".join(
            json.dumps({"key": t.problem.id, "problem": {"id": t.problem.id, "question": t.problem.question}}) + "\n"
            for t in tasks
        )
    )
    return path


def test_a_clean_file_is_counted_and_a_held_out_question_is_named(tmp_path: Path) -> None:
    arena, training = load_tasks("embedded", "arena", 5), load_tasks("embedded", "train", 5)
    check = Contamination({"arena": arena})
    clean = lines(tmp_path / "clean.jsonl", training)
    assert check.check(tmp_path, [clean])["records"] == {"clean.jsonl": 5}
    dirty = lines(tmp_path / "dirty.jsonl", [*training, arena[2]])
    with pytest.raises(DataError, match=r"dirty\.jsonl has a question of the arena split") as error:
        check.check(tmp_path, [clean, dirty])
    assert arena[2].problem.question in str(error.value)


def test_neither_another_spelling_nor_another_id_hides_it(tmp_path: Path) -> None:
    [held] = load_tasks("embedded", "arena", 1)
    assert normalised("  She buys 3\nPENS!  ") == normalised("she buys 3 pens") != normalised("she buys 4 pens")
    record = {"key": "x", "problem": {"id": "mine/7", "question": held.problem.question.upper().replace(" ", "  ")}}
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError, match="arena split, mine/7"):
        Contamination({"arena": [held]}).check(tmp_path, [file])


def test_a_worked_solution_of_another_split_is_found_without_its_text(tmp_path: Path) -> None:
    held, [trained] = load_tasks("embedded", "test", 3), load_tasks("embedded", "train", 1)
    file = lines(tmp_path / "journal.jsonl", [held[1]])
    with pytest.raises(DataError, match=r"question of the test split"):
        Contamination({"arena": []}).check(tmp_path, [file])
    record = {"key": "x", "problem": {"id": trained.problem.id, "question": trained.problem.question}}
    file.write_text(json.dumps(record | {"solution": held[0].solution}) + "\n")
    with pytest.raises(DataError, match=r"question of the test split"):
        Contamination({"arena": []}).check(tmp_path, [file])
    record["problem"]["question"] += " Really?"
    file.write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError, match="another question than"):
        Contamination({"arena": []}).check(tmp_path, [file])


# -- a loop ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_card_says_what_was_done(whole: Path) -> None:
    card = json.loads((whole / CARD).read_text())
    assert [one["generation"] for one in card["generations"]] == [1, 2]
    ids = []
    for one in card["generations"]:
        asked = one["questions"]
        assert asked["fresh"] + asked["revisited"] == 32
        assert asked["solved"] + asked["hopeless"] + asked["mixed"] <= 32
        assert one["costs"]["policy"]["sampled_tokens"] > 0 and len(asked["sha256"]) == 64
        arena = one["arena"]
        for kind in ("greedy", "search"):
            value, low, high = arena[f"gain {kind}"]
            assert low <= value <= high
            cells = [arena[f"{who} {kind}"] for who in ("champion", "candidate")]
            assert len({cell["data_sha256"] for cell in cells}) == 1
            for cell in cells:
                assert len(cell["outcomes"]) == 24
                assert cell["sampled_tokens"] + cell["scored_tokens"] <= 24 * card["config"]["loop"]["budget_tokens"]
        verifier = arena["candidate search"]["verifier"]
        chosen, tried = one["verifier"]["chosen"], one["verifier"]["validation"]
        assert verifier == "+".join(["calculator", *([chosen] if chosen else [])])
        assert ("calculator+prm" in tried) == one["prm"]["trained"]
        if tried:
            assert tried[verifier]["right"] == max(cell["right"] for cell in tried.values())
        policy = whole / f"generation-{one['generation']:03d}" / "policy"
        ids.append({record["problem"]["id"] for record in read(policy / "journal.jsonl")})
        assert one["contamination"]["records"][f"generation-{one['generation']:03d}/policy/journal.jsonl"] == 32
    assert len(ids[0] & ids[1]) == card["generations"][1]["questions"]["revisited"]
    assert (
        card["generations"][0]["arena"]["champion greedy"]["data_sha256"]
        != (card["generations"][1]["arena"]["champion greedy"]["data_sha256"])
    )
    assert card["contamination"]["held_out"] == {"arena": 48, "validation": 12, "test": 12}
    assert card["contamination"]["records"]["demonstrations.jsonl"] == 20
    page = (whole / "report.html").read_text()
    assert "generation 1 " + card["generations"][0]["decision"] in page


@pytest.mark.slow
def test_a_promoted_candidate_is_the_next_ones_start_and_the_champion_is_a_copy(whole: Path) -> None:
    card = json.loads((whole / CARD).read_text())
    champion = 0
    for one in card["generations"]:
        assert one["from"] == champion
        config = json.loads((whole / f"generation-{one['generation']:03d}/policy/run.json").read_text())["config"]
        start = config["train"]["student"]
        assert start is None if champion == 0 else f"generation-{champion:03d}" in start
        champion = one["generation"] if one["decision"] == "promoted" else champion
    assert card["champion"] == champion
    if champion:
        copy = whole / "champion" / "student"
        assert fingerprint(copy / "model.safetensors") == fingerprint(
            whole / f"generation-{champion:03d}" / "policy" / "student" / "model.safetensors"
        )


@pytest.mark.slow
def test_ruined_training_is_rolled_back_and_the_champion_survives_bit_for_bit(tmp_path: Path) -> None:
    start = tmp_path / "start"
    shutil.copytree(PACKAGED, start)
    files = {file.name: fingerprint(file) for file in start.iterdir()}
    config = small(
        {
            "train": {"student": str(start), "grpo": {"learning_rate": 0.05, "warmup_rounds": 0}},
            "loop": {"prm": False, "value": "none"},
        }
    )
    card = started(config, tmp_path / "loop")
    assert [one["decision"] for one in card["generations"]] == ["rolled back", "rolled back"]
    assert card["champion"] == 0 and not (tmp_path / "loop" / "champion").exists()
    assert {file.name: fingerprint(file) for file in start.iterdir()} == files
    shipped = load_student(config)
    assert card["started_from"]["weights"] == policy_fingerprint(shipped.model)
    assert policy_fingerprint(load_student(config, path=start).model) == card["started_from"]["weights"]
    first, second = card["generations"]
    assert first["arena"]["gain greedy"][2] < 0, "the training was meant to ruin it"
    assert first["from"] == second["from"] == 0
    assert first["seed"] != second["seed"] and first["questions"]["sha256"] != second["questions"]["sha256"]
    assert first["weights"] != second["weights"]
    assert card["test"]["gain greedy"] == [0.0, 0.0, 0.0]


@pytest.mark.slow
def test_training_that_diverges_is_a_roll_back_that_says_so(tmp_path: Path) -> None:
    config = small(
        {"train": {"grpo": {"learning_rate": 1e30, "warmup_rounds": 0}}, "loop": {"generations": 1, "test_size": 0}}
    )
    [one] = started(config, tmp_path / "loop")["generations"]
    assert one["decision"] == "rolled back" and one["weights"] is None
    assert "there is no new candidate" in one["why"] and "lower the learning rate" in one["why"]


@pytest.mark.slow
def test_a_held_out_question_in_a_loops_file_ends_it(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "loop"
    shutil.copytree(whole, out)
    [held] = load_tasks("embedded", "arena", 1, levels=small().problems.levels)
    with (out / "generation-001" / "value" / "questions.jsonl").open("a") as file:
        file.write(json.dumps({"key": "x", "problem": {"id": "x", "question": held.problem.question}}) + "\n")
    shutil.rmtree(out / "test-002")
    with pytest.raises(
        DataError, match=r"generation-001/value/questions\.jsonl has a question of the arena split"
    ) as error:
        started(small(), out)
    assert held.problem.question in str(error.value)


# -- interruptions -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "most"), [(1, 2)])
def test_killed_at_random_moments_it_ends_as_an_undisturbed_one(
    whole: Path, tmp_path: Path, seed: int, most: int
) -> None:
    """A real process is killed with SIGKILL again and again, each time a random while after it made progress."""
    out, rng = tmp_path / "loop", Random(seed)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    kills, code = 0, None
    while code is None:
        more = ["--resume", "--out", str(out)] if (out / CARD).is_file() else arguments(out)
        process = subprocess.Popen(
            [*COMMAND, *more], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        before, deadline = newest_change(out), time.monotonic() + 600
        while kills < most and process.poll() is None and newest_change(out) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        try:
            code = process.wait(rng.uniform(0.0, 6.0) if kills < most else 300)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        assert code in (None, 0), process.stderr.read().decode()[-2000:] if process.stderr else ""
    assert kills >= 1
    assert decided(out) == decided(whole)
    champion = json.loads((out / CARD).read_text())["champion"]
    if champion:
        assert fingerprint(out / "champion/student/model.safetensors") == fingerprint(
            whole / "champion/student/model.safetensors"
        )


def newest_change(out: Path) -> float:
    """When a file of the folder was last written."""
    return max((file.stat().st_mtime for file in out.rglob("*") if file.is_file()), default=0.0)


@pytest.mark.slow
def test_a_killed_loops_stages_are_done_once(whole: Path, tmp_path: Path) -> None:
    """Resuming a finished loop does nothing again; one without its last stages does those alone."""
    out = tmp_path / "loop"
    shutil.copytree(whole, out)
    journal = out / "generation-002" / "policy" / "journal.jsonl"
    written = journal.stat().st_mtime_ns
    stages = json.loads((out / "generation-002" / "stages.json").read_text())
    for name in ("candidate search", "contamination", "prm"):
        del stages[name]
    (out / "generation-002" / "stages.json").write_text(json.dumps(stages))
    config = small()
    assert started(config, out)["champion"] == json.loads((whole / CARD).read_text())["champion"]
    assert decided(out) == decided(whole)
    assert journal.stat().st_mtime_ns == written


@pytest.mark.slow
def test_a_stop_is_kept_and_resumed(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "loop"
    process = subprocess.Popen(
        [*COMMAND, *arguments(out)], env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 600
    while not (out / "generation-001/policy/journal.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert "go on with: --resume" in (process.stderr.read().decode() if process.stderr else "")
    assert main(["loop", "--resume", "--out", str(out)]) == 0
    assert decided(out) == decided(whole)


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_wrong_is_one_sentence(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, message in (
        (["--out", str(whole)], "holds a loop already"),
        (["--out", str(tmp_path / "none"), "--resume"], "found no loop"),
        (["--out", str(whole), "--resume", "--generations", "1"], "name as many or more"),
        (["--out", str(whole), "--resume", "--seed", "99"], "seed is 2 there and 99 here"),
        (["--out", str(tmp_path / "x"), "--path", str(tmp_path)], "has no config.json"),
        (["--out", str(tmp_path / "x"), "--set", "loop.margin=2"], "loop.margin is 2"),
    ):
        assert main(["loop", *given]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists() and not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_start_that_changed_is_refused(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "loop"
    shutil.copytree(whole, out)
    card = json.loads((out / CARD).read_text())
    card["started_from"]["weights"] = "0" * 64
    (out / CARD).write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match="other weights"):
        started(small(), out)
