"""The Python API: what `import alphazero_llm_trainer as az` offers, and that the commands say the
same.
"""

import asyncio
import html
import json
import signal
from functools import partial
from pathlib import Path

import pytest
from tables import read_json

import alphazero_llm_trainer as az
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.errors import CheckpointError, ConfigError
from alphazero_llm_trainer.problems import registry

QUESTION = "Ana has 3 pens. She buys 4 more pens. How many pens does Ana have now?"
SMALL = {"train.validation_size": 4, "train.questions_per_round": 12, "train.demonstrations": 0}


QUIET = {"progress": False}


def pens(count=60):
    for i in range(2, 2 + count):
        question = QUESTION.replace("3", str(i))
        yield az.Task(az.Problem(f"pens/{i}", question, "pens"), str(i + 4))


def refused(said, call, *given, kind=ConfigError, **named):
    with pytest.raises(kind, match=said):
        call(*given, **named)


def test_search_says_what_the_command_says(capsys):
    assert all(getattr(az, name) is not None for name in az.__all__)
    assert dir(az) == sorted(az.__all__) and not hasattr(az, "nothing")
    found = az.search(QUESTION, model="embedded", simulations=8, seed=3)
    flags = "--model embedded --simulations 8 --seed 3 --json".split()
    assert main(["search", QUESTION, *flags]) == 0
    said = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(found.record | {"cost": said["cost"]})) == said  # seconds differ
    assert found.cost.sampled_tokens == said["cost"]["sampled_tokens"] > 0
    assert (found.answer, found.response) == (said["answer"], said["response"])
    assert json.loads(json.dumps(found.tree.to_dict())) == said["tree"]
    shown = html.unescape(found._repr_html_())
    token = found.tree.token_ids[found.choice.node][0]
    assert shown.startswith("<iframe") and f'"{token}":' in shown
    assert html.escape(QUESTION)[:20] in shown


def test_settings_reach_the_search_and_a_loaded_student_is_used():
    student = az.load("embedded")
    assert str(student) == "Student embedded: 117,632 parameters, engine inprocess"
    search = partial(az.search, model=student)
    tokens = search(QUESTION, simulations=5, mode="token", temperature=0.7)
    assert max(map(len, tokens.tree.token_ids)) == 1 and tokens.tree.N[0] == 5
    few = search(QUESTION, budget_tokens=30)
    assert few.cost.sampled_tokens <= 30 < search(QUESTION).cost.sampled_tokens
    refused(r"search\.step is 'sentence'.*`load`", search, QUESTION, step="sentence")
    refused("nonsense", search, QUESTION, nonsense=1)
    refused("empty", search, "  ")
    said = []  # of words that a small vocabulary lacks
    for question in ("What is 7 plus 8?", QUESTION):
        search(question, simulations=1, progress=said.append)
    told = "embedded doesn't know 'plus': its answer means little"
    assert [line for line in said if "know" in line] == [told]


def test_a_call_inside_a_running_event_loop_stays_in_its_thread(tmp_path):
    async def timed(problem, response, task):
        # The main thread's alone, as is Ctrl-C.
        signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        return 0.5

    some = {"methods": ["greedy"], "num": 2, **QUIET}

    async def notebook():
        found = az.evaluate([*pens()], reward=timed, out=tmp_path / "eval", **some)
        await asyncio.sleep(0)
        assert asyncio.get_event_loop() is asyncio.get_running_loop()
        return found

    [row] = asyncio.run(notebook()).rows
    assert row["reward"][0] == 0.5
    assert az.evaluate(out=tmp_path / "default", **some).rows[0]["problems"] == 2


