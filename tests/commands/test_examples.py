"""Each example runs as it is, in an empty folder, is short, and shows success: a gain, a right
answer.
"""

import json
import os
import re
import runpy
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random

import pytest
import torch
from finished import learnt
from tables import CHECKOUT

import alphazero_llm_trainer as az
from alphazero_llm_trainer.learning.methods.alphazero import state_outcomes

EXAMPLES = CHECKOUT / "examples"


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["example"])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def run(name):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.fixture
def example(monkeypatch):
    """AlphaZero's example as a module, with small sizes."""
    spec = spec_from_file_location("alphazero", EXAMPLES / "alphazero.py")
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    for name, value in {"ROUNDS": 2, "QUESTIONS": 8, "UPDATES": 2, "HELD_OUT": 8}.items():
        monkeypatch.setattr(made, name, value)
    return made


def test_alphazeros_loop_runs(example, capsys):
    example.main()
    printed = capsys.readouterr().out
    assert re.findall(r"^round (\d): \d of 8 ", printed, re.M) == ["1", "2"]
    assert "\ngain " in printed
    # The second round's trees have a V of each state, which the first update made.
    assert "AUC" not in printed.splitlines()[0] and "AUC of the value" in printed.splitlines()[1]


def test_the_examples_rows_and_scores_are_what_they_say(example):
    """Each state's z is the package's, and each V is of the tokens before it alone."""
    student = az.load("embedded")
    value = torch.nn.Linear(student.model.config.hidden_size, 1)
    rows = []
    for saved in example.search(student, value, 1):
        z = state_outcomes(saved.tree, example.DISCOUNT)
        known = {saved.tree.sequence(node)[0]: z[node] for node in z}
        for row in example.rows_of(saved, Random(0)):
            rows.append(row)
            assert row.values == pytest.approx({n: known[row.response[:n]] for n in row.values})
    assert {row.chosen for row in rows} == {True, False}
    for row in (rows[0], rows[-1]):
        logprobs, pi, logits, target, there = example.score(student.model, value, [row] * 2)
        assert pi[0].sum() == len(row.response) * row.chosen and there[0].sum() == len(row.values)
        for length, z in row.values.items():
            ids = torch.tensor([row.prompt + row.response[:length]])
            out, at = student.model(ids, output_hidden_states=True), ids.shape[1] - 1
            assert torch.allclose(logits[0, at], value(out.hidden_states[-1][0, -1])[0], atol=1e-4)
            assert target[0, at] == pytest.approx(z)
            if length < len(row.response):
                expected = out.logits[0, -1].log_softmax(-1)[row.response[length]]
                assert torch.allclose(logprobs[0, at], expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, made, last",
    [
        ("own_task", {"checkpoints"}, "13 pens are left of 9 + 8 - 4"),
        ("own_rows", {"checkpoints", "rows.jsonl"}, ""),
        ("trl_sft", None, ""),
    ],
)
def test_what_an_example_trains_gains(name, made, last, capsys, tmp_path):
    run(name)
    printed = capsys.readouterr().out
    assert learnt(printed) and last in printed.splitlines()[-1]
    assert made is None or {path.name for path in tmp_path.iterdir()} == made


def test_horns_exact_value_is_the_shortest_derivation():
    """Its rule, grades and value against a search over every sequence of rules."""
    made = runpy.run_path(str(EXAMPLES / "horn.py"))
    source, write = made["Horn"](), made["write_rule"]

    def shortest(question, steps):
        known = made["play"](question, steps)
        if known is None:
            return None
        allowed, _, goal, rules = made["read_question"](question)
        if goal in known:
            return 0
        if len(steps) == allowed:
            return None
        lengths = [shortest(question, [*steps, write(rule)]) for rule in rules]
        return min((length + 1 for length in lengths if length is not None), default=None)

    for task in [*source.load("validation", 6), *source.load("test", 6)]:
        question = task.problem.question
        allowed, _, _, rules = made["read_question"](question)
        assert shortest(question, []) < allowed
        steps = []
        while fewest := shortest(question, steps):
            assert made["exact_value"](task.problem, steps, 0.9) == pytest.approx(0.9**fewest)
            assert source.state(task.problem, steps) is not None
            steps.append(
                next(
                    write(r) for r in rules if shortest(question, [*steps, write(r)]) == fewest - 1
                )
            )
            assert source.check_step(task.problem, steps)
        assert source.state(task.problem, steps) is None
        right, short, wrong = steps, steps[:-1], [steps[-1], *steps[:-1]]
        grades = source.grade_many([("\n".join(lines), task) for lines in (right, short, wrong)])
        assert [grade.correct for grade in grades] == [True, False, False]
    for task in source.demonstrations(20):
        assert source.grade(task.solution, task).correct


