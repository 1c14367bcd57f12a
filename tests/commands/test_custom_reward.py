"""Rewards of the user's own: `--reward FILE:FN`, in training, credit, evaluation and `vf-eval`, and
what can go wrong.
"""

import asyncio
import json
import re
from threading import Barrier
from types import SimpleNamespace

import pytest
from support import grpo_config
from tables import read_json, read_jsonl, table

from alphazero_llm_trainer.api.train import TrainingRun
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.cli.vf_eval import main as vf_eval
from alphazero_llm_trainer.config.sections import RewardConfig
from alphazero_llm_trainer.errors import ConfigError, RewardError
from alphazero_llm_trainer.learning.stats import group_kind
from alphazero_llm_trainer.rewards.combined import combined, steps_of
from alphazero_llm_trainer.rewards.custom import CustomReward, open_reward
from alphazero_llm_trainer.runs.summary import Summary
from alphazero_llm_trainer.tree.arena import ROOT, Tree
from alphazero_llm_trainer.tree.extract import (
    outcomes,
    step_preferences,
    trajectories,
    value_targets,
)
from alphazero_llm_trainer.tree.graded import GradedTree
from alphazero_llm_trainer.tree.journal import read
from alphazero_llm_trainer.types import Problem, RewardParts, Step, Task
from alphazero_llm_trainer.viewer.record import record_row

TASK = Task(Problem("mine/1", "2 + 2?", "mine"), "4")


CASES = table("rewards")


LINE = r" in test_custom_reward.py, line \d+, for problem mine"
SMALL = """
    --use-grpo --model embedded --num-examples 16 --eval-size 8 --save-every 16 --set
    train.questions_per_round=8 --set train.validation_size=8 --set train.demonstrations=8 --set
    train.requeue_limit=0 --set train.rows_per_round=8 --set train.optimizer.batch_size=4 --set
    train.optimizer.epochs=1
""".split()
ALONE = "--set rewards.hre_weight=0 --set rewards.pre_weight=0 --set rewards.step_penalty=0".split()

# Shorter responses are better; nothing in it looks at the answer.
BRIEF = "def brief(problem, response, task):\n    return 1.0 / (1.0 + len(response) / 20)\n"


def asked(function, response="a response"):
    reward = CustomReward(function, "mine.py:fn")(TASK.problem, response, TASK)
    return asyncio.run(asyncio.wait_for(reward, 60))


LOUD = """
import subprocess, sys
print("shout import")
def loud(problem, response, task):
    print("shout print")
    sys.stdout.write("shout write\\n")
    if CHILD:
        subprocess.run(["echo", "shout child"], check=True)
    return 0.5
async def later(problem, response, task):
    print("shout print")
    return 0.5
"""


@pytest.mark.parametrize("name", ["loud", "later"])
def test_what_a_reward_prints_goes_to_standard_error(name, tmp_path, capfd):
    source = file_of(tmp_path, '{"question": "2 + 2?", "answer": "4", "split": "test"}', "a.jsonl")
    line = f"eval --source {source} --model embedded -n 1 --methods greedy --budget-tokens 60"
    for more, child in (("--json", True), ("", False)):
        code = LOUD.replace("CHILD", str(child))
        file = file_of(tmp_path, code, f"own{child}.py")
        out = tmp_path / f"out{child}"
        assert main(f"{line} --reward {file}:{name} --out {out} {more}".split()) == 0
        printed = capfd.readouterr()
        assert "shout" not in printed.out
        assert "shout import\n" in printed.err and "shout print\n" in printed.err
        assert ("shout child" in printed.err) is (child and name == "loud")
        if more:
            assert json.loads(printed.out)["command"]
    print("mine")  # what others print stays there
    assert capfd.readouterr().out == "mine\n"


async def stops(*_):
    return next(iter(()))


def file_of(folder, code, name="rewards.py"):
    file = folder / name
    file.write_text(code, encoding="utf-8")
    return file


# -- the function ----------------------------------------------------------------------------------


def test_sync_and_async_functions_see_problem_response_and_task():
    seen = []

    def sync(problem, response, task):
        seen.append((problem, response, task))
        return 0.25

    async def waits(problem, response, task):
        await asyncio.sleep(0)
        return sync(problem, response, task) + 0.5

    assert asked(sync, "it is 4\n") == 0.25
    assert asked(waits, "it is 4\n") == 0.75
    assert asked(lambda *given: waits(*given), "it is 4\n") == 0.75  # noqa: PLW0108 - only its result can be awaited
    assert seen == [(TASK.problem, "it is 4", TASK)] * 3


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda *_: 1.5, r"gave 1\.5 for problem mine/1: return one number from 0 to 1"),
        (lambda *_: float("nan"), "gave nan"),
        (lambda *_: None, r"gave nothing for problem mine/1: return one number"),
        (lambda *_: [1.0, 0.0], r"gave a list for problem mine/1: return one number"),
        (lambda *_: 1 / 0, r"raised ZeroDivisionError \(division by zero\)" + LINE),
        (lambda *_: json.loads("{"), r"raised JSONDecodeError .*" + LINE),
        # What no future carries: awaited as it is, the first hangs a run and the others end it.
        (lambda *_: next(iter(())), "raised StopIteration" + LINE),
        (lambda *_: (_ for _ in ()).throw(GeneratorExit), "raised GeneratorExit"),
        (lambda *_: (_ for _ in ()).throw(asyncio.CancelledError("no")), r"Error \(no\)"),
        (stops, "raised StopIteration" + LINE),
        # And no line of the standard library's.
        (lambda _: 1.0, r"raised TypeError \(.*given\) for problem mine"),
    ],
)
def test_what_a_function_does_wrong_is_one_sentence(function, said):
    with pytest.raises(RewardError, match=r"^rewards\.custom is 'mine\.py:fn' and .*" + said):
        asked(function)


