from __future__ import annotations

import json

import pytest

from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.problems.grading import LONGEST_ANSWER
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.tokenizer import UNK, build_tokenizer


def row(n=1, **columns):
    return json.dumps(
        {
            "problem": rf"Simplify $\frac{{{2 * n}}}{{4}}$. ",
            "solution": rf"We divide: $\boxed{{\frac{{{n}}}{{2}}}}$.",
            "answer": rf"\frac{{{n}}}{{2}}",
            "subject": "Algebra",
            "level": n % 5 + 1,
            "unique_id": f"test/algebra/{n}.json",
        }
        | columns
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "math500").mkdir()
    (tmp_path / "math500" / "test.jsonl").write_text("\n".join(row(n) for n in range(7)), encoding="utf-8")
    return tmp_path


def test_rows_become_tasks(folder):
    task = load_tasks("math", "test", 3, path=str(folder))[2]
    assert task.problem.id == "math/test/algebra/2.json"
    assert task.problem.question == r"Simplify $\frac{4}{4}$."
    assert (task.problem.source, task.problem.level) == ("math", 3)
    assert task.gold == r"\frac{2}{2}"
    assert task.solution == "We divide: $\\boxed{\\frac{2}{2}}$.\n#### \\frac{2}{2}"


@pytest.mark.parametrize(("level", "read"), [(4, 4), ("Level 5", 5), ("Level ?", 0), (None, 0)])
def test_level_as_number_or_words(tmp_path, level, read):
    (tmp_path / "test.jsonl").write_text(row(level=level))
    assert load_tasks("math", "test", 1, path=str(tmp_path))[0].problem.level == read


@pytest.mark.parametrize("local", [True, False])
def test_other_splits_need_a_train_file(folder, monkeypatch, local):
    monkeypatch.delenv("ALPHAZERO_DATA_DIR", raising=False)
    with pytest.raises(DataError, match=r"MATH-500 has no arena split: ask for test, or point dataset.path"):
        load_tasks("math", "arena", 1, path=str(folder) if local else None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no rows: put math rows with problem, solution, answer, unique_id"),
        (json.dumps({"problem": "p"}), "line 1 has None as `solution`"),
        (row(answer="1" * (LONGEST_ANSWER + 1)), "line 1 has an `answer` of 1001 characters"),
    ],
)
def test_broken_rows_name_file_and_line(tmp_path, content, message):
    (tmp_path / "test.jsonl").write_text(content)
    with pytest.raises(DataError) as caught:
        load_tasks("math", "test", 9, path=str(tmp_path))
    assert message in str(caught.value) and str(tmp_path / "test.jsonl") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hub_rows(monkeypatch):
    import datasets

    asked = []

    def load(*args, **kwargs):
        asked.append((args, kwargs))
        return [json.loads(row(n)) for n in range(3)]

    monkeypatch.delenv("ALPHAZERO_DATA_DIR", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(load_tasks("math", "test", 5)) == 3
    assert asked == [(("HuggingFaceH4/MATH-500", None), {"split": "test"})]


@pytest.mark.data
def test_every_real_row_loads_and_can_be_encoded(data_dir):
    tasks = load_tasks("math", "test", 1000, path=str(data_dir))
    assert len(tasks) == len({task.problem.id for task in tasks}) == 500
    assert {task.problem.level for task in tasks} == {1, 2, 3, 4, 5}
    tokenizer = build_tokenizer()
    unknown = tokenizer.convert_tokens_to_ids(UNK)
    encoded = [tokenizer(task.problem.question)["input_ids"] for task in tasks]
    assert max(map(len, encoded)) < 1024  # all of them fit into the embedded student's context
    assert sum(unknown in ids for ids in encoded) > 490