@pytest.mark.parametrize("name", ["serve_client", "prime_rl_trees"])
def test_what_an_example_lacks_is_one_sentence(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, "http://127.0.0.1:9/v1"])
    monkeypatch.setitem(sys.modules, "prime_rl", None)
    with pytest.raises(SystemExit) as ended:
        run(name)
    assert isinstance(ended.value.code, str) and "\n" not in ended.value.code


@pytest.mark.slow
def test_alphazeros_loop_improves_the_student(capsys):
    run("alphazero")
    [(gain, low)] = re.findall(r"^gain (\S+) \[(\S+), ", capsys.readouterr().out, re.M)
    assert float(gain) > 0.03 and float(low) > 0


@pytest.mark.slow
def test_the_environment_in_python_rolls_out_and_scores():
    """In a process of its own, since verifiers' loops and servers end with it."""
    guide = (CHECKOUT / "docs/guides/as-an-environment.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    ended = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, timeout=240, check=True
    )
    lines = ended.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        right = float(re.search(r"'correctness_reward': (\S+),", line)[1])
        assert line.endswith("[]") and (float(line.split()[0]) > 0.5) == (right == 1.0)
    assert any("'correctness_reward': 1.0" in line for line in lines)


@pytest.mark.slow
def test_search_beside_best_of_n(capsys):
    run("best_of_n")
    rows = re.findall(r"^(\S+) +(\d+) tokens: ([\d.]+) ", capsys.readouterr().out, re.MULTILINE)
    share = {(method, int(budget)): float(value) for method, budget, value in rows}
    for budget in (100, 200):
        assert share["mcts", budget] >= max(share["greedy", budget], share["best-of-n", budget])


@pytest.mark.slow
def test_trl_learns_which_step_is_better(capsys):
    run("trl_dpo")
    [(share, pairs)] = re.findall(
        r"gained more in (\d+)% of (\d+) pairs$", capsys.readouterr().out, re.MULTILINE
    )
    assert int(share) >= 60 and int(pairs) >= 10


def test_the_credit_of_a_tree(capsys):
    run("tree_credit")
    lines = re.findall(
        r" (\d+) responses, credit of each step \[(.*)\]$", capsys.readouterr().out, re.MULTILINE
    )
    assert len(lines) == 8 and any(float(one) for _, steps in lines for one in steps.split(", "))


def test_the_notebook_is_saved_with_what_its_cells_show():
    """A page of each result, a tree that forks among them, and nothing of the machine."""
    text = (EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["source"][-1] for cell in cells[1:]] == ["result", "run", "saved", "table"]
    for cell in cells[1:]:
        pages = [output for output in cell["outputs"] if "text/html" in output.get("data", {})]
        assert len(pages) == 1, cell["source"]
    printed = "".join(line for output in cells[1]["outputs"] for line in output.get("text", ()))
    assert len(re.findall(r"^ +(?:\* )?#### \d+ ", printed, re.MULTILINE)) > 1
    assert not re.search(r"/(?:home|root|tmp|Users|content|work)/|site-packages", text)


@pytest.mark.slow
def test_the_notebook(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    there = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=there).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "".join(output.get("text", "") for output in outputs)
    assert re.search(r"^23 for \d+ sampled tokens$", printed, re.MULTILINE)  # the right answer
    assert learnt(printed) and "majority" in printed
    assert "error" not in [output.output_type for output in outputs]


def test_examples_are_short_and_all_known_here():
    files = {path.stem: path for path in EXAMPLES.glob("*.py")}
    # serve_client runs in test_serve, prime_rl_trees in test_prime_rl.
    known = """
        alphazero best_of_n coins horn own_rows own_task own_world prime_rl_trees serve_client
        tree_credit trl_dpo trl_sft
    """.split()
    assert {*files} == {*known}
    most = {"alphazero": 170, "horn": 190, "prime_rl_trees": 88}
    for name, path in files.items():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= most.get(name, 65), path
