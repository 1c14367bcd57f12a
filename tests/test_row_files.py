"""Rows as people bring them: formats, columns of other trainers, splits, choices and gold answers of every kind."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.problems.grading import guess_grader, kind_of
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.source import SPLITS, TaskList, open_problems
from alphazero_llm_trainer.types import Task

PLAIN = [{"question": f"{i} + 1?", "answer": str(i + 1)} for i in range(20)]


def opened(address: object, **settings: object) -> TaskList:
    problems = load_config().problems.model_copy(update={"source": str(address), **settings})
    source = open_problems(problems, None)
    assert isinstance(source, TaskList)
    return source


def tasks_of(source: TaskList) -> list[Task]:
    return [task for split in SPLITS for task in source.tasks[split]]


def written(folder: Path, *rows: Any, name: str = "rows.jsonl") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


# -- formats -----------------------------------------------------------------------------------------------------------

LINES = "".join(json.dumps(row) + "\n" for row in PLAIN)
TABLE = "question,answer\n" + "".join(f"{row['question']},{row['answer']}\n" for row in PLAIN)
TEXTS = {
    "rows.jsonl": LINES,
    "ROWS.JSONL": LINES,
    "rows.ndjson": LINES,
    "lines.json": LINES,
    "list.jsonl": json.dumps(PLAIN),
    "list.json": json.dumps(PLAIN, indent=2),
    "Object.JSON": json.dumps({"data": PLAIN}),
    "windows.jsonl": "\ufeff" + LINES.replace("\n", "\r\n"),
    "rows.csv": TABLE,
    "Rows.CSV": TABLE.replace(",", ";"),
    "rows.tsv": TABLE.replace(",", "\t"),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("packed", [False, True])
def test_every_format_holds_the_same_rows(name: str, packed: bool, tmp_path: Path) -> None:
    file = tmp_path / (f"{name}.gz" if packed else name)
    file.write_bytes(gzip.compress(TEXTS[name].encode()) if packed else TEXTS[name].encode())
    before = sorted(tmp_path.rglob("*"))
    source = opened(file)
    assert sorted((t.problem.question, t.gold) for t in tasks_of(source)) == sorted(
        (row["question"], row["answer"]) for row in PLAIN
    )
    assert source.grader == "numbers" and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("address", ["data", "data/", "data/*.jsonl", "data/**/*.json*"])
def test_folders_and_patterns_keep_their_splits(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, count in (("train", 9), ("dev", 2), ("test", 3)):
        rows = [{"question": f"{split} {i}?", "answer": str(i)} for i in range(count)]
        written(tmp_path, *rows, name=f"data/{split}-00000-of-00001.jsonl")
    (tmp_path / "data" / "README.md").write_text("# no rows")
    monkeypatch.chdir(tmp_path)
    source = opened(address)
    sizes = {split: len(source.tasks[split]) for split in SPLITS}
    assert sizes == {"train": 9, "validation": 2, "arena": 0, "test": 3}
    assert all(task.problem.question.startswith("dev") for task in source.tasks["validation"])


def test_folders_named_after_splits_keep_them_too(tmp_path: Path) -> None:
    for split in ("train", "test"):
        rows = [{"question": f"{split} {i}?", "answer": "1"} for i in range(9)]
        written(tmp_path / "test_data", *rows, name=f"{split}/0.jsonl")
    source = opened(tmp_path / "test_data")
    assert {task.problem.question.split()[0] for task in source.tasks["test"]} == {"test"}
    assert len(source.tasks["train"]) == 9


def test_texts_are_read_as_they_are_written(tmp_path: Path) -> None:
    golds = ["2021-03-04", "NA", "None", "007 Bond", "true", "123456789012345678901234567890"]
    file = tmp_path / "rows.csv"
    file.write_text("question,answer\n" + "".join(f"{i}?,{gold}\n" for i, gold in enumerate(golds)))
    assert sorted(task.gold for task in tasks_of(opened(file))) == sorted(golds)
    lines = written(tmp_path, *({"question": f"{i}?", "answer": gold} for i, gold in enumerate(golds)))
    assert sorted(task.gold for task in tasks_of(opened(lines))) == sorted(golds)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.json", "{", "can't be read"),
        ("rows.jsonl.gz", "no gzip", "can't be read"),
        ("rows.csv", "question,answer\na,b,c\n", "row 1 has more fields than the head has columns"),
        ("rows.jsonl", "[]", "has no rows"),
        ("rows.parquet", "no parquet", "can't be read"),
        ("rows.json", '{"question": "a", "answer": "b"}', "holds no list"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=said):
        opened(tmp_path / name)


def test_an_empty_folder_and_a_pattern_without_files_are_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no files of rows in it: name \.jsonl"):
        opened(tmp_path)
    with pytest.raises(DataError, match=r"there is no such file: name \.jsonl"):
        opened(tmp_path / "*.jsonl")


def test_files_of_another_encoding_and_missing_answers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "wide.jsonl").write_text(LINES, encoding="utf-16")
    with pytest.raises(DataError, match="save it as UTF-8"):
        opened(tmp_path / "wide.jsonl")
    with pytest.raises(DataError, match="line 1 has 'N/A' as `answer`, which is no answer"):
        opened(written(tmp_path, {"question": "1 + 1?", "answer": "N/A"}))


# -- columns -----------------------------------------------------------------------------------------------------------

USER = {"role": "user", "content": "1 + 1?"}
COLUMNS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "verl": (
        {"data_source": "x", "prompt": [USER], "reward_model": {"style": "rule", "ground_truth": "2"}},
        ("1 + 1?", "2"),
    ),
    "dapo": (
        {"prompt": json.dumps([USER]), "reward_model": json.dumps({"ground_truth": "2"})},
        ("1 + 1?", "2"),
    ),
    "openbookqa": (
        {"question_stem": "Barks?", "choices": {"text": ["cat", "dog"], "label": ["A", "B"]}, "answerKey": "B"},
        ("Barks?\nA. cat\nB. dog", "B"),
    ),
    "arc as its authors wrote it": (
        {
            "question": {"stem": "Barks?", "choices": [{"text": "cat", "label": "A"}, {"text": "dog", "label": "B"}]},
            "answerKey": "B",
        },
        ("Barks?\nA. cat\nB. dog", "B"),
    ),
    "trl": (
        {"prompt": [{"role": "system", "content": "Be brief."}, USER], "ground_truth": 2},
        ("Be brief.\n\n1 + 1?", "2"),
    ),
    "parts": (
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "1 + 1?"}]}], "answer": "2"},
        ("1 + 1?", "2"),
    ),
    "box": ({"problem": "1 + 1?", "solution": r"So it is $\boxed{2}$."}, ("1 + 1?", "2")),
    "capitals": ({"Question": "1 + 1?", "Answer": 2.0}, ("1 + 1?", "2")),
    "svamp": (
        {"ID": "c-1", "Body": "Tom has 2.", "Question": "How many?", "Answer": 2.0},
        ("Tom has 2. How many?", "2"),
    ),
    "alpaca": ({"instruction": "Add.", "input": "1 and 1", "output": "2"}, ("Add.\n1 and 1", "2")),
    "alpaca alone": ({"instruction": "1 + 1?", "input": "", "output": "2"}, ("1 + 1?", "2")),
    "list": ({"question": "Who?", "answers": ["Ann", "Anne"]}, ("Who?", "Ann")),
    "squad": ({"question": "Who?", "answers": {"text": ["Ann"], "answer_start": [3]}}, ("Who?", "Ann")),
    "trivia": ({"question": "Who?", "answer": {"value": "Ann", "aliases": ["Anne"]}}, ("Who?", "Ann")),
    "completion": (
        {"prompt": [USER], "completion": [{"role": "assistant", "content": "It is 2."}], "answer": "2"},
        ("1 + 1?", "2"),
    ),
    "mmlu": (
        {"question": "Barks?", "A": "cat", "B": "dog", "C": "hen", "answer": "B"},
        ("Barks?\nA. cat\nB. dog\nC. hen", "B"),
    ),
    "medmcqa": ({"question": "Barks?", "opa": "cat", "opb": "dog", "answer": "dog"}, ("Barks?\nA. cat\nB. dog", "B")),
    "json text": (
        {"question": "Barks?", "options": '["cat", "dog"]', "answer": "dog"},
        ("Barks?\nA. cat\nB. dog", "B"),
    ),
    "words behind marks": ({"question": "Where?", "answer": "By the Seine.\n#### Paris"}, ("Where?", "Paris")),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_rows_of_other_trainers_are_read_and_one_line_says_how(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row, (question, gold) = COLUMNS[case]
    [task] = tasks_of(opened(written(tmp_path, row)))
    assert (task.problem.question, task.gold) == (question, gold)
    [line] = caplog.messages
    assert "question is `" in line and "answer is " in line and "graded as " in line and "train 1" in line


def test_several_answers_and_several_turns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(written(tmp_path, *({"question": f"{i}?", "answers": ["a", "b"][: i + 1]} for i in range(2))))
    assert "of 1 rows with several answers the first counts" in caplog.text
    turns = [USER, {"role": "assistant", "content": "2"}, USER]
    with pytest.raises(DataError, match="3 messages as `prompt`, of user, assistant, user: write one text of the user"):
        opened(written(tmp_path, {"prompt": turns, "answer": "2"}, name="turns.jsonl"))
    with pytest.raises(DataError, match=r"no answer column, and no \\boxed\{\} in `solution`"):
        opened(written(tmp_path, {"problem": "1 + 1?", "solution": "it is 2"}, name="nowhere.jsonl"))


def test_a_dotted_column_can_be_named(tmp_path: Path) -> None:
    row = {"task": {"text": "1 + 1?"}, "meta": {"key": {"value": "2"}}}
    source = opened(written(tmp_path, row), question_column="task.text", answer_column="meta.key.value")
    assert [(task.problem.question, task.gold) for task in tasks_of(source)] == [("1 + 1?", "2")]


# -- splits ------------------------------------------------------------------------------------------------------------


def test_a_small_training_split_is_said_with_what_each_split_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"question": f"{i}?", "answer": i, "split": "train" if i < 2 else "test"} for i in range(64)]
    source = opened(written(tmp_path, *rows))
    assert len(source.tasks["train"]) == 2 and len(source.tasks["test"]) == 62
    assert "2 of its 64 rows are to train on (train 2, validation 0, arena 0, test 62)" in caplog.text


@pytest.mark.parametrize("made_of", ["answer", "solution"])
def test_math_has_a_training_split_where_the_rows_have_it(made_of: str, tmp_path: Path) -> None:
    rows = [
        {
            "problem": f"Halve {i}.",
            "level": "Level 2",
            "type": "Algebra",
            "solution": rf"It is $\boxed{{\frac{{{i}}}{{2}}}}$.",
        }
        for i in range(40)
    ]
    if made_of == "answer":
        rows = [row | {"answer": rf"\frac{{{i}}}{{2}}", "unique_id": f"train/{i}.json"} for i, row in enumerate(rows)]
    written(tmp_path, *rows, name="train.jsonl" if made_of == "answer" else "math500/train.json")
    tasks = [task for split in SPLITS[:3] for task in load_tasks("math", split, 99, path=str(tmp_path))]
    assert len({task.problem.id for task in tasks}) == 40
    assert tasks[3].gold == r"\frac{3}{2}" and tasks[3].problem.level == 2


# -- choices -----------------------------------------------------------------------------------------------------------


def choice(tmp_path: Path, choices: Any, answer: Any) -> Task:
    return tasks_of(opened(written(tmp_path, {"question": "q?", "options": choices, "answer": answer})))[0]


@pytest.mark.parametrize(
    ("choices", "answer", "letter", "shown"),
    [
        (["cat", "Dog", "cow"], "dog.", "B", "B. Dog"),
        (["cat", "dog", "cow"], "Dog", "B", "B. dog"),
        (["cat", "dog", "cow"], "B. dog", "B", "B. dog"),
        (["cat", "dog", "cow"], "(c)", "C", "C. cow"),
        (["cat", "dog", "cow"], 0, "A", "A. cat"),
        (["3", "2", "1"], "1", "C", "C. 1"),
        ([3, 2, 1], 1, "B", "B. 2"),
        ({"A": "cat", "B": "dog"}, "dog", "B", "B. dog"),
        ({"A": "cat", "B": "dog", "C": None}, "A", "A", "A. cat"),
        ({"text": ["cat", "dog"], "label": ["1", "2"]}, "2", "B", "B. dog"),
        ([{"label": "A", "text": "cat"}, {"label": "B", "text": "dog"}], "dog", "B", "B. dog"),
        ([{"key": "A", "value": "cat"}, {"key": "B", "value": "dog"}], "B", "B", "B. dog"),
        (["A)21", "B)22", "C)23"], "B", "B", "B. 22"),
        (["(A) 21", "(B) 22"], "22", "B", "B. 22"),
        (["1. cat", "2. dog"], "dog", "B", "B. dog"),
        ([f"c{i}" for i in range(14)], "N", "N", "N. c13"),
        ([f"c{i}" for i in range(26)], "c25", "Z", "Z. c25"),
    ],
)
def test_a_gold_answer_finds_its_choice(choices: Any, answer: Any, letter: str, shown: str, tmp_path: Path) -> None:
    task = choice(tmp_path, choices, answer)
    assert task.gold == letter
    lines = task.problem.question.split("\n")[1:]
    assert shown in lines and [line[:2] for line in lines] == [f"{chr(65 + i)}." for i in range(len(lines))]


@pytest.mark.parametrize("answer", ["D", "cow", 3, "(D)", "5", "B. cat", "Dogs"])
def test_a_gold_answer_that_is_no_choice_is_refused(answer: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="which is none of its 3 choices: write a letter from A to C"):
        choice(tmp_path, ["cat", "dog", "hen"], answer)


def test_more_choices_than_letters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 27 choices: 26 at most have a letter"):
        choice(tmp_path, list(map(str, range(27))), "3")


# -- gold answers and the rule -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("golds", "rule", "why"),
    [
        (["1", "2.5", "1,000", "5 000", "18g", "No. 3"], "numbers", "all gold answers are numbers"),
        (["A", "c"], "choice", "all gold answers are letters of choices"),
        (["1", r"\frac12", "(3, 4)", "x = 2"], "math", "numbers (2, such as '1') and formulas (2, such as"),
        (["Paris", "Apollo 11", "21 Jump Street", "2021-03-04", "C++"], "words", "all gold answers are words"),
        (["1", "2", "no solution"], "mixed", "words (1, such as 'no solution')"),
        (["Paris", "A"], "mixed", "letters of choices (1,"),
        ([], "numbers", "there are no gold answers"),
        (["x + 1"] + ["no solution"] * 300, "mixed", "words (300,"),
    ],
)
def test_the_rule_and_why(golds: Sequence[str], rule: str, why: str) -> None:
    found, said = guess_grader(golds)
    assert found == rule and why in said


def test_each_row_of_a_mixed_file_is_graded_by_its_own_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    golds = ["18", "no solution", r"\frac12", "B"]
    rows = [{"question": f"{i}?", "answer": gold, "split": "test"} for i, gold in enumerate(golds)]
    source = opened(written(tmp_path, *rows))
    right = ["#### $18.00", "#### No solution.", r"so \boxed{0.5}", "#### (b)"]
    wrong = ["#### 19", "#### one solution", r"\boxed{2}", "#### A or B"]
    assert [kind_of(gold) for gold in golds] == ["numbers", "words", "math", "choice"]
    for responses, expected in ((right, True), (wrong, False)):
        grades = source.grade_many(list(zip(responses, source.tasks["test"], strict=True)))
        assert [grade.correct for grade in grades] == [expected] * 4
    flags = ["--model", "embedded", "--methods", "greedy", "--num", "4"]
    assert main(["eval", "--source", str(tmp_path / "rows.jsonl"), *flags]) == 0
    [said] = caplog.messages
    assert said.count("graded as mixed, since the gold answers are numbers (1, such as '18')") == 1


def test_a_rule_that_is_named_and_does_not_fit_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, {"question": "a?", "answer": "5"}, {"question": "b?", "answer": "none"})
    with pytest.raises(
        DataError, match=r"problems\.grade is 'numbers' and .* has the gold answer 'none', which is no number"
    ):
        opened(file, grade="numbers")
    with pytest.raises(DataError, match="gold answer '5', which is no letter of a choice"):
        opened(file, grade="choice")
    assert opened(file, grade="words").grader == "words"


@pytest.mark.parametrize("gold", ["NaN", "Infinity", "-Infinity", '"nan"', '"inf"', '"-Inf"', "null", "[]"])
def test_what_is_no_gold_answer_is_refused(gold: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"question": "q", "answer": {gold}}}\n')
    with pytest.raises(DataError, match=r"line 1 has .* as `answer`"):
        opened(file)


def test_floats_compare_within_their_own_precision(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    values = [0.1, 1 / 3, 2.5, 100 / 7, 3.0, 1e-7]
    for kind in (pyarrow.float32(), pyarrow.float64()):
        columns = {"question": [f"{i}?" for i in range(6)], "answer": pyarrow.array(values, kind)}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{kind}.parquet")
        source = opened(tmp_path / f"{kind}.parquet")
        by_question = {task.problem.question: task for task in tasks_of(source)}
        tasks = [by_question[f"{i}?"] for i in range(6)]
        assert [task.gold for task in tasks][::2] == ["0.1", "2.5", "3"]
        for answer, task in zip(("0.1", "1/3", "2.5", "100/7", "3", "0.0000001"), tasks, strict=True):
            assert source.grade(f"#### {answer}", task).correct, (answer, task.gold)
        for answer, task in zip(("0.11", "0.3334", "2.51", "14.2858", "3.1", "0.0000002"), tasks, strict=True):
            assert not source.grade(f"#### {answer}", task).correct, (answer, task.gold)
    for gold, answer in (("0.10000000149011612", "0.1"), ("0.30000000000000004", "0.3"), ("0.3333333333333333", "1/3")):
        [task] = tasks_of(text := opened(written(tmp_path, {"question": "q", "answer": gold}, name=f"{gold}.jsonl")))
        assert text.grade(f"#### {answer}", task).correct and not text.grade("#### 0.35", task).correct
    third = tasks_of(opened(written(tmp_path, {"question": "q", "answer": 0.1 + 0.2})))[0]
    assert third.gold == "0.3"
