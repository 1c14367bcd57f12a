"""Sources: what each gives, how one is found, and that nothing outside `problems` and `environment` names one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import ProblemsConfig
from alphazero_llm_trainer.errors import AlphaZeroError, ConfigError, DataError
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems import files
from alphazero_llm_trainer.problems.grading import Grade, Verdict
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.source import (
    SPLITS,
    Source,
    TaskList,
    open_one_of,
    open_problems,
    open_source,
    register,
    source_of,
)
from alphazero_llm_trainer.rewards.terminal import make_evaluate
from alphazero_llm_trainer.types import Problem, Step, Task

GENERATED = ("embedded", "numbers", "numbers:24")


def open_named(source: str, **settings: object) -> Source:
    return open_problems(ProblemsConfig.model_validate({"source": source, **settings}), None)


# -- every source ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATED)
def test_generated_sources_are_repeatable_and_their_splits_disjoint(name: str) -> None:
    source = open_named(name)
    by_split = {split: load_tasks(source, split, 60) for split in SPLITS}
    questions = [task.problem.question for tasks in by_split.values() for task in tasks]
    assert len(set(questions)) > 0.9 * len(questions)  # small numbers repeat within a split
    for one, tasks in by_split.items():
        texts = {task.problem.question for task in tasks}
        assert all(not texts & {t.problem.question for t in others} for two, others in by_split.items() if two != one)
        assert tasks == load_tasks(open_named(name), one, 60)
        assert tasks[40:] == load_tasks(source, one, 20, start=40)
        assert all(task.problem.source == source.name for task in tasks)


@pytest.mark.parametrize("name", GENERATED)
def test_worked_solutions_are_right_step_by_step(name: str) -> None:
    source = open_named(name)
    for task in load_tasks(source, "train", 40):
        assert task.solution is not None
        grade = source.grade(task.solution, task)
        assert grade.correct and grade.score == 1.0, task
        lines = task.solution.split("\n")
        assert all(source.check_step(task.problem, lines[: k + 1]) for k in range(len(lines) - 1))
        assert source.check_step(task.problem, lines) is not False
        assert source.vote_key(task.solution) == task.gold


def test_a_problem_finds_its_source_again() -> None:
    source = open_named("numbers:24")
    [task] = load_tasks(source, "test", 1)
    assert source_of(task.problem) is source
    assert source_of(Problem("p", "q", "gsm8k")).grader == "numbers"
    assert source_of(Problem("p", "q", "hotpotqa")).grader == "words"
    assert source_of(Problem("p", "q", "math")).reader.waits
    assert source_of(Problem("p", "q", "a name that nobody opened")).grader == "any"


# -- the game of numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("6 * 4 = 24, 1 24\n24 * 1 = 24, 24\n#### 24", True),
        ("6 * 4 = 24, 24 1\n24 / 1 = 24, 24\n#### 24", True),  # the numbers left, in any order
        ("6 * 4 = 24, 1 24\n#### 24", False),  # 1 is left over
        ("#### 24", False),
        ("6 * 4 = 25, 1 25\n25 - 1 = 24, 24\n#### 24", False),  # wrong arithmetic
        ("6 * 4 = 24, 24\n#### 24", False),  # says that 1 is gone
        ("6 * 6 = 36, 1 36\n36 * 1 = 36, 36\n#### 24", False),  # 6 twice
        ("6 * 4 = 24, 1 24\n24 * 1 = 24, 24\n#### 25", False),
        ("4 - 6 = -2, 1 -2\n#### 24", False),
        ("24 + 0 = 24, 24\n#### 24", False),
        ("", False),
    ],
)
def test_only_legal_play_reaches_the_target(response: str, right: bool) -> None:
    source = open_named("numbers")
    task = Task(Problem("p", "Use 6, 1 and 4 once each to make 24.", "numbers"), "24")
    grade = source.grade(response, task)
    assert grade.correct is right
    assert (grade.verdict is Verdict.UNPARSED) is (response == "")


def test_steps_are_checked_without_gold() -> None:
    source = open_named("numbers")
    problem = Problem("p", "Use 6, 1 and 4 once each to make 24.", "numbers")
    assert source.check_step(problem, ["6 - 1 = 5, 4 5", "5 * 4 = 20, 20"])
    assert not source.check_step(problem, ["6 * 4 = 24, 24\n"])
    assert not source.check_step(problem, ["6 - 1 = 5, 4 5", "5 * 4 = 20, 20", "#### 24"])
    assert not source.check_step(problem, ["6 - 1 = 4, 4 4", "4 + 4 = 8, 8"])  # the step before was wrong


# -- rows of one's own -------------------------------------------------------------------------------------------------


def rows(path: Path, count: int = 100, **extra: str) -> Path:
    file = path / "rows.jsonl"
    lines = [json.dumps({"question": f"What is {i} + 1?", "answer": str(i + 1), **extra}) for i in range(count)]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_file_of_rows_is_a_source(tmp_path: Path) -> None:
    source = open_named(str(rows(tmp_path)))
    assert isinstance(source, TaskList) and source.grader == "numbers" and "number that answers" in source.system_prompt
    sizes = {split: len(tasks) for split, tasks in source.tasks.items()}
    assert sizes == {"train": 80, "validation": 5, "arena": 5, "test": 10}
    ids = [task.problem.id for tasks in source.tasks.values() for task in tasks]
    assert len(set(ids)) == 100
    again = open_named(str(rows(tmp_path)))
    assert isinstance(again, TaskList) and again.tasks == source.tasks
    [task] = load_tasks(source, "test", 1)
    assert source.grade(f"so it is\n#### {task.gold}.0", task).correct
    assert not source.grade("#### 0", task).correct


def test_columns_are_named_or_found(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = {"text": "2 + 2?", "key": "4", "rationale": "2 + 2 = 4", "split": "test"}
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"has no column 'question', it has text, key, rationale, split"):
        open_named(str(file))
    with pytest.raises(DataError, match=r"no column 'keys'.*problems.answer_column"):
        open_named(str(file), question_column="text", answer_column="keys")
    source = open_named(str(file), question_column="text", answer_column="key")
    [task] = source.load("test", 9)
    assert (task.problem.question, task.gold, task.solution) == ("2 + 2?", "4", "2 + 2 = 4\n#### 4")
    assert source.load("train", 9) == []
    with pytest.raises(DataError, match="has no train problems"):
        load_tasks(source, "train", 1)


@pytest.mark.parametrize(
    ("golds", "rule", "response"),
    [
        (["1", "2.5", "1,000"], "numbers", "#### 1"),
        (["A", "C"], "choice", "The answer is (A)."),
        ([r"\frac{1}{2}", "x^2"], "math", r"so \boxed{\frac12}"),
        (["Paris", "the Seine"], "words", "#### paris"),
    ],
)
def test_the_rule_is_read_off_the_gold_answers(golds: list[str], rule: str, response: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(
        "".join(json.dumps({"question": f"q{i}?", "answer": g, "split": "test"}) + "\n" for i, g in enumerate(golds))
    )
    source = open_named(str(file))
    assert source.grader == rule
    task = source.load("test", 1)[0]
    assert source.grade(response, task).correct
    assert open_named(str(file), grade="exact").grader == "exact"


def test_choices_are_values_first_and_labelled_as_the_row_says(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    arc = {"text": ["ice", "fog"], "label": ["1", "2"]}
    given = (("How many?", ["1", "2", "3"], "2"), ("Cold?", arc, "1"), ("Sky? A) blue", "B) red", "A"))
    lines = [{"question": q, "choices": c, "answerKey": a, "split": "test"} for q, c, a in given]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = open_named(str(file)).load("test", 3)
    assert [task.gold for task in tasks] == ["B", "A", "A"]
    assert [task.problem.question for task in tasks[1:]] == ["Cold?\nA. ice\nB. fog", "Sky? A) blue\nB) red"]


def test_parquet_and_csv_hold_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    expected = open_named(str(rows(tmp_path, 20)))
    table = pyarrow.table({"question": [f"What is {i} + 1?" for i in range(20)], "answer": [i + 1 for i in range(20)]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    lines = ["question,answer", *(f"What is {i} + 1?,{i + 1}" for i in range(20))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    for name in ("rows.parquet", "rows.csv"):
        found = open_named(str(tmp_path / name))
        assert isinstance(found, TaskList) and isinstance(expected, TaskList)
        for split in SPLITS:
            same = [(t.problem.question, t.gold) for t in expected.tasks[split]]
            assert [(t.problem.question, t.gold) for t in found.tasks[split]] == same


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no rows"),
        ("{\n", "line 1 is not valid JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('{"question": "q", "answer": null}\n', "has None as `answer`"),
        ('{"question": " ", "answer": "1"}\n', "line 1, `question` is empty"),
        (
            '{"id": "a", "question": "q", "answer": "1"}\n{"id": "a", "question": "r", "answer": "1"}\n',
            "two tasks with the id .*, one asks 'r'",
        ),
        ('{"question": "q", "answer": "1", "split": "best"}\n', "has the split 'best'"),
    ],
)
def test_broken_rows_are_named(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(DataError, match=words):
        open_named(str(file))


def test_the_first_five_broken_rows_are_named_at_once(tmp_path: Path) -> None:
    """Those that are no JSON, then those whose columns lack something."""
    good, broken = '{"question": "q", "answer": "1"}', '{"question": "q", "answer": null}'
    file = tmp_path / "rows.jsonl"
    for bad, fault in (("{", "is not valid JSON"), (broken, "has None as `answer`")):
        file.write_text("\n".join([good, *[bad] * 7]))
        with pytest.raises(DataError) as raised:
            open_named(str(file))
        first, *told = str(raised.value).splitlines()
        assert first == "7 rows are broken, the first of them:"
        assert [line.split(":")[0].split("rows.jsonl ")[1] for line in told] == [
            f"line {i} {fault}" for i in range(2, 7)
        ]
        file.write_text("\n".join([good, bad, bad]))
        with pytest.raises(DataError, match=r"^2 rows are broken:\n  .* line 2 .*\n  .* line 3 "):
            open_named(str(file))


def test_a_row_that_stands_twice_is_taken_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = rows(tmp_path, 20)
    lines = file.read_text().splitlines()
    lines += [lines[3], json.dumps({"id": "other", "question": "What is 5 + 1?", "answer": "6.0"}), "", lines[3]]
    file.write_text("\n".join(lines) + "\n")
    source = open_named(str(file))
    asked = [task.problem.question for split in SPLITS for task in source.load(split, 100)]
    assert sorted(asked) == sorted(f"What is {i} + 1?" for i in range(20))
    assert caplog.messages[0] == f"{file}: 3 of its rows repeat others, and were left out"


def test_a_row_of_two_splits_is_not_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [("train", 1), ("train", 2), ("test", 2), ("validation", 1), ("train", 3)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"question": f"{n}?", "answer": n, "split": s}) + "\n" for s, n in given))
    hub: dict[str, Any] = {"train": [], "validation": [], "test": []}
    for split, n in given:
        hub[split].append({"question": f"{n}?", "answer": n})
    monkeypatch.setattr(files, "load_hub", lambda name, configuration, split, fix: hub)
    for source in (open_named(str(file)), open_named("hub:x/rows")):
        found = [source.load(split, 9) for split in ("train", "validation", "test")]
        assert [[task.gold for task in tasks] for tasks in found] == [["3"], ["1"], ["2"]]
    hub["test"].append({"question": "3?", "answer": "4"})
    with pytest.raises(DataError, match=r"asks '3\?' twice, with the answer '4' and with '3': keep the right one"):
        open_named("hub:x/rows", grade="numbers")


# -- code of one's own -------------------------------------------------------------------------------------------------

CODE = """
from alphazero_llm_trainer.problems.source import Source, TaskList
from alphazero_llm_trainer.types import Problem, Step, Task