def test_sync_calls_run_beside_each_other():
    together = Barrier(4)  # broken, and an error, unless four calls meet
    reward = CustomReward(lambda *_: float(together.wait(60) >= 0), "mine")
    assert asyncio.run(reward.scores([TASK] * 8, ["x"] * 8)) == [1.0] * 8


@pytest.mark.parametrize("address, said", CASES["unloaded"])
def test_what_cannot_be_loaded_is_one_sentence(address, said, tmp_path):
    code = BRIEF + "number = 3\ndef trl(completions, **kwargs):\n    return 0.0\n"
    address = address.format(file=file_of(tmp_path, code))
    with pytest.raises(ConfigError, match=r"rewards\.custom is .*" + said):
        open_reward(RewardConfig(custom=address))


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("given, parts, total, outcome", CASES["own"])
def test_it_joins_or_replaces_the_other_parts_by_its_weight(given, parts, total, outcome):
    weights = RewardConfig(step_penalty=0, **given)
    found = combined(*parts, steps=3, right=0, wrong=0, weights=weights)
    assert [found.hre, found.pre, found.custom] == parts
    assert (found.total, found.outcome) == (pytest.approx(total), pytest.approx(outcome))
    alone = {"hre_weight": 0, "pre_weight": 0, "use_student_model": False, "custom": "m:f"}
    assert grpo_config([{"rewards": alone}]).rewards.own
    with pytest.raises(ConfigError, match=r"rewards\.hre_weight is 0"):
        grpo_config([{"rewards": {**alone, "custom_weight": 0}}])


# -- trees -----------------------------------------------------------------------------------------


def graded_tree():
    """Two first steps, each with two ends: (good) 0.9 and 0.5, (bad) 0.3 and 0.1; by gold all are
    right but the first.
    """
    tree = Tree()
    for first, worth in ((1, 0.9), (1, 0.5), (2, 0.3), (2, 0.1)):
        node = tree.attach(ROOT, Step((first,), (-0.7,), f"{first}\n"))
        token = 10 * first + len(tree)
        leaf = tree.attach(node, Step((token,), (-0.7,), f"#### {token}"))
        right = float(worth < 0.9)
        tree.finish(leaf, "answer", RewardParts(worth / 2, hre=right, custom=worth, outcome=worth))
        tree.samples[leaf] = 1
        tree.backup(leaf, worth / 2)
    return tree


def test_graded_outcomes_reach_targets_pairs_and_tables():
    tree = Tree.from_dict(json.loads(json.dumps(graded_tree().to_dict())))
    found = trajectories(tree)
    assert [one.outcome for one in found] == [0.9, 0.5, 0.3, 0.1]
    root, good, *_ = value_targets(tree)
    assert (root.target, good.target) == pytest.approx((0.45, 0.7))
    assert good.square == pytest.approx((0.81 + 0.25) / 2)
    assert [pytest.approx(p.margin) for p in step_preferences(tree, least=1)] == [0.5, 0.4]
    assert outcomes(tree, correctness=True)[1][ROOT] == 3.0
    assert group_kind(found) == "mixed" and not any(one.right for one in found)
    cost = SimpleNamespace(as_dict=dict)
    graded = GradedTree("mine/1", TASK, tree, cost, "simulations", False, 0)
    assert record_row(graded.record()).outcome == "wrong"
    summary = Summary()
    summary.add({"key": "mine/1", "ended_by": "simulations", "cost": {}, "tree": tree.to_dict()})
    assert (summary.responses, summary.right) == (4, 0)


# -- runs ------------------------------------------------------------------------------------------


