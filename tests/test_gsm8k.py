from __future__ import annotations

import json

import pytest

from alphazero_llm_trainer import answers
from alphazero_llm_trainer.errors import ConfigError, DataError
from alphazero_llm_trainer.problems.data_set import split_rows
from alphazero_llm_trainer.problems.load import SPLITS, load_tasks


def row(n=1, **columns):
    return json.dumps(
        {"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = <<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}"} | columns
    )


@pytest.fixture
def folder(tmp_path):
    for name, count in (("train", 40), ("test", 7)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(row(n) for n in range(count)), encoding="utf-8")
    return tmp_path


def test_rows_become_tasks(folder):
    task = load_tasks("gsm8k", "test", 3, path=str(folder))[2]
    assert task.problem.id == "gsm8k/test/2"
    assert task.problem.question == "What is 2 + 2?"
    assert task.problem.source == "gsm8k"
    assert task.gold == "4"
    assert task.solution == "2 + 2 = 4\n#### 4"  # the calculator's annotations are gone


def test_splits_are_disjoint_and_complete(folder):
    loaded = {split: load_tasks("gsm8k", split, 1000, path=str(folder)) for split in SPLITS}
    assert [len(loaded[split]) for split in ("train", "validation", "arena", "test")] == [32, 4, 4, 7]
    ids = [task.problem.id for split in SPLITS for task in loaded[split]]
    assert len(set(ids)) == 47
    assert split_rows("train", 7473) == range(6473)
    assert split_rows("validation", 7473) == range(6473, 6973)
    assert split_rows("arena", 7473) == range(6973, 7473)


@pytest.mark.parametrize("nested", [False, True])
def test_folder_from_the_environment(folder, tmp_path, monkeypatch, nested):
    if nested:
        (tmp_path / "gsm8k").mkdir()
        (tmp_path / "test.jsonl").rename(tmp_path / "gsm8k" / "test.jsonl")
    monkeypatch.setenv("ALPHAZERO_DATA_DIR", str(tmp_path))
    assert len(load_tasks("gsm8k", "test", 100)) == 7


def test_line_separators_and_blank_lines_inside_the_file(tmp_path):
    strange = row(1, question="two\u2028lines\u0085here")
    (tmp_path / "test.jsonl").write_text("\ufeff" + strange + "\n\n" + row(2) + "\n", encoding="utf-8")
    first, second = load_tasks("gsm8k", "test", 9, path=str(tmp_path))
    assert first.problem.question == "two\u2028lines\u0085here"
    assert second.gold == "4"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no rows: put gsm8k rows"),
        (row() + "\n" + row(answer="so 72"), "line 2: gold answer 'so 72' has no number after '####'"),
        (row(answer="#### seventy"), "line 1: gold answer '#### seventy' has no number"),
    ],
)
def test_broken_rows_name_file_and_line(tmp_path, content, message):
    (tmp_path / "test.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load_tasks("gsm8k", "test", 9, path=str(tmp_path))
    assert message in str(caught.value)
    assert str(tmp_path / "test.jsonl") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_folder_and_undecodable_file(tmp_path):
    with pytest.raises(DataError, match=r"has neither test\.jsonl nor gsm8k/test\.jsonl: point dataset\.path"):
        load_tasks("gsm8k", "test", 1, path=str(tmp_path / "nowhere"))
    (tmp_path / "test.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="can't decode byte 0xff"):
        load_tasks("gsm8k", "test", 1, path=str(tmp_path))


@pytest.mark.parametrize(
    ("source", "split", "count", "more", "message"),
    [
        ("maths", "test", 1, {}, "problems.source is 'maths': choose one of embedded, "),
        ("gsm8k", "dev", 1, {}, "split is 'dev': choose one of train"),
        ("gsm8k", "test", 0, {}, "ask for 1 or more"),
        ("gsm8k", "test", 1, {"start": -1}, "from 0 or later"),
        ("gsm8k", "test", 1, {"levels": (1,)}, "gsm8k has no levels"),
    ],
)
def test_wrong_arguments(source, split, *, count, more, message):
    with pytest.raises(ConfigError) as caught:
        load_tasks(source, split, count, **more)
    assert message in str(caught.value)


@pytest.mark.parametrize("error", [ConnectionError("no route"), FileNotFoundError("gone"), ValueError("no cache")])
def test_hub_failure_is_one_sentence_with_the_fix(monkeypatch, error):
    import datasets

    def fail(*args, **kwargs):
        raise error

    monkeypatch.delenv("ALPHAZERO_DATA_DIR", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"openai/gsm8k can't be loaded from the hub .* set ALPHAZERO_DATA_DIR"):
        load_tasks("gsm8k", "test", 1)


@pytest.mark.data
def test_every_real_row_loads(data_dir):
    loaded = {split: load_tasks("gsm8k", split, 10_000, path=str(data_dir)) for split in SPLITS}
    assert {split: len(tasks) for split, tasks in loaded.items()} == {
        "train": 6473,
        "validation": 500,
        "arena": 500,
        "test": 1319,
    }
    tasks = [task for tasks in loaded.values() for task in tasks]
    assert len({task.problem.id for task in tasks}) == 8792
    for task in tasks:
        assert "<<" not in task.solution
        assert answers.equal(answers.extract(task.solution, strict=True), task.gold)