PAIRS = [(f"{i} + 1?", str(i + 1)) for i in range(40)]

def tasks():
    return PAIRS

def by_split(split):
    if split == "arena":
        raise ValueError("there is none")
    return [{"question": f"{split} {i}?", "answer": str(i), "solution": f"#### {i}"} for i in range(3)]

TWICE = [("one?", "1")] * 3

class Parity(Source):
    name = "parity"
    def load(self, split, count, start=0):
        return [Task(Problem(f"{split}/{i}", f"Is {i} even? ({split})", "parity"), "no" if i % 2 else "yes")
                for i in range(start, start + count)]

BROKEN = [("only a question",)]
NUMBER = 3
"""


def test_code_of_ones_own_is_a_source(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(CODE)
    listed = open_named(f"{file}:PAIRS")
    called = open_named(f"{file}:tasks")
    assert [t.gold for t in listed.load("train", 99)] == [t.gold for t in called.load("train", 99)]
    split = open_named(f"{file}:by_split")
    assert [len(split.load(name, 9)) for name in SPLITS] == [3, 3, 0, 3]
    assert split.load("test", 1)[0].solution == "#### 0"
    parity = open_named(f"{file}:Parity", grade=None)
    assert parity.name == "parity" and len(load_tasks(parity, "train", 7)) == 7
    for name, words in (
        ("BROKEN", "task 0 has None as `answer`"),
        ("NUMBER", "is a int"),
        ("missing", "has no missing: it has"),
    ):
        with pytest.raises(AlphaZeroError, match=words):
            open_named(f"{file}:{name}")
    assert len(open_named(f"{file}:TWICE").load("train", 9)) == 1
    (tmp_path / "bad.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(
        ConfigError, match=r"can't be imported .ModuleNotFoundError: No module named 'nothing_of_this_name'"
    ):
        open_named(f"{tmp_path}/bad.py:x")


def test_what_is_no_source_is_said_in_one_sentence() -> None:
    for address in (
        "nope",
        "no.module.of_this:name",
        "missing.py:x",
        "hub:x",
        "numbers:0",
        "gsm8k:train",
        "missing.jsonl",
    ):
        with pytest.raises(AlphaZeroError) as caught:
            open_named(address)
        assert address.partition(":")[0] in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="has no levels to choose"):
        open_named("gsm8k", levels=(1,))


def test_a_source_is_opened_once_and_again_when_its_file_changes(tmp_path: Path) -> None:
    file = rows(tmp_path, 20)
    first = open_named(str(file))
    assert open_named(str(file)) is first
    file.write_text(json.dumps({"question": "another?", "answer": "1"}) + "\n")
    os.utime(file, ns=(1, 1))
    again = open_named(str(file))
    assert isinstance(again, TaskList) and sum(map(len, again.tasks.values())) == 1


def test_one_of_several_sources_takes_the_settings_it_knows() -> None:
    config = load_config(overrides=["problems.levels=[3]", "problems.hold_out=structures"])
    assert open_one_of(config, "embedded").load("test", 4)[0].problem.level == 3
    assert open_one_of(config, "numbers").load("test", 4)[0].problem.level == 3
    assert open_one_of(config, "gsm8k").levels == ()
    with pytest.raises(ConfigError, match=r"problems\.hold_out is 'structures' and source numbers knows questions"):
        open_source(config, "numbers")


# -- commands ----------------------------------------------------------------------------------------------------------


def test_the_flags_of_rows_reach_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": f"What is {i} + 1?", "key": f"it is {i + 1}"}) for i in range(40)]
    file.write_text("\n".join(lines) + "\n")
    flags = ["--source", str(file), "--question-column", "text", "--answer-column", "key", "--grade", "exact"]
    assert main(["search", "--model", "embedded", *flags, "--simulations", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["question"].startswith("What is")
    assert source_of(Problem("p", "q", str(file))).grader == "exact"
    assert main(["train", *flags, "--model", "embedded", "--num", "500"]) == 2
    assert "has 32 training questions from number 0 on: ask for --num 32" in capsys.readouterr().err
    assert main(["train", *flags[:4], "--answer-column", "keys"]) == 2
    message = capsys.readouterr().err
    assert "has no column 'keys', it has text, key: name the right one" in message and message.count("\n") == 1


def test_a_small_student_is_trained_from_scratch_on_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "student")
    sizes = ["train.sft_steps=40", "train.evaluate_every=40", "train.validation_size=4"]
    shape = {"layers": 2, "hidden": 48, "heads": 4, "kv_heads": 2, "head_dim": 12, "intermediate": 64, "vocabulary": 1}
    sizes.append(f"models.small.shape={json.dumps(shape)}")
    small = [part for size in sizes for part in ("--set", size)]
    base = ["sft", "--source", "numbers", "--model", "small", "--num", "60", "--eval-size", "4", "--out", out]
    assert main([*base, *small, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["demonstrations"] == "numbers train 0..59" and facts["student"] == "small"
    student = load_student(load_config(), path=Path(out))
    tokenizer, made = student.tokenizer, student.model.config
    assert (made.num_hidden_layers, made.hidden_size, made.num_key_value_heads, made.intermediate_size) == (
        2,
        48,
        2,
        64,
    )
    [task] = open_named("numbers").load("test", 1)
    ids = tokenizer(f"{task.problem.question}\n{task.solution}").input_ids
    assert tokenizer.unk_token_id not in ids and len(tokenizer) < 60
    assert tokenizer.decode(ids) == f"{task.problem.question}\n{task.solution}"
    assert main(["search", "--model", out, "--source", "numbers", "--simulations", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["question"].startswith("Use ")


def test_what_cannot_be_trained_from_scratch_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--model", "small", "--source", "numbers"]) == 2
    assert "student small has no weights yet" in capsys.readouterr().err
    assert main(["sft", "--model", "small", "--source", "hotpotqa", "--out", str(tmp_path / "s")]) == 2
    assert "its words don't fit a small vocabulary" in capsys.readouterr().err


# -- scores between right and wrong ------------------------------------------------------------------------------------


class Halves(Source):
    """Half the credit for an answer that is one off."""

    name = "halves"

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        return [Task(Problem(f"halves/{split}/{i}", f"{i}?", "halves"), str(i)) for i in range(start, start + count)]

    def grade_many(self, pairs: Sequence[tuple[str, Task]], strict: bool = False) -> list[Grade]:
        def one(answer: str | None, gold: str) -> Grade:
            off = 9 if answer is None else abs(int(answer) - int(gold))
            verdict = Verdict.CORRECT if off == 0 else Verdict.WRONG
            return Grade(verdict, answer, partial=max(0.0, 1 - off / 2))

        return [one(self.final_answer(response, strict), task.gold) for response, task in pairs]


def test_a_graded_score_is_the_hard_reward() -> None:
    source = register(Halves())
    [task] = source.load("train", 1, start=5)
    grades = source.grade_many([(f"#### {n}", task) for n in (5, 6, 7)])
    assert [(grade.correct, grade.score) for grade in grades] == [(True, 1), (False, 0.5), (False, 0)]
    evaluate = make_evaluate(load_config().rewards, None, {task.problem.id: task})
    steps = [[Step((1,), (0.0,), f"#### {n}")] for n in (5, 6, 7)]
    found = [asyncio.run(evaluate(task.problem, one, [], "answer")) for one in steps]
    assert [parts.hre for parts in found] == [1.0, 0.5, 0.0]
    # The step costs 0.01; correctness is the only other part.
    assert [parts.total for parts in found] == pytest.approx([0.99, 0.49, 0.0])


# -- reasoning-gym -----------------------------------------------------------------------------------------------------


def test_reasoning_gym_grades_by_its_own_rule() -> None:
    pytest.importorskip("reasoning_gym")
    source = open_named("reasoning-gym:chain_sum")
    tasks = load_tasks(source, "test", 20)
    assert not {t.problem.question for t in tasks} & {t.problem.question for t in load_tasks(source, "train", 20)}
    for task in tasks:
        assert source.grade(f"thinking\n#### {task.gold}", task).score == 1.0
        assert source.grade("#### 123456789", task).score < 1.0
    assert source.grade("nothing", tasks[0], strict=True).verdict is Verdict.UNPARSED
    with pytest.raises(ConfigError, match=r"none of its .* tasks"):
        open_named("reasoning-gym:no_such_task")


def test_gsm_symbolic_holds_out_whole_templates() -> None:
    pytest.importorskip("reasoning_gym")

    def templates(source: Source, split: str) -> set[tuple[str, ...]]:
        entries = [source.data[int(t.problem.id.rpartition("/")[2])] for t in load_tasks(source, split, 60)]  # type: ignore[attr-defined]
        return {tuple(sorted(entry["metadata"]["variables"])) for entry in entries}

    held = open_named("gsm-symbolic", hold_out="templates")
    assert not templates(held, "train") & templates(held, "test")
    shared = open_named("gsm-symbolic")
    assert templates(shared, "train") & templates(shared, "test")
    [task] = load_tasks(shared, "train", 1)
    assert task.solution is not None and shared.grade(task.solution, task).correct
    with pytest.raises(ConfigError, match="knows questions: use one of these"):
        open_named("reasoning-gym:chain_sum", hold_out="templates")
