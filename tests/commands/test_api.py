"""The Python API: what `import alphazero_llm_trainer as az` offers, and that the commands say the
same.
"""

import asyncio
import html
import json
import signal
from pathlib import Path

import pytest
from tables import read_json

import alphazero_llm_trainer as az
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.errors import CheckpointError, ConfigError
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.problems import source

QUESTION = "Ana has 3 pens. She buys 4 more pens. How many pens does Ana have now?"
SMALL = {"train.validation_size": 4, "train.questions_per_round": 12, "train.demonstrations": 0}


def pens(count=60):
    question = "Ana has {} pens. She buys 4 more pens. How many pens does Ana have now?"
    return [
        az.Task(az.Problem(f"pens/{i}", question.format(i), "pens"), str(i + 4))
        for i in range(2, 2 + count)
    ]


def test_every_name_is_there():
    assert all(getattr(az, name) is not None for name in az.__all__)
    assert dir(az) == sorted(az.__all__) and not hasattr(az, "nothing")


def test_search_says_what_the_command_says(capsys):
    found = az.search(QUESTION, model="embedded", simulations=8, seed=3)
    assert (
        main(["search", QUESTION, *"--model embedded --simulations 8 --seed 3 --json".split()]) == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert found.answer == said["answer"] and found.response == said["response"]
    assert json.loads(json.dumps(found.tree.to_dict())) == said["tree"] and isinstance(
        found.tree, Tree
    )
    assert found.cost.sampled_tokens == said["cost"]["sampled_tokens"] > 0
    assert json.loads(json.dumps(found.record | {"cost": said["cost"]})) == said  # seconds differ
    shown = html.unescape(found._repr_html_())
    token = found.tree.token_ids[found.choice.node][0] if found.choice is not None else -1
    assert (
        shown.startswith("<iframe")
        and html.escape(QUESTION)[:20] in shown
        and f'"{token}":' in shown
    )


def test_settings_reach_the_search_and_a_loaded_student_is_used():
    student = az.load("embedded")
    assert str(student) == "Student embedded: 117,632 parameters, engine inprocess"
    tokens = az.search(QUESTION, model=student, simulations=5, mode="token", temperature=0.7)
    assert max(map(len, tokens.tree.token_ids)) == 1 and tokens.tree.N[0] == 5
    with pytest.raises(ConfigError, match=r"search\.step is 'sentence'.*`load`"):
        az.search(QUESTION, model=student, step="sentence")
    few = az.search(QUESTION, model=student, budget_tokens=30)
    assert few.cost.sampled_tokens <= 30 < az.search(QUESTION, model=student).cost.sampled_tokens
    with pytest.raises(ConfigError, match="nonsense"):
        az.search(QUESTION, model=student, nonsense=1)
    with pytest.raises(ConfigError, match="empty"):
        az.search("  ", model=student)


def test_words_that_a_small_vocabulary_lacks_are_said():
    said = []
    az.search("What is 7 plus 8?", model="embedded", simulations=1, progress=said.append)
    az.search(QUESTION, model="embedded", simulations=1, progress=said.append)
    assert [line for line in said if "know" in line] == [
        "embedded doesn't know 'plus': its answer means little"
    ]


def test_a_call_inside_a_running_event_loop_stays_in_its_thread(tmp_path):
    async def timed(problem, response, task):
        # The main thread's alone, as is Ctrl-C.
        signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        return 0.5

    async def notebook():
        found = az.evaluate(
            pens(), reward=timed, methods=["greedy"], num=2, out=tmp_path / "eval", progress=False
        )
        await asyncio.sleep(0)
        assert asyncio.get_event_loop() is asyncio.get_running_loop()
        return found

    [row] = asyncio.run(notebook()).rows
    assert row["reward"][0] == 0.5
    some = {"methods": ["greedy"], "num": 2, "progress": False}
    assert az.evaluate(out=tmp_path / "default", **some).rows[0]["problems"] == 2


def test_train_on_tasks_with_a_reward_writes_its_folder_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []

    def brief(problem, response, task):
        asked.append(task.gold)
        return 1.0 / (1.0 + len(response))

    lines = []
    run = az.train(
        pens(),
        reward=brief,
        method="grpo",
        model="embedded",
        num_examples=24,
        eval_size=6,
        out="runs/1",
        config=SMALL,
        progress=lines.append,
    )
    assert run.finished
    assert run.gain.value == pytest.approx(run.after.value - run.before.value)
    assert asked and lines and str(run) and (run.student / "config.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"] and run.folder == Path("runs/1")
    trees = list(az.read_trees(run.folder))
    assert len(trees) == 24 and all(saved.problem.source == "tasks" for saved in trees)
    # What a notebook shows is a page in a frame: the run's report with its result, and the tree of
    # one question.
    assert (
        html.escape((run.folder / "report.html").read_text().split("</h1>")[0]) in run._repr_html_()
    )
    shown = html.unescape(trees[0]._repr_html_())
    assert (
        html.escape(str(trees[0].problem.question)[:20]) in shown
        and '"pieces":' in shown
        and '"chosen":' in shown
    )
    rewards = {path.reward for saved in trees for path in saved.paths}
    assert len(rewards) > 1 and all(0 <= reward <= 1 for reward in rewards)
    assert az.search(QUESTION, model=run.student, simulations=2).tree.N[0] > 0
    with pytest.raises(ConfigError, match="resume=True"):
        az.train(pens(), model="embedded", out="runs/1")
    with pytest.raises(ConfigError, match=r"train\.num_examples is 48, the run in .* has 24"):
        az.train(pens(), out="runs/1", num_examples=48, resume=True)
    with pytest.raises(ConfigError, match=r"train\.clip_low is 0\.1, the run in .* has 0\.2"):
        az.train(pens(), out="runs/1", config={"train": {"clip_low": 0.1}}, resume=True)
    with pytest.raises(CheckpointError, match=r"did you mean runs/1/student\?"):
        az.load("runs/1")
    monkeypatch.setattr(source, "_held", {})  # as a new session begins
    source._opened.cache_clear()
    card = read_json(run.folder / "run.json")
    card["config"]["rewards"]["custom"] = "__main__:judge"
    card["config"]["problems"]["source"] = "embedded"
    (tmp_path / "runs" / "2").mkdir()
    (tmp_path / "runs" / "2" / "run.json").write_text(json.dumps(card))
    with pytest.raises(
        ConfigError, match="has a reward of a Python session, __main__:judge: pass the same one as"
    ):
        az.train(out="runs/2", resume=True)
    with pytest.raises(
        ConfigError, match="learns from tasks of a Python session: pass the same ones as `problems`"
    ):
        az.train(out="runs/1", resume=True)
    assert az.train(pens(), out="runs/1", resume=True).card["after"] == run.card["after"]


def test_evaluate_gives_a_table_and_goes_on(tmp_path):
    asked = {
        "methods": ["greedy", "majority"],
        "num": 5,
        "out": tmp_path / "eval",
        "progress": False,
    }
    table = az.evaluate(pens(), "embedded", budget_tokens=[60, 120], **asked)
    assert {(row["method"], row["budget"]) for row in table.rows} == {
        (method, budget) for method in ("greedy", "majority") for budget in (60, 120)
    }
    assert all(row["problems"] == 5 and len(row["accuracy"]) == 3 for row in table.rows)
    assert "majority" in str(table) and "<svg" in table.plot() and "greedy" in str(table)
    assert (
        table._repr_html_().startswith("<iframe")
        and html.escape(table.plot()) in table._repr_html_()
    )
    with pytest.raises(ConfigError, match="resume"):
        az.evaluate(pens(), "embedded", **asked)
    again = az.evaluate(pens(), "embedded", budget_tokens=[60, 120], resume=True, **asked)
    assert [row["outcomes"] for row in again.rows] == [row["outcomes"] for row in table.rows]
    for given, words in (({"methods": ["magic"]}, "methods is 'magic'"), ({"num": 0}, "num is 0")):
        with pytest.raises(ConfigError, match=words):
            az.evaluate(pens(), "embedded", **{**asked, **given})


def test_wrong_arguments_are_one_sentence_and_short_forms_are_taken(tmp_path):
    student = az.load("embedded")
    wrong = [
        lambda: az.train(3),
        lambda: az.train([1, 2]),
        lambda: az.train(pens(), model=student),
        lambda: az.evaluate(pens(), model=3),
        lambda: az.search({"question": QUESTION}),
        lambda: az.train(pens(), [len, max]),
    ]
    for call in wrong:
        with pytest.raises(az.AlphaZeroError) as caught:
            call()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    pairs = [(task.problem.question, task.gold) for task in pens()]
    found = az.evaluate(
        pairs, student, methods="greedy", num=2, out=tmp_path / "eval", progress=False
    )
    assert [row["method"] for row in found.rows] == ["greedy"]
