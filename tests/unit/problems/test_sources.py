"""Sources: what each gives, how rows of every format become tasks and splits, and what is refused
in one sentence.
"""

import asyncio
import csv
import gzip
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import datasets
import pytest
import verifiers.v1 as vf
from tables import CHECKOUT, table

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import ProblemsConfig, RewardConfig
from alphazero_llm_trainer.environment.argv import OUR_ID
from alphazero_llm_trainer.environment.frozen import EMBEDDED_MODEL, EMBEDDED_URL
from alphazero_llm_trainer.environment.harness import TOO_LONG
from alphazero_llm_trainer.environment.rollouts import summarise_rollouts
from alphazero_llm_trainer.errors import AlphaZeroError, ConfigError, DataError
from alphazero_llm_trainer.grading import answers
from alphazero_llm_trainer.grading.graders import GRADERS, LONGEST_ANSWER, Verdict, guess_grader
from alphazero_llm_trainer.problems import embedded, pancake
from alphazero_llm_trainer.problems.data_set import RowSource
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.registry import (
    check_reads,
    from_tasks,
    open_one_of,
    open_problems,
    open_source,
    source_of,
)
from alphazero_llm_trainer.problems.source import SPLITS, split_of
from alphazero_llm_trainer.problems.task_list import TaskList
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.types import Problem, Task

CASES = table("rows")
PLAIN = [{"question": f"{i} + 1?", "answer": str(i + 1)} for i in range(20)]


def opened(address, path=None, **settings):
    folder = None if path is None else str(path)
    return open_problems(
        ProblemsConfig.model_validate({"source": str(address), "path": folder, **settings})
    )


def everything(source):
    return [task for split in SPLITS for task in source.load(split, 10_000)]


def written(folder, *rows, name="rows.jsonl"):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


# -- generated -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["embedded", "numbers", "pancake"])
def test_generated_sources_are_repeatable_disjoint_and_right(name):
    source = opened(name)
    by_split = {split: load_tasks(source, split, 60) for split in SPLITS}
    seen = Counter(
        question
        for tasks in by_split.values()
        for question in {task.problem.question for task in tasks}
    )
    assert set(seen.values()) == {1}
    for split, tasks in by_split.items():
        assert tasks[40:] == load_tasks(opened(name), split, 20, start=40)
    for task in source.demonstrations(60):
        assert task.problem.source == source.name
        solved = source.grade(task.solution, task).score == 1.0
        assert solved is (source.vote_key(task.solution) == task.gold) is True
        lines = task.solution.splitlines()
        assert all(source.check_step(task.problem, lines[: k + 1]) for k in range(len(lines) - 1))
        assert source.check_step(task.problem, lines) is not False
    tokenizer, text = build_tokenizer(source), f"{task.problem.question}\n{task.solution}"
    assert tokenizer.unk_token_id not in (ids := tokenizer(text).input_ids)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("rule", [*GRADERS])
def test_a_source_that_reads_answers_itself_is_graded_and_voted_by_them(rule):
    class Quoted(RowSource):
        grader = rule

        def final_answer(self, response, strict=False):
            return response.partition("!")[0] or None

    said, task = "B! 4", Task(Problem("p", "q", ""), "b", others=("B",))
    assert Quoted().grade(said, task).answer == Quoted().final_answer(said) == "B"
    assert Quoted().grade(said, task).correct and not Quoted().vote_key("!")
    assert Quoted().vote_key(said) == Quoted().vote_key("B! 5") != Quoted().vote_key("C! 4")


GAME = Task(Problem("p", "Use 6, 1 and 4 once each to make 24.", "numbers"), "24")


@pytest.mark.parametrize(
    "response, right",
    CASES["numbers"],
)
def test_only_legal_play_reaches_the_target(response, right):
    grade = opened("numbers").grade(response, GAME)
    assert grade.correct is right and (grade.verdict is Verdict.UNPARSED) is (
        not answers.spoken(response)
    )