def test_training_reports_the_reward_and_leaves_failed_questions_out(tmp_path, capsys):
    """Two problems in three are rewarded; the others get NaN, 1.5 or an exception, and the run goes
    on.
    """
    code = """
from hashlib import sha256
async def some(problem, response, task):
    kind = sha256(problem.id.encode()).digest()[0] % 9
    if kind == 0:
        raise KeyError('lost')
    return {1: float('nan'), 2: 1.5}.get(kind, 1.0 / (1.0 + len(response) / 20))
"""
    file, run = file_of(tmp_path, code), tmp_path / "run-001"
    flags = f"--set rewards.use_student_model=false --out {tmp_path} --reward {file}:some".split()
    assert train_main([*SMALL, *ALONE, *flags]) == 0
    card, said = read_json(run / "run.json"), capsys.readouterr()
    records = [*read(run / "journal.jsonl")]
    failed = [record for record in records if record["ended_by"].startswith("failed reward: ")]
    assert len(records) == 16 and 3 < card["failed_rewards"] == len(failed) < 16
    assert re.search(rf"left out, since a reward failed +{len(failed)}\n", said.out)
    # What they took is paid for.
    assert all(record["cost"]["sampled_tokens"] > 0 for record in failed)
    paid = sum(record["cost"]["sampled_tokens"] for record in records)
    assert card["search_cost"]["sampled_tokens"] == paid
    rounds = [line for line in read_jsonl(run / "metrics.jsonl") if "flat" in line]
    assert all(line["flat"] + line["failed"] <= line["questions"] for line in rounds)
    assert all("rewards.custom is" in record["ended_by"] for record in failed)
    assert said.err.count("is left out: rewards.custom is") == 3
    assert said.err.count("more are left out like these") == 1
    for when in ("before", "after"):
        known = [reward for reward in card[when]["rewards"] if reward is not None]
        assert card[when]["reward"]["value"] == pytest.approx(sum(known) / len(known))
        assert card[when]["failed_rewards"] == 8 - len(known)
    assert TrainingRun(run, card).reward_gain.value == card["reward_gain"]["value"]
    page = (run / "report.html").read_text()
    assert "reward before [95%]" in said.out and "reward after [95%]" in page
    assert f"{len(failed)} questions<" in page
    rewarded = [Tree.from_dict(record["tree"]) for record in records if record not in failed]
    assert all(one.reward == one.outcome for tree in rewarded for one in trajectories(tree))


@pytest.mark.parametrize(
    "held_out, whose",
    [
        (8, "every one of 8 responses"),  # noticed by the evaluation before training
        (0, "at least one response of each of 8 questions"),  # by the first round
    ],
)
def test_a_reward_that_always_fails_ends_the_run(held_out, whose, tmp_path, capsys):
    file = file_of(tmp_path, "def broken(problem, response, task):\n    return response.score\n")
    flags = f"--eval-size {held_out} --set train.validation_size=0 --out {tmp_path} -q"
    assert train_main([*SMALL, *flags.split(), "--reward", f"{file}:broken"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ") and whose in said
    assert "raised AttributeError ('str' object has no attribute 'score')" in said


def test_eval_without_gold_answers_compares_rewards(tmp_path, capsys):
    tasks = "\nTASKS = [(f'Ana has {i} pens. How many has she?', '') for i in range(40)]\n"
    file, out = file_of(tmp_path, BRIEF + tasks), tmp_path / "eval"
    command = f"""
        eval --source {file}:TASKS --model embedded --methods greedy majority -n 3 --samples 2
        --budget-tokens 40 80 --reward {file}:brief --out {out}
    """
    assert main([*command.split(), *ALONE[:4]]) == 0
    said, results = capsys.readouterr().out, read_json(out / "results.json")
    assert results["pairs"] == []
    rows = [row for row in results["rows"] if row["budget"] == 80]
    best = max(rows, key=lambda row: (row["reward"][0], -row["sampled_tokens"]))
    name, reward = best["method"], f"{best['reward'][0]:.3f}"
    assert f"{name} has reward {reward}" in said and "no difference shown between" in said
    assert re.search(r"pass@k +no gold answers +no gold answers\n", said)
    assert "no difference shown" in (out / "report.html").read_text()


def test_vf_eval_scores_by_the_reward(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = f"""
        alphazero-llm-trainer -n 3 --no-rich --env.taskset.use-student-model false
        --env.taskset.task.custom {file_of(tmp_path, BRIEF)}:brief
    """
    assert vf_eval(command.split()) == 0
    [traces] = tmp_path.rglob("traces.jsonl")
    for line in read_jsonl(traces):
        [trace] = line["traces"]
        parts = trace["metrics"]
        assert parts.keys() == {"correctness_reward", "custom_reward"}
        assert 0 < parts["custom_reward"] < 1
        steps = steps_of(trace["nodes"][-1]["message"]["content"])
        expected = (0.4 * parts["correctness_reward"] + parts["custom_reward"]) / 1.4 - 0.01 * steps
        assert trace["rewards"]["combined_reward"]["score"] == pytest.approx(expected)
    assert "custom_reward 0." in capsys.readouterr().out


@pytest.mark.parametrize("outcomes, kind", CASES["kinds"])
def test_a_response_without_a_grade_makes_no_question_a_mixed_one(outcomes, kind):
    assert group_kind([SimpleNamespace(outcome=outcome) for outcome in outcomes]) == kind
