"""GSM8K, MATH and HotpotQA: their rows as tasks, their splits, and one sentence for what is broken or missing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from alphazero_llm_trainer import answers
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import EngineConfig
from alphazero_llm_trainer.environment.argv import OUR_ID
from alphazero_llm_trainer.environment.frozen import EMBEDDED_MODEL, EMBEDDED_URL
from alphazero_llm_trainer.environment.harness import TOO_LONG
from alphazero_llm_trainer.environment.rollouts import summarise
from alphazero_llm_trainer.errors import ConfigError, DataError
from alphazero_llm_trainer.eval.greedy import answer
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.data_set import split_rows
from alphazero_llm_trainer.problems.grading import LONGEST_ANSWER
from alphazero_llm_trainer.problems.load import SPLITS, load_tasks
from alphazero_llm_trainer.problems.tokenizer import UNK, build_tokenizer
from alphazero_llm_trainer.types import Problem, Task


def gsm8k(n: int = 1, **columns: Any) -> str:
    row = {"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = <<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}"}
    return json.dumps(row | columns)


def math(n: int = 1, **columns: Any) -> str:
    row = {
        "problem": rf"Simplify $\frac{{{2 * n}}}{{4}}$. ",
        "solution": rf"We divide: $\boxed{{\frac{{{n}}}{{2}}}}$.",
        "answer": rf"\frac{{{n}}}{{2}}",
        "subject": "Algebra",
        "level": n % 5 + 1,
        "unique_id": f"test/algebra/{n}.json",
    }
    return json.dumps(row | columns)


def hotpotqa(n: int = 1, **columns: Any) -> str:
    row = {
        "id": f"5a{n:04d}",
        "question": f"Who wrote book {n}?",
        "answer": f"Writer {n}",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": {"title": ["Book", "Book", "Play"], "sent_id": [0, 9, 0]},
        "context": {"title": ["Book", "Film"], "sentences": [["It is a book. ", " By a writer."], ["A film."]]},
    }
    return json.dumps(row | columns)


ROWS = {"gsm8k": (gsm8k, "test.jsonl"), "math": (math, "test.jsonl"), "hotpotqa": (hotpotqa, "validation.jsonl")}
TASKS = {  # row number 2 of each
    "gsm8k": Task(
        Problem("gsm8k/test/2", "What is 2 + 2?", "gsm8k"),
        "4",
        "2 + 2 = 4\n#### 4",  # the calculator's annotations are gone
    ),
    "math": Task(
        Problem("math/test/algebra/2.json", r"Simplify $\frac{4}{4}$.", "math", 3),
        r"\frac{2}{2}",
        "We divide: $\\boxed{\\frac{2}{2}}$.\n#### \\frac{2}{2}",
    ),
    "hotpotqa": Task(
        Problem(
            "hotpotqa/validation/5a0002",
            "Book: It is a book.  By a writer.\nFilm: A film.\nQuestion: Who wrote book 2?",
            "hotpotqa",
        ),
        "Writer 2",
        "Book: It is a book.\n#### Writer 2",
    ),
}


@pytest.mark.parametrize("source", ROWS)
@pytest.mark.parametrize("nested", [False, True])
def test_rows_become_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, nested: bool) -> None:
    row, name = ROWS[source]
    folder = tmp_path / ("math500" if source == "math" else source) if nested else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(row(n) for n in range(7)), encoding="utf-8")
    monkeypatch.setenv("ALPHAZERO_DATA_DIR", str(tmp_path))
    tasks = load_tasks(source, "test", 100)
    assert len(tasks) == 7 and tasks[2] == TASKS[source]


def test_splits_are_disjoint_and_complete(tmp_path: Path) -> None:
    for name, count in (("train", 40), ("test", 7)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(gsm8k(n) for n in range(count)), encoding="utf-8")
    loaded = {split: load_tasks("gsm8k", split, 1000, path=str(tmp_path)) for split in SPLITS}
    assert [len(loaded[split]) for split in ("train", "validation", "arena", "test")] == [32, 4, 4, 7]
    assert len({task.problem.id for split in SPLITS for task in loaded[split]}) == 47
    assert split_rows("train", 7473) == range(6473)
    assert split_rows("validation", 7473) == range(6473, 6973)
    assert split_rows("arena", 7473) == range(6973, 7473)


def test_line_separators_and_blank_lines_inside_the_file(tmp_path: Path) -> None:
    strange = gsm8k(1, question="two\u2028lines\u0085here")
    (tmp_path / "test.jsonl").write_text("\ufeff" + strange + "\n\n" + gsm8k(2) + "\n", encoding="utf-8")
    first, second = load_tasks("gsm8k", "test", 9, path=str(tmp_path))
    assert first.problem.question == "two\u2028lines\u0085here" and second.gold == "4"


@pytest.mark.parametrize(("level", "read"), [(4, 4), ("Level 5", 5), ("Level ?", 0), (None, 0)])
def test_a_level_is_a_number_or_words(tmp_path: Path, level: Any, read: int) -> None:
    (tmp_path / "test.jsonl").write_text(math(level=level))
    assert load_tasks("math", "test", 1, path=str(tmp_path))[0].problem.level == read


@pytest.mark.parametrize(
    ("source", "content", "message"),
    [
        ("gsm8k", "", "has no rows: put gsm8k rows with question, answer"),
        ("gsm8k", gsm8k() + "\n" + gsm8k(answer="so 72"), "line 2: gold answer 'so 72' has no number after '####'"),
        ("gsm8k", b"\xff\xfe\x00", "is not UTF-8 at byte 0"),
        ("math", json.dumps({"problem": "p"}), "line 1 has None as `solution`"),
        ("math", math(answer="1" * (LONGEST_ANSWER + 1)), "line 1 has an `answer` of 1001 characters"),
        ("hotpotqa", hotpotqa(context=None), "line 1 has no `context` with a list"),
        ("hotpotqa", hotpotqa(context={"title": ["a"], "sentences": ["words"]}), "line 1 has no `context` with a list"),
        (
            "hotpotqa",
            hotpotqa(context={"title": ["a", "b"], "sentences": [["c"]]}),
            "as many lists of texts as `sentences`",
        ),
    ],
)
def test_broken_rows_name_file_and_line(tmp_path: Path, source: str, content: str | bytes, message: str) -> None:
    file = tmp_path / ROWS[source][1]
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        load_tasks(source, "test", 9, path=str(tmp_path))
    assert message in str(caught.value) and str(file) in str(caught.value) and "\n" not in str(caught.value)


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
def test_wrong_arguments(source: str, split: str, count: int, more: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_tasks(source, split, count, **more)
    assert message in str(caught.value)


def test_a_folder_without_the_rows_says_where_they_belong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has neither train\.jsonl nor math500/train\.jsonl: point problems\.path"):
        load_tasks("math", "arena", 1, path=str(tmp_path))


# -- the hub -----------------------------------------------------------------------------------------------------------


def test_without_a_folder_the_rows_are_the_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load(*args: Any, **kwargs: Any) -> list[Any]:
        asked.append((args, kwargs))
        return [json.loads(math(n)) for n in range(3)]

    monkeypatch.delenv("ALPHAZERO_DATA_DIR", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert load_tasks("math", "test", 5)[2] == TASKS["math"]
    assert asked == [(("HuggingFaceH4/MATH-500", None), {"split": "test"})]


@pytest.mark.parametrize("error", [ConnectionError("no route"), ValueError("no such split")])
def test_hub_failure_is_one_sentence_with_the_fix(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    import datasets

    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.delenv("ALPHAZERO_DATA_DIR", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"openai/gsm8k can't be loaded from the hub .* set ALPHAZERO_DATA_DIR"):
        load_tasks("gsm8k", "test", 1)


# -- real rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_every_real_row_of_gsm8k_loads(data_dir: Path) -> None:
    loaded = {split: load_tasks("gsm8k", split, 10_000, path=str(data_dir)) for split in SPLITS}
    sizes = {split: len(tasks) for split, tasks in loaded.items()}
    assert sizes == {"train": 6473, "validation": 500, "arena": 500, "test": 1319}
    tasks = [task for tasks in loaded.values() for task in tasks]
    assert len({task.problem.id for task in tasks}) == 8792
    for task in tasks:
        assert task.solution is not None and "<<" not in task.solution
        for strict in (False, True):
            assert answers.equal(answers.extract(task.solution, strict=strict) or "", task.gold)
        assert task.gold == str(int(task.solution.rpartition("####")[2].replace(",", "")))


@pytest.mark.data
def test_every_real_row_of_math_loads_and_can_be_encoded(data_dir: Path) -> None:
    tasks = load_tasks("math", "test", 1000, path=str(data_dir))
    assert len(tasks) == len({task.problem.id for task in tasks}) == 500
    assert {task.problem.level for task in tasks} == {1, 2, 3, 4, 5}
    tokenizer = build_tokenizer()
    unknown = tokenizer.convert_tokens_to_ids(UNK)
    encoded = [tokenizer(task.problem.question)["input_ids"] for task in tasks]
    assert max(map(len, encoded)) < 1024  # all of them fit into the embedded student's context
    assert sum(unknown in ids for ids in encoded) > 490


@pytest.mark.data
def test_real_rows_that_are_too_long_are_skipped_not_fatal(data_dir: Path) -> None:
    tasks = load_tasks("hotpotqa", "test", 1000, path=str(data_dir))
    assert len(tasks) == len({task.problem.id for task in tasks}) == 250
    config = load_config(overrides=[{"student": "embedded"}])
    student = load_student(config, name="embedded")
    lengths = [len(student.prompt_ids(task.problem.question)) for task in tasks]
    assert EngineConfig().max_context == student.engine.capabilities.max_context == 1024
    some = sorted(range(250), key=lengths.__getitem__)[:4] + [i for i in range(250) if lengths[i] >= 1024][:4]
    found = answer(student, [tasks[i] for i in some], max_tokens=40)
    assert found.skipped == 4
    assert [len(texts) for texts in found.responses] == [1] * 4 + [0] * 4


# -- in the environment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["none", "mcts"])
def test_vf_eval_scores_what_fits_and_counts_what_does_not(tmp_path: Path, search: str) -> None:
    long = {"title": ["Long"], "sentences": [["and one more book "] * 400]}
    lines = [hotpotqa(1, answer="no"), hotpotqa(2, context=long)]
    (tmp_path / "validation.jsonl").write_text("\n".join(lines))
    taskset = {"id": OUR_ID, "source": "hotpotqa", "split": "test", "path": str(tmp_path)}
    raw: dict[str, Any] = {"taskset": taskset, "agent": {"harness": {"search": search, "simulations": 2, "samples": 1}}}
    env = vf.load_environment(vf.resolve_env_config(raw))
    ctx = vf.ModelContext(model=EMBEDDED_MODEL, client=vf.EvalClientConfig(base_url=EMBEDDED_URL))

    async def main() -> list[Any]:
        async with env.serving():
            return list(await asyncio.gather(*(env.run_episode(task, ctx) for task in env.taskset)))

    fits, too_long = asyncio.run(main())
    assert fits.ok and too_long.ok
    assert fits.traces[0].last_reply and "skipped" not in fits.traces[0].info
    assert too_long.traces[0].info["skipped"] == TOO_LONG
    assert too_long.traces[0].reward == 0.0
    (tmp_path / "traces.jsonl").write_text("\n".join(one.model_dump_json() for one in (fits, too_long)))
    summary = summarise(tmp_path)
    assert (summary.total, summary.failed, summary.skipped) == (2, 0, 1)


def test_the_taskset_grades_by_the_f1_of_words(tmp_path: Path) -> None:
    (tmp_path / "validation.jsonl").write_text(hotpotqa(1, answer="The 70 Countries"))
    raw: dict[str, Any] = {"taskset": {"id": OUR_ID, "source": "hotpotqa", "split": "test", "path": str(tmp_path)}}
    [task] = vf.load_environment(vf.resolve_env_config(raw)).taskset
    assert (task.data.source, task.data.gold) == ("hotpotqa", "The 70 Countries")
    assert "one line" in task.data.system_prompt and "paragraph" in task.data.system_prompt
    assert asyncio.run(task.validate(None))

    def scored(reply: str) -> float:
        trace = type("Trace", (), {"info": {}, "last_reply": reply, "calls": []})()
        return asyncio.run(task.correctness_reward(trace))

    assert [scored(reply) for reply in ("#### 70 countries", "#### 70", "")] == [1.0, pytest.approx(2 / 3), 0.0]