@pytest.mark.parametrize("right, steps", CASES["moves"])
def test_steps_of_the_game_are_checked_without_gold(right, steps):
    assert opened("numbers").check_step(GAME.problem, steps) is right


SORTING = Task(Problem("p", "4 flips: 31425", "pancake"), "12345")


@pytest.mark.parametrize(
    "response, right",
    CASES["flips"],
)
def test_only_allowed_flips_bring_a_row_into_order(response, right):
    source = opened("pancake")
    grade = source.grade(response, SORTING)
    assert grade.correct is right
    assert (grade.verdict is Verdict.UNPARSED) is not response
    steps, sorts = response.splitlines(keepends=True), response.rstrip()[-5:] == "12345"
    legal = all(source.check_step(SORTING.problem, steps[: k + 1]) for k in range(len(steps)))
    assert (legal and sorts and ":" in response) is right
    assert source.final_answer(response) == ("12345" if sorts and ":" in response else None)


def test_demonstrations_of_flips_are_random_games_of_all_lengths_that_end_in_order():
    source = opened("pancake", levels=(1, 3))
    asked = load_tasks(source, "train", 400)
    assert not any(task.solution for task in asked)
    played, lengths = source.demonstrations(400), set()
    assert played == source.demonstrations(500)[:400]
    for task in played:
        row, flips = pancake.read_row(task.problem.question)
        assert split_of(row) == "train" and flips == pancake.LEVEL_FLIPS[task.problem.level][1]
        steps = task.solution.splitlines()
        lengths.add((task.problem.level, len(steps)))
        assert pancake.play_flips(row, steps) == pancake.sort_row(row)
    assert lengths == {(1, k) for k in range(1, 9)} | {(3, k) for k in range(1, 13)}
    assert {task.problem.level for task in played} == {1, 3}


@pytest.mark.parametrize("question", ["Sort 321", "12 flips: 331", "12 flips: 924"])
def test_another_text_is_no_row_to_sort(question):
    with pytest.raises(DataError, match="write `12 flips: 936128547`"):
        pancake.read_row(question)


def test_the_guides_game_is_played(tmp_path, monkeypatch):
    guide = CHECKOUT / "docs/guides/your-own-task.md"
    [game] = re.findall(r"```python\n(# game\.py\n.*?)```", guide.read_text("utf-8"), re.S)
    assert len([line for line in game.splitlines() if line.strip()]) <= 40
    monkeypatch.chdir(tmp_path)
    Path("game.py").write_text(game, "utf-8")
    address = "game.py:Doubling"
    source = opened(address)
    by_split = {split: load_tasks(source, split, 40) for split in SPLITS}
    for split, tasks in by_split.items():
        for task in tasks:
            assert split_of(task.problem.question) == split
            assert source.grade(task.solution, task).correct and task.problem.source == address
            steps = task.solution.splitlines()
            assert source.check_step(task.problem, steps)
            assert not source.check_step(task.problem, [*steps, steps[-1]])
            assert not source.grade(steps[-1], task).correct


@pytest.mark.parametrize("task_id", CASES["pinned"])
def test_the_generator_still_writes_what_it_wrote(task_id):
    """Saved trees and the shipped student's card name tasks by id."""
    task = embedded.from_id(task_id)
    assert [task.problem.question, task.solution] == CASES["pinned"][task_id]


def test_reasoning_gym_grades_by_its_own_rule():
    pytest.importorskip("reasoning_gym")
    source = opened("reasoning-gym:chain_sum")
    tasks = load_tasks(source, "test", 20)
    assert not {t.problem.question for t in tasks} & {
        t.problem.question for t in load_tasks(source, "train", 20)
    }
    for task in tasks:
        assert source.grade(f"thinking\n#### {task.gold}", task).score == 1.0
        assert source.grade("#### 123456789", task).score < 1.0
    assert source.grade("nothing", tasks[0], strict=True).verdict is Verdict.UNPARSED


# -- formats and splits ----------------------------------------------------------------------------

