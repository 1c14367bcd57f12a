from __future__ import annotations

import asyncio
import json

import pytest
import verifiers.v1 as vf

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import EngineConfig
from alphazero_llm_trainer.environment.argv import OUR_ID
from alphazero_llm_trainer.environment.frozen import EMBEDDED_MODEL, EMBEDDED_URL
from alphazero_llm_trainer.environment.harness import TOO_LONG
from alphazero_llm_trainer.environment.rollouts import summarise
from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.eval.greedy import answer
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import load_tasks


def row(n=1, **columns):
    return json.dumps(
        {
            "id": f"5a{n:04d}",
            "question": f"Who wrote book {n}?",
            "answer": f"Writer {n}",
            "type": "bridge",
            "level": "hard",
            "supporting_facts": {"title": ["Book", "Book", "Play"], "sent_id": [0, 9, 0]},
            "context": {"title": ["Book", "Film"], "sentences": [["It is a book. ", " By a writer."], ["A film."]]},
        }
        | columns
    )


@pytest.fixture
def folder(tmp_path):
    for name, count in (("train", 40), ("validation", 7)):
        lines = [row(n, id=f"{name}{n}") for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def test_rows_become_tasks_with_their_paragraphs_in_order(folder):
    task = load_tasks("hotpotqa", "test", 3, path=str(folder))[2]
    assert task.problem.id == "hotpotqa/validation/validation2"
    assert task.problem.question == ("Book: It is a book.  By a writer.\nFilm: A film.\nQuestion: Who wrote book 2?")
    assert (task.problem.source, task.gold) == ("hotpotqa", "Writer 2")
    assert task.solution == "Book: It is a book.\n#### Writer 2"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (row(context=None), "line 1 has no `context` with a list"),
        (row(context={"title": ["a"], "sentences": ["words"]}), "line 1 has no `context` with a list"),
        (row(context={"title": ["a", "b"], "sentences": [["c"]]}), "as many lists of texts as `sentences`"),
    ],
)
def test_broken_rows_name_file_and_line(tmp_path, content, message):
    (tmp_path / "validation.jsonl").write_text(content)
    with pytest.raises(DataError) as caught:
        load_tasks("hotpotqa", "test", 9, path=str(tmp_path))
    assert message in str(caught.value) and str(tmp_path / "validation.jsonl") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.data
def test_real_rows_that_are_too_long_are_skipped_not_fatal(data_dir):
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
    assert found.correct == [[False]] * 8


@pytest.mark.parametrize("search", ["none", "mcts"])
def test_vf_eval_scores_what_fits_and_counts_what_does_not(tmp_path, search):
    long = {"title": ["Long"], "sentences": [["and one more book "] * 400]}
    lines = [row(1, answer="no"), row(2, context=long)]
    (tmp_path / "validation.jsonl").write_text("\n".join(lines))
    taskset = {"id": OUR_ID, "source": "hotpotqa", "path": str(tmp_path)}
    raw = {"taskset": taskset, "agent": {"harness": {"search": search, "simulations": 2, "samples": 1}}}
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
    (tmp_path / "traces.jsonl").write_text("\n".join(one.model_dump_json() for one in (fits, too_long)))
    summary = summarise(tmp_path)
    assert (summary.total, summary.failed, summary.skipped) == (2, 0, 1)


def test_the_taskset_grades_by_the_f1_of_words(tmp_path):
    (tmp_path / "validation.jsonl").write_text(row(1, answer="The 70 Countries"))
    raw = {"taskset": {"id": OUR_ID, "source": "hotpotqa", "path": str(tmp_path)}}
    [task] = vf.load_environment(vf.resolve_env_config(raw)).taskset
    assert (task.data.source, task.data.gold) == ("hotpotqa", "The 70 Countries")
    assert "one line" in task.data.system_prompt and "paragraph" in task.data.system_prompt
    assert asyncio.run(task.validate(None))

    def scored(reply):
        trace = type("Trace", (), {"info": {}, "last_reply": reply, "calls": []})()
        return asyncio.run(task.correctness_reward(trace))

    assert [scored(reply) for reply in ("#### 70 countries", "#### 70", "")] == [1.0, pytest.approx(2 / 3), 0.0]