def test_train_on_tasks_with_a_reward_writes_its_folder_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, lines, tasks, out = [], [], [*pens()], {"out": "runs/1"}

    def brief(problem, response, task):
        asked.append(task.gold)
        return 1.0 / (1.0 + len(response))

    sizes = {"num_examples": 24, "eval_size": 6, "config": SMALL, "progress": lines.append}
    run = az.train(tasks, reward=brief, method="grpo", model="embedded", **sizes, **out)
    assert run.finished and run.folder == Path("runs/1")
    assert run.gain.value == pytest.approx(run.after.value - run.before.value)
    assert (
        asked
        and lines
        and repr(run).startswith("Training ")
        and (run.student / "config.json").is_file()
    )
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    trees = [*az.read_trees(run.folder)]
    assert len(trees) == 24 and all(saved.problem.source == "tasks" for saved in trees)
    # What a notebook shows is a page in a frame: the run's report with its result, and the tree of
    # one question.
    report = (run.folder / "report.html").read_text().split("</h1>")[0]
    assert html.escape(report) in run._repr_html_()
    assert "token_ids" not in repr(trees[0])
    shown = html.unescape(trees[0]._repr_html_())
    for part in (html.escape(str(trees[0].problem.question)[:20]), '"pieces":', '"chosen":'):
        assert part in shown
    rewards = {path.reward for saved in trees for path in saved.paths}
    assert len(rewards) > 1 and all(0 <= reward <= 1 for reward in rewards)
    assert az.search(QUESTION, model=run.student, simulations=2).tree.N[0] > 0
    refused("resume=True", az.train, tasks, model="embedded", **out)
    goes_on = partial(az.train, resume=True, **out)
    refused(r"train\.num_examples is 48, the run in .* has 24", goes_on, tasks, num_examples=48)
    other = {"train": {"clip_low": 0.1}}
    refused(r"train\.clip_low is 0\.1, the run in .* has 0\.2", goes_on, tasks, config=other)
    refused(r"did you mean runs/1/student\?", az.load, "runs/1", kind=CheckpointError)
    monkeypatch.setattr(registry, "_held_sources", {})  # as a new session begins
    registry._open_cached.cache_clear()
    refused("learns from tasks of a Python session: pass the same ones as `problems`", goes_on)
    card = read_json(run.folder / "run.json")
    assert goes_on(tasks).card["after"] == card["after"]
    card["config"]["rewards"]["custom"] = "__main__:judge"
    card["config"]["problems"]["source"] = "embedded"
    (run.folder / "run.json").write_text(json.dumps(card))
    refused("has a reward of a Python session, __main__:judge: pass the same one as", goes_on)


def test_evaluate_gives_a_table_and_goes_on(tmp_path):
    methods = ["greedy", "majority"]
    asked = {"methods": methods, "num": 5, "out": tmp_path / "eval", **QUIET}
    evaluate = partial(az.evaluate, [*pens()], "embedded")
    budgets = {"budget_tokens": [60, 120]}
    table = evaluate(**budgets, **asked)
    cells = {(row["method"], row["budget"]) for row in table.rows}
    assert cells == {(method, budget) for method in methods for budget in (60, 120)}
    assert all(row["problems"] == 5 and len(row["accuracy"]) == 3 for row in table.rows)
    assert "majority" in str(table) == repr(table)
    accuracy = table.to_pandas()["accuracy_low"].tolist()
    assert accuracy == [row["accuracy"][1] for row in table.rows]
    assert len(table.plot().axes[0].containers) == len(table.rows)
    report = (table.folder / "report.html").read_text()
    page = table._repr_html_()
    assert page.startswith("<iframe") and html.escape(report) in page and "<svg" in report
    refused("resume", evaluate, **asked)
    again = evaluate(resume=True, **budgets, **asked)
    assert [row["outcomes"] for row in again.rows] == [row["outcomes"] for row in table.rows]
    refused("methods is 'magic'", evaluate, **asked | {"methods": ["magic"]})
    refused("num is 0", evaluate, **asked | {"num": 0})


def test_wrong_arguments_are_one_sentence_and_short_forms_are_taken(tmp_path):
    student, tasks = az.load("embedded"), [*pens()]
    for call, *given in (
        (az.train, 3),
        (az.train, [1, 2]),
        (partial(az.train, model=student), tasks),
        (az.evaluate, tasks, 3),
        (az.search, {"question": QUESTION}),
        (az.train, tasks, [len, max]),
    ):
        refused("^.{1,200}$", call, *given, kind=az.AlphaZeroError)
    pairs = [(task.problem.question, task.gold) for task in tasks]
    found = az.evaluate(pairs, student, methods="greedy", num=2, out=tmp_path / "eval", **QUIET)
    assert [row["method"] for row in found.rows] == ["greedy"]