LINES = "".join(json.dumps(row) + "\n" for row in PLAIN)
TABLE = "question,answer\n" + "".join(f"{row['question']},{row['answer']}\n" for row in PLAIN)
TEXTS = {
    "rows.jsonl": LINES,
    "ROWS.NDJSON": LINES,
    "lines.json": LINES,
    "list.json": json.dumps(PLAIN, indent=2),
    "windows.jsonl": "\ufeff" + LINES.replace("\n", "\r\n\r\n"),
    "rows.csv": TABLE,
    "Rows.TSV": TABLE.replace(",", "\t"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_every_format_holds_the_same_rows_and_nothing_is_left_behind(name, tmp_path, monkeypatch):
    expected = everything(opened(written(tmp_path, *PLAIN, name="expected.jsonl")))
    for file in (tmp_path / "in" / name, tmp_path / "packed" / f"{name}.gz"):
        file.parent.mkdir()
        content = TEXTS[name].encode()
        file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
        before = sorted(tmp_path.rglob("*"))
        same = [(task.problem.question, task.gold) for task in everything(opened(file))]
        assert same == [(task.problem.question, task.gold) for task in expected]
        assert sorted(tmp_path.rglob("*")) == before


def test_texts_are_read_as_they_are_written(tmp_path):
    """No date, number or missing value is guessed, in a column of one type or of several."""
    golds = CASES["literal"]
    limit = csv.field_size_limit()
    for count in (1, len(golds)):
        table = written(tmp_path, name=f"{count}.csv")
        rows = [{"question": f"{i}?", "answer": gold} for i, gold in enumerate(golds[:count])]
        lines = [",".join(row.values()) for row in rows]
        table.write_text("\n".join(["question,answer", *lines]))
        for file in (table, written(tmp_path, *rows, name=f"{count}.jsonl")):
            assert sorted(task.gold for task in everything(opened(file))) == sorted(golds[:count])
    assert csv.field_size_limit() >= limit  # of the whole process: no table makes it smaller
    rows = [
        {"question": "a?", "answer": 123456789012345678901234567890},
        {"question": "b?", "answer": "x"},
    ]
    assert {task.gold for task in everything(opened(written(tmp_path, *rows)))} == {golds[5], "x"}


def test_floats_compare_within_their_own_precision(tmp_path):
    import pyarrow
    import pyarrow.parquet

    values = [value for value, *_ in CASES["floats"]]
    for kind in (pyarrow.float32(), pyarrow.float64()):
        columns = {"question": [f"{i}?" for i in range(6)], "answer": pyarrow.array(values, kind)}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{kind}.parquet")
        source = opened(tmp_path / f"{kind}.parquet")
        tasks = sorted(everything(source), key=lambda task: task.problem.question)
        assert tasks[4].gold == "3"
        for task, (_, right, wrong) in zip(tasks, CASES["floats"], strict=True):
            assert source.grade(f"#### {right}", task).correct, (right, task.gold)
            assert not source.grade(f"#### {wrong}", task).correct, (wrong, task.gold)


def test_the_one_split_is_a_hash_of_the_question():
    shares = Counter(split_of(f"question {i}") for i in range(4000))
    assert all(
        abs(shares[split] / 40 - share) < 2
        for split, share in (("test", 15), ("arena", 5), ("train", 75))
    )
    assert {split_of(f"question {i}", SPLITS[1:]) for i in range(100)} == {"train"}
    tasks = [Task(Problem(str(i), f"question {i}", "x"), "1") for i in range(200)]
    # More rows move none to another split.
    small, large = TaskList(tasks[:50], "x"), TaskList(tasks, "x")
    assert all(set(small.tasks[split]) <= set(large.tasks[split]) for split in SPLITS)


def test_all_splits_together_are_every_row_once():
    source = TaskList([Task(Problem(str(i), f"question {i}", "x"), "1") for i in range(60)], "x")
    every = load_tasks(source, "all", 100)
    assert [*map(int, sorted((t.problem.id for t in every), key=int))] == [*range(60)]
    assert len(load_tasks(source, "test", 100)) < 60
    assert [*load_tasks(source, "all", 25), *load_tasks(source, "all", 99, start=25)] == every
    with pytest.raises(ConfigError, match="split is 'all' and source pancake makes as many"):
        load_tasks("pancake", "all", 5)


def test_a_row_of_two_splits_is_taken_once_and_not_trained_on(tmp_path, monkeypatch, caplog):
    rows = [("train", 1), ("train", 2), ("test", 2), ("validation", 1), ("train", 3), ("arena", 4)]
    hub = {split: [] for split in SPLITS}
    for split, n in rows:
        hub[split].append({"question": f"{n}?", "answer": n})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, configuration, split: hub)
    from_hub = opened("hub:x/rows")
    monkeypatch.undo()
    own = opened(
        written(tmp_path, *({"question": f"{n}?", "answer": n, "split": s} for s, n in rows))
    )
    for source in (own, from_hub):
        loaded = [source.load(split, 9) for split in SPLITS]
        assert [[task.gold for task in tasks] for tasks in loaded] == [*map(list, "3142")]
    assert "2 of its rows repeat others" in caplog.text
    assert (
        "train 1, validation 1, arena 1, test 1; question is `question`, answer is `answer`; graded"
        in caplog.text
    )
    with pytest.raises(DataError, match="twice, with the answer '4' and with '3'"):
        repeated = ({"question": "3?", "answer": answer} for answer in "43")
        opened(written(tmp_path, *repeated, name="two.jsonl"))


@pytest.mark.parametrize("name", CASES["broken"])
def test_what_cannot_be_read_is_one_sentence_with_its_place(name, tmp_path):
    text, reason = CASES["broken"][name]
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=reason) as caught:
        opened(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_another_encoding_an_empty_folder_and_a_missing_file_are_said(tmp_path):
    (tmp_path / "wide.jsonl").write_text(LINES, encoding="utf-16")
    for address in ("wide.jsonl", "nothing.jsonl", "*.csv", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(DataError, match=r"utf-8|no file of rows"):
            opened(tmp_path / address)


# -- columns, choices, rules -----------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES["columns"])
def test_rows_of_other_trainers_are_read(case, tmp_path):
    row, question, gold = CASES["columns"][case]
    [task] = everything(opened(written(tmp_path, row)))
    assert (task.problem.question, task.gold) == (question, gold)
    assert task.solution is None or (
        task.solution.endswith(f"#### {gold}") and "<<" not in task.solution
    )


@pytest.mark.parametrize("case", CASES["files"])
def test_files_are_read_as_a_whole(case, tmp_path):
    files, address, settings, expected = CASES["files"][case]
    for name, rows in files.items():
        written(tmp_path, *rows, name=name)
    source, read = opened(tmp_path / address, **settings), {}
    for split in SPLITS:
        for task in source.load(split, 99):
            facts = [task.gold, list(task.others), task.solution, split, task.problem.id, task.row]
            read[task.problem.question] = dict(
                zip(("gold", "others", "solution", "split", "id", "row"), facts, strict=True)
            )
    assert {
        question: {name: facts[name] for name in expected.get(question, ())}
        for question, facts in read.items()
    } == expected


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("case", CASES["held"])
def test_one_json_value_holds_rows_as_pandas_and_benchmarks_write_them(case, indent, tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(CASES["held"][case], indent=indent))
    tasks = sorted(everything(opened(tmp_path / "rows.json")), key=lambda task: task.gold)
    read = [(task.problem.question, task.gold, task.row["level"]) for task in tasks]
    assert read == [("a?", "1", "x"), ("b?", "2", "y")]


def test_a_row_that_spans_lines_is_read(tmp_path):
    row = {"prompt": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}
    (tmp_path / "row.json").write_text(json.dumps(row, indent=2))
    [task] = everything(opened(tmp_path / "row.json"))
    assert (task.problem.question, task.gold, task.row) == ("1 + 1?", "2", row)


@pytest.mark.parametrize("answer, settings, right, wrong, said", CASES["golds"])
def test_of_several_gold_answers_any_counts_or_all_and_a_line_says_which(
    answer,
    settings,
    right,
    wrong,
    said,
    tmp_path,
    caplog,
):
    source = opened(written(tmp_path, {"question": "q?", "answer": answer}), **settings)
    [task] = everything(source)
    for responses, expected in ((right, True), (wrong, False)):
        grades = source.grade_many([(f"#### {response}", task) for response in responses])
        assert [grade.correct for grade in grades] == [expected] * len(responses)
    assert said in caplog.text


def test_ids_number_the_rows_of_one_split_of_the_hub(monkeypatch):
    hub = {s: [{"id": i, "question": f"{s} {i}?", "answer": i} for i in range(3)] for s in SPLITS}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, configuration, split: hub)
    assert len({task.problem.id for task in everything(opened("hub:x/rows"))}) == 12


@pytest.mark.parametrize("key", ["question_column", "answer_column", "solution_column"])
def test_a_column_that_is_not_there_is_named_with_those_that_are(key, tmp_path):
    with pytest.raises(DataError, match=rf"no column 'other', it has question.*problems\.{key}"):
        opened(written(tmp_path, *PLAIN), **{key: "other"})


@pytest.mark.parametrize("choices, answer, letter", CASES["choices"])
def test_a_gold_answer_finds_its_choice_or_is_refused(choices, answer, letter, tmp_path):
    file = written(tmp_path, {"question": "q?", "options": choices, "answer": answer})
    if letter is None:
        with pytest.raises(DataError, match=r"none of its 3 choices|1 to 26"):
            opened(file)
        return
    [task] = everything(opened(file))
    lines = task.problem.question.split("\n")[1:]
    assert task.gold == letter and [line[:2] for line in lines] == [
        f"{chr(65 + i)}." for i in range(len(lines))
    ]


MOSTLY = ["x + 1", *["no solution"] * 300], "mixed"


@pytest.mark.parametrize("golds, rule", [*CASES["rules"], MOSTLY])
def test_gold_answers_decide_the_rule(golds, rule):
    assert guess_grader(golds)[0] == rule


def test_each_row_of_a_mixed_file_is_graded_by_its_own_kind(tmp_path):
    golds, right, wrong = CASES["mixed"]
    rows = [{"question": f"{i}?", "answer": gold, "split": "test"} for i, gold in enumerate(golds)]
    source = opened(written(tmp_path, *rows))
    for responses, expected in ((right, True), (wrong, False)):
        grades = source.grade_many(list(zip(responses, source.load("test", 4), strict=True)))
        assert [grade.correct for grade in grades] == [expected] * 4
    assert opened(tmp_path / "rows.jsonl", grade="words").grader == "words"
    for grade in ("numbers", "choice"):
        with pytest.raises(
            DataError, match=f"problems.grade is '{grade}' and .* has the gold answer"
        ):
            opened(tmp_path / "rows.jsonl", grade=grade)


def test_tasks_without_gold_are_for_a_reward_that_needs_none():
    source = TaskList(
        [Task(Problem(f"poems/{i}", f"Write {i} lines.", "poems"), "") for i in range(40)],
        "poems",
        "words",
    )
    assert (
        len(load_tasks(source, "train", 5, rewards=RewardConfig(custom="m:f", hre_weight=0))) == 5
    )
    with pytest.raises(ConfigError, match=r"rewards\.hre_weight is 0\.4, a reward that needs gold"):
        load_tasks(source, "train", 5, rewards=RewardConfig(custom="m:f"))
    with pytest.raises(DataError, match="source poems has no gold answer for task 'poems/"):
        load_tasks(source, "train", 5)


# -- code of one's own, and addresses --------------------------------------------------------------

CODE = """
from alphazero_llm_trainer.problems.source import Source
from alphazero_llm_trainer.types import Problem, Task

PAIRS = [(f"{i} + 1?", str(i + 1)) for i in range(40)]
TASKS = [
    Task(Problem(f"own/{i}", question, "own"), gold) for i, (question, gold) in enumerate(PAIRS)
]

def tasks():
    return PAIRS

def rows():
    return [{"question": f"{split} {i}?", "answer": i, "solution": f"#### {i}", "split": split}
            for split in ("train", "validation", "arena", "test") for i in range(3)]

class Parity(Source):
    name = "parity"
    def load(self, split, count, start=0):
        return [
            Task(
                Problem(f"{split}/{i}", f"Is {i} even? ({split})", "parity"),
                "no" if i % 2 else "yes"
            )
            for i in range(start, start + count)
        ]

class Strange(Source):
    def load(self, split, count, start=0):
        return ["no task"] * count

BROKEN, NUMBER = [("only a question",)], 3
"""


def test_code_of_ones_own_is_a_source(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(CODE)
    golds = [
        [t.gold for t in everything(opened(f"{file}:{name}"))]
        for name in ("PAIRS", "tasks", "TASKS")
    ]
    assert golds[0] == golds[1] == golds[2] and len(golds[0]) == 40
    rows = opened(f"{file}:rows")
    assert [len(rows.load(split, 9)) for split in SPLITS] == [3] * 4 and rows.load("test", 1)[
        0
    ].solution == "#### 0"
    parity = opened(f"{file}:Parity")
    assert parity.name == "parity" and len(load_tasks(parity, "train", 7)) == 7
    for name, reason in (
        ("BROKEN", "has no column 'answer'"),
        ("NUMBER", "is a int"),
        ("missing", "has no missing"),
    ):
        with pytest.raises(AlphaZeroError, match=reason):
            opened(f"{file}:{name}")
    with pytest.raises(DataError, match="loads 'no task', which is no Task"):
        load_tasks(opened(f"{file}:Strange"), "train", 2)
    (tmp_path / "bad.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(ConfigError, match=r"can't be imported .ModuleNotFoundError"):
        opened(f"{tmp_path}/bad.py:x")


@pytest.mark.parametrize(
    "address",
    ["nope", "module:name", "missing.py:x", "missing.py", "hub:x", "numbers:0", "gsm8k:train",
     "missing.jsonl", "reasoning-gym:", "reasoning-gym:no_such_task", ""]
)  # fmt: skip
def test_what_is_no_source_is_said_in_one_sentence(address):
    with pytest.raises(AlphaZeroError) as caught:
        opened(address)
    assert address.partition(":")[0] in str(caught.value) and "\n" not in str(caught.value)


class Careless(TaskList):
    def grade_many(self, pairs, strict=False):
        return next(iter(()))


@pytest.mark.parametrize("grader", ["math", "numbers"])
def test_grades_of_ones_own_that_ask_for_nothing_end_their_question(grader):
    task = Task(Problem("p", "q", "careless"), "1")
    grade = Careless([task], "careless", grader).grade_async("#### 1", task)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        asyncio.run(asyncio.wait_for(grade, 60))


def test_a_source_is_opened_once_and_again_when_its_file_changes(tmp_path):
    file = written(tmp_path, *PLAIN)
    first = opened(file)
    assert opened(file) is first is source_of(Problem("p", "q", str(file)))
    file.write_text(json.dumps({"question": "another?", "answer": "1"}) + "\n")
    os.utime(file, ns=(1, 1))
    assert len(everything(opened(file))) == 1


def test_keys_that_no_source_reads_are_refused(tmp_path):
    rows = str(written(tmp_path, *PLAIN))
    config = load_config(overrides=["problems.levels=[3]"])
    both = [open_one_of(config, name) for name in ("embedded", rows)]
    assert both[0].load("test", 4)[0].problem.level == 3
    check_reads(config.problems, both)  # what one of several doesn't read is for the others
    for source, setting in (
        (rows, "problems.levels=[1]"),
        (rows, f"problems.path={tmp_path}"),
        ("embedded", "problems.grade=words"),
        ("gsm8k", "problems.answer_column=x"),
    ):
        with pytest.raises(ConfigError, match="doesn't know: leave it out"):
            open_source(load_config(overrides=[{"problems": {"source": source}}, setting]))


# -- GSM8K, MATH and HotpotQA ----------------------------------------------------------------------


SETS = CASES["sets"]


def row_of(name, **columns):
    return SETS[name]["rows"][0] | columns


@pytest.mark.parametrize("name", SETS)
def test_rows_become_tasks_from_a_folder_and_from_the_hub(name, tmp_path, monkeypatch):
    folder, split, rows = (SETS[name][key] for key in ("folder", "split", "rows"))
    *problem, gold, solution = SETS[name]["second"]
    expected = Task(Problem(*problem), gold, solution)
    for place in ("", f"{folder}/"):
        written(tmp_path / (place or "flat"), *rows, name=f"{place}{split}.jsonl")
        monkeypatch.setenv("ALPHAZERO_DATA_DIR", str(tmp_path / (place or "flat")))
        tasks = opened(name, str(tmp_path / (place or "flat"))).load("test", 100)
        assert len(tasks) == 2 and tasks[1] == expected
        assert opened(name).load("test", 2, 1) == [expected]  # by the variable
        opened.__globals__["open_problems"].__globals__["_open_cached"].cache_clear()
    monkeypatch.delenv("ALPHAZERO_DATA_DIR")
    asked = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **more: asked.append((args, more)) or rows
    )
    assert opened(name).load("test", 5)[1] == expected
    assert [(args[0].lower().rpartition("/")[0] != "", more) for args, more in asked] == [
        (True, {"split": split})
    ]
    assert source_of(expected.problem).grade(expected.solution or "", expected).correct


def test_train_rows_are_split_by_a_hash_of_the_question(tmp_path):
    for split, count in (("train", 200), ("test", 7)):
        written(
            tmp_path,
            *(row_of("gsm8k", question=f"{split} {n}?") for n in range(count)),
            name=f"{split}.jsonl",
        )
    loaded = {split: load_tasks("gsm8k", split, 1000, path=str(tmp_path)) for split in SPLITS}
    assert len(loaded["test"]) == 7
    assert len({task.problem.id for tasks in loaded.values() for task in tasks}) == 207
    assert all(
        split_of(t.problem.question, ("test",)) == split
        for split in SPLITS[:3]
        for t in loaded[split]
    )
    rows = [
        {
            "problem": f"Halve {i}.",
            "level": "Level 2",
            "solution": rf"It is $\boxed{{\frac{{{i}}}{{2}}}}$.",
        }
        for i in range(40)
    ]
    written(tmp_path / "old", *rows, name="math500/train.json")
    tasks = [
        task
        for split in SPLITS[:3]
        for task in opened("math", str(tmp_path / "old")).load(split, 99)
    ]
    assert {(task.gold, task.problem.level) for task in tasks} == {
        (rf"\frac{{{i}}}{{2}}", 2) for i in range(40)
    }


@pytest.mark.parametrize(
    "name, columns, reason",
    [
        ("gsm8k", {"answer": "so 72"}, "line 1: gold answer 'so 72' has no number after '####'"),
        (
            "math",
            {"answer": "1" * (LONGEST_ANSWER + 1)},
            "line 1 has an `answer` of 1001 characters",
        ),
        (
            "hotpotqa",
            {"context": {"title": ["a", "b"], "sentences": [["c"]]}},
            "as many lists of texts",
        ),
    ],
)
def test_broken_rows_name_file_and_line(name, columns, reason, tmp_path):
    file = written(tmp_path, row_of(name, **columns), name=f"{SETS[name]['split']}.jsonl")
    with pytest.raises(DataError) as caught:
        load_tasks(name, "test", 9, path=str(tmp_path))
    assert (
        reason in str(caught.value)
        and str(file) in str(caught.value)
        and "\n" not in str(caught.value)
    )


def test_what_is_missing_says_where_it_belongs(tmp_path, monkeypatch):
    with pytest.raises(
        DataError, match=r"has neither train\.jsonl nor math500/train\.jsonl: point problems\.path"
    ):
        load_tasks("math", "arena", 1, path=str(tmp_path))
    with pytest.raises(ConfigError, match="split is 'dev': choose one of train"):
        load_tasks("gsm8k", "dev", 1)
    with pytest.raises(DataError, match="no train problems from number 99 on"):
        load_tasks(opened(written(tmp_path, *PLAIN)), "train", 1, start=99)
    monkeypatch.delenv("ALPHAZERO_DATA_DIR", raising=False)
    for error in (ConnectionError("no route"), ValueError("no such split")):
        monkeypatch.setattr(datasets, "load_dataset", mock.Mock(side_effect=error))
        with pytest.raises(
            DataError, match=r"openai/gsm8k can't be loaded from the hub .* set ALPHAZERO_DATA_DIR"
        ):
            load_tasks("gsm8k", "test", 1)


def test_without_the_hub_s_library_files_are_read_and_the_rest_says_what_to_install(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("ALPHAZERO_DATA_DIR", raising=False)
    for name in ("datasets", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    assert len(everything(opened(written(tmp_path, *PLAIN)))) == len(PLAIN)
    (tmp_path / "rows.parquet").write_bytes(b"")
    for address in ("gsm8k", "hub:x/rows", str(tmp_path / "rows.parquet")):
        with pytest.raises(ConfigError, match=r"install alphazero-llm-trainer\[hub\]"):
            opened(address).load("test", 1)


@pytest.mark.data
def test_every_real_row_loads(data_dir):
    sizes = {}
    for name in SETS:
        tasks = [
            t
            for split in (SPLITS if name == "gsm8k" else ["test"])
            for t in load_tasks(name, split, 10_000, path=str(data_dir))
        ]
        sizes[name] = len(tasks)
        assert len({task.problem.id for task in tasks}) == len(tasks)
        for task in tasks if name == "gsm8k" else ():
            assert "<<" not in task.solution
            assert answers.equal(answers.extract(task.solution, strict=True) or "", task.gold)
            assert task.gold == str(int(task.solution.rpartition("####")[2].replace(",", "")))
    assert sizes == {"gsm8k": 8792, "math": 500, "hotpotqa": 250}


# -- in the environment ----------------------------------------------------------------------------


def test_vf_eval_scores_what_fits_and_counts_what_does_not(tmp_path):
    long = {"title": ["Long"], "sentences": [["and one more book "] * 400]}
    rows = row_of("hotpotqa", answer="no"), row_of("hotpotqa", id="2", context=long)
    written(tmp_path, *rows, name="validation.jsonl")
    taskset = {"id": OUR_ID, "source": "hotpotqa", "split": "test", "path": str(tmp_path)}
    raw = {
        "taskset": taskset,
        "agent": {"harness": {"search": "mcts", "simulations": 2, "samples": 1}},
    }
    env = vf.load_environment(vf.resolve_env_config(raw))
    ctx = vf.ModelContext(model=EMBEDDED_MODEL, client=vf.EvalClientConfig(base_url=EMBEDDED_URL))

    async def main():
        async with env.serving():
            return list(await asyncio.gather(*(env.run_episode(task, ctx) for task in env.taskset)))

    fits, too_long = asyncio.run(main())
    assert fits.ok and too_long.ok
    assert fits.traces[0].last_reply and "skipped" not in fits.traces[0].info
    assert too_long.traces[0].info["skipped"] == TOO_LONG
    assert too_long.traces[0].reward == 0.0
    (tmp_path / "traces.jsonl").write_text(
        "".join(f"{one.model_dump_json()}\n" for one in (fits, too_long))
    )
    summary = summarise_rollouts(tmp_path)
    assert (summary.total, summary.failed, summary.skipped) == (2, 0, 1)


def test_tasks_in_memory_have_splits():
    problems = ProblemsConfig.model_validate({"source": "mine"})
    mine = from_tasks([{"question": "a?", "answer": "1", "split": "dev"}], problems)
    assert [len(mine.load(split, 9)) for split in ("train", "validation")] == [0, 1]
    with pytest.raises(ConfigError, match="-1 tasks"):
        load_tasks(mine, "validation", -1)
