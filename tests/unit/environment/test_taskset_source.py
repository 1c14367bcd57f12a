"""`--source verifiers:ENV_ID`: somebody else's taskset and our own one as problems."""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

import pytest
import verifiers.v1 as vf
from fault_server import FaultServer
from tables import TESTS

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import ProblemsConfig
from alphazero_llm_trainer.environment.argv import OUR_ID
from alphazero_llm_trainer.environment.taskset_source import (
    MOST_TASKS,
    VerifiersTaskset,
    own_splits,
)
from alphazero_llm_trainer.errors import AlphaZeroError, ConfigError, RequestError
from alphazero_llm_trainer.eval.greedy import answer_tasks
from alphazero_llm_trainer.grading.graders import Verdict
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.registry import open_problems, source_names
from alphazero_llm_trainer.problems.source import SPLITS
from alphazero_llm_trainer.problems.worlds import Episodes, Tooling
from alphazero_llm_trainer.rewards.terminal import make_evaluate
from alphazero_llm_trainer.types import Said, Step, ToolCall

FOLDER = TESTS / "tasksets" / "word_length"
WORDS = "verifiers:word-length"


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The third-party package, as verifiers finds an environment that is worked on: its folder is
    on the path.
    """
    monkeypatch.syspath_prepend(str(FOLDER))


def open_taskset(address, **options):
    source = open_problems(ProblemsConfig.model_validate({"source": address, **options}))
    assert isinstance(source, VerifiersTaskset)
    return source


def apple(source):
    """The task with the word of five letters."""
    tasks = [task for split in SPLITS for task in source.load(split, 200)]
    return next(task for task in tasks if task.problem.question.endswith(" apple?"))


# -- found and loaded ------------------------------------------------------------------------------


def test_it_is_found_by_the_entry_point():
    place = "alphazero_llm_trainer.environment.taskset_source:VerifiersTaskset"
    assert source_names()["verifiers"].value == place


def test_a_taskset_without_splits_is_cut_by_hash():
    source = open_taskset(WORDS)
    tasks = {split: source.load(split, 200) for split in SPLITS}
    assert {split: len(found) for split, found in tasks.items()} == {
        "train": 85, "validation": 5, "arena": 7, "test": 23
    }  # fmt: skip
    questions = [task.problem.question for found in tasks.values() for task in found]
    assert len(set(questions)) == 120
    again = VerifiersTaskset("word-length")
    assert {split: again.load(split, 200) for split in SPLITS} == tasks
    assert tasks["train"][3:5] == source.load("train", 2, 3)
    # The order of the tasks and their number don't matter to a question that comes twice: it is in
    # one split.
    twice = VerifiersTaskset("word-length?size=12")
    assert sum(len(twice.load(split, 99)) for split in SPLITS) == 12


def test_prompts_become_questions():
    text, chat = open_taskset(WORDS), open_taskset(f"{WORDS}?messages=true")
    assert text.system_prompt == chat.system_prompt == "Answer with one number."
    assert (
        apple(chat).problem.question
        == apple(text).problem.question
        == "How many letters has apple?"
    )
    assert apple(text).gold == "5" and apple(text).problem.source == WORDS
    mixed = open_taskset(f"{WORDS}?two_prompts=true")
    assert mixed.system_prompt is None
    assert apple(mixed).problem.question == "Answer with one number.\n\nHow many letters has apple?"
    assert open_taskset(WORDS, system_prompt="Count.").system_prompt == "Count."


def test_of_an_endless_taskset_the_first_tasks_are_taken(tmp_path, monkeypatch):
    (tmp_path / "counting.py").write_text(
        "import itertools\nimport verifiers.v1 as vf\n\n"
        "class CountingTask(vf.Task):\n"
        "    @vf.reward\n"
        "    async def right(self, trace: vf.Trace) -> float:\n"
        "        return float(trace.last_reply == str(self.data.idx + 1))\n\n"
        "class Counting(vf.Taskset[CountingTask, vf.TasksetConfig]):\n"
        "    INFINITE = True\n"
        "    def load(self):\n"
        "        return (CountingTask(vf.TaskData(prompt=f'{i} + 1?')) for i in "
        "itertools.count())\n\n"
        "__all__ = ['Counting']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    source = open_taskset("verifiers:counting")
    tasks = {split: source.load(split, 10**6) for split in SPLITS}
    assert source.system_prompt is None and sum(map(len, tasks.values())) == MOST_TASKS
    fresh, task = VerifiersTaskset("counting"), tasks["arena"][-1]
    number = int(task.problem.question.partition(" ")[0])
    assert fresh.grade(str(number + 1), task).correct and not fresh.grade(str(number), task).correct


def test_of_two_names_of_a_split_the_usual_one_is_taken():
    class Halves(vf.TasksetConfig):
        split: Literal["test", "train", "eval"] = "train"

    assert own_splits(Halves(id="halves")) == {"train": "train", "test": "test"}


def test_own_choices_of_a_split_are_taken(tmp_path, monkeypatch):
    (tmp_path / "halves.py").write_text(
        "from typing import Literal\nimport verifiers.v1 as vf\n\n"
        "class HalvesConfig(vf.TasksetConfig):\n"
        "    split: Literal['train', 'eval'] | None = None\n\n"
        "class HalvesTask(vf.Task):\n"
        "    @vf.reward\n"
        "    async def right(self, trace: vf.Trace) -> float:\n"
        "        return 1.0\n\n"
        "class Halves(vf.Taskset[HalvesTask, HalvesConfig]):\n"
        "    def load(self):\n"
        "        return [HalvesTask(vf.TaskData(prompt=f'{self.config.split} {i}?')) for i in "
        "range(40)]\n\n"
        "__all__ = ['Halves']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    source = open_taskset("verifiers:halves")
    tasks = {split: source.load(split, 99) for split in SPLITS}
    assert len(tasks["test"]) == 40 and sum(map(len, tasks.values())) == 80
    for split, of_split in tasks.items():
        own = "eval" if split == "test" else "train"
        assert all(task.problem.question.startswith(own) for task in of_split)
    # Set by the address, it is one more option, and the splits are cut out of it.
    source = open_taskset("verifiers:halves?split=eval")
    assert sum(len(source.load(split, 99)) for split in SPLITS) == 40


# -- graded ----------------------------------------------------------------------------------------

# The rewards of word_length.py for "apple", -0.25 to 2.0:
# 0.5 / (1 + how far off) + 1.5 where it is right - 0.25 for shouting.
REWARDS = {
    "It has 5": 2.0,
    "5!": 1.75,
    "Perhaps 6": 0.25,
    "8!": 0.5 / 4 - 0.25,
    "no idea": 0.5 / 7,
    "": 0.5 / 7,
}


@pytest.mark.parametrize("reply, reward", REWARDS.items())
def test_the_tasks_own_rewards_are_summed_and_scaled(reply, reward):
    source = open_taskset(f"{WORDS}?reward_range=-0.25:2")
    grade = source.grade(reply, apple(source))
    assert grade.score == pytest.approx((reward + 0.25) / 2.25)
    assert grade.correct is (reward == 2.0)


@pytest.mark.parametrize("messages", ["false", "true"])
def test_a_trace_is_what_verifiers_own_rollout_makes_and_scores(messages, monkeypatch):
    """The same replies through vf's `run_episode`, against an endpoint that gives them."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    source = open_taskset(f"{WORDS}?messages={messages}")
    item = source._items[apple(source).problem.id]
    raw = {
        "taskset": {"id": "word-length", "messages": messages == "true"},
        "agent": {"harness": {"id": OUR_ID}, "runtime": {"type": "subprocess"}},
    }
    env = vf.load_environment(vf.resolve_env_config(raw))

    def played(reply):
        async def play(url):
            client = vf.EvalClientConfig(base_url=url, api_key_var="NO_SUCH_KEY")
            async with env.serving():
                return await env.run_episode(item, vf.ModelContext(model="m", client=client))

        with FaultServer(write=lambda body: reply).running() as url:
            [trace] = asyncio.run(play(url)).traces
        return trace

    def told(trace):
        record = trace.to_record()
        parts = (
            "task",
            "rewards",
            "metrics",
            "info",
            "is_completed",
            "ok",
            "stop_condition",
            "is_timeout",
            "errors",
        )
        nodes = [
            {key: node[key] for key in ("parent", "message", "sampled")} for node in record["nodes"]
        ]
        calls = [
            {key: call[key] for key in ("node", "endpoint", "finish_reason")}
            for call in record["calls"]
        ]
        return {key: record[key] for key in parts} | {
            "nodes": nodes,
            "calls": calls,
            "reward": trace.reward,
        }

    for reply in ("It has 5", "8!"):
        theirs, mine = told(played(reply)), told(asyncio.run(source.score(reply, apple(source))))
        assert theirs == mine
        assert mine["reward"] == pytest.approx(REWARDS[reply]) and mine["metrics"] == {
            "length": len(reply)
        }


def test_slow_and_broken_rewards():
    source = open_taskset(WORDS)
    task = apple(source)
    late, broken, fine = source.grade_many([("slow 5", task), ("broken 5", task), ("5", task)])
    assert (
        late.verdict is Verdict.TIMED_OUT
        and late.score == 0.0
        and "took too long" in (late.error or "")
    )
    assert broken.verdict is Verdict.FAILED and "RuntimeError: the grader is out of order" in (
        broken.error or ""
    )
    assert fine.correct and fine.error is None


def test_what_has_no_grade_ends_a_training_question():
    source = open_taskset(WORDS)
    task = apple(source)
    evaluate = make_evaluate(load_config().rewards, None, {task.problem.id: task})
    with pytest.raises(RequestError, match="gave no reward for task"):
        asyncio.run(evaluate(task.problem, [Step((1,), (0.0,), "broken")], [], "ended"))
    assert asyncio.run(evaluate(task.problem, [Step((1,), (0.0,), "5")], [], "ended")).hre == 1.0


def test_a_reward_beyond_its_range_is_told_once(caplog):
    source = VerifiersTaskset("word-length")
    task = apple(source)
    assert source.grade("Perhaps 6", task).score == 0.25
    assert caplog.records == []
    assert [source.grade(reply, task).score for reply in ("5", "8!")] == [1.0, 0.0]
    assert [record.levelname for record in caplog.records] == [
        "WARNING"
    ] and "reward of 2" in caplog.text


def test_votes_are_by_the_answer_or_the_whole_text():
    source = open_taskset(WORDS)
    assert source.vote_key("I count\n#### 1,000") == source.vote_key(r"so \boxed{1000}") == "1000"
    assert source.vote_key("It has  5") == source.vote_key("it has 5") != ""
    assert (
        source.final_answer("It has 5", strict=True) is None
        and source.final_answer("It has 5") == "It has 5"
    )


def test_answers_know_of_partial_credit():
    """What a run's mean grade before and after hangs on."""
    student = load_student(load_config(overrides=["student=embedded"]))
    graded = answer_tasks(student, [apple(open_taskset(WORDS))], max_tokens=8)
    plain = answer_tasks(student, load_tasks("embedded", "test", 1), max_tokens=8)
    assert (graded.partial, plain.partial) == (True, False)


# -- tools ---------------------------------------------------------------------------------------

SUMS = '''
import verifiers.v1 as vf


class Adder(vf.Toolset):
    running = 0

    async def setup(self):
        Adder.running += 1
        self._exit_stack.callback(self.end)

    def end(self):
        Adder.running -= 1

    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class SumTask(vf.Task):
    @classmethod
    def toolsets(cls, config):
        return [Adder(vf.ToolsetConfig())]

    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.endswith(str(2 * int(self.data.prompt.split()[0]))))


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return [SumTask(vf.TaskData(idx=i, prompt=f"{i} + {i}?")) for i in range(1, 61)]


__all__ = ["Sums"]
'''


def test_tasks_with_tools_are_worlds(tmp_path, monkeypatch, capsys):
    (tmp_path / "tooled_sums.py").write_text(SUMS)
    monkeypatch.syspath_prepend(str(tmp_path))
    address = "verifiers:tooled-sums?reward_range=0:2"
    source = open_taskset(address)
    assert source.worlds and not open_taskset(WORDS).worlds
    [task] = source.load("test", 1)
    number = int(task.problem.question.partition(" ")[0])
    calls = Said("", (ToolCall("adder_add", {"a": number, "b": number}),))
    tooling = Tooling(lambda turn: calls if turn == "call" else Said(turn), seconds=30.0)

    async def play():
        async with Episodes(lambda: source.world(task, tooling)) as episodes:
            asked = await episodes.act(await episodes.open(), "call")
            return [await episodes.act(asked, f"#### {2 * number + k}") for k in (0, 1)]

    ends = asyncio.run(play())
    assert [end.path[0][1].messages[0]["content"] for end in ends] == [str(2 * number)] * 2
    assert [end.path[1][1].reward for end in ends] == [1.0, 0.0]
    assert main(["search", "--source", address, "--model", "embedded", "--simulations", "2"]) == 0
    shown = capsys.readouterr()
    assert task.problem.question in shown.out and "turns with" in shown.out
    assert sys.modules["tooled_sums"].Adder.running == 0  # no server outlives its run
    assert main(["serve", "--source", address, "--port", "0"]) == 2
    assert "serve plays none" in capsys.readouterr().err


# -- refused ---------------------------------------------------------------------------------------

REFUSED = {
    "": "write verifiers:ENV_ID",
    "not-there-at-all": "put the folder that holds it on PYTHONPATH",
    "json": "exports no Taskset",
    "word-length?colour=red": "colour",
    "word-length?reward_range=1": "write LOW:HIGH",
    "word-length?size=0": "has no tasks",
    "word-length?needs=runtime": "needs a container or a runtime",
    "word-length?needs=image": "has image",
    "word-length?needs=user": "isn't one question",
    "word-length?needs=turns": "watches or rewrites",
    "word-length?needs=no rewards": "has no rewards",
    "word-length?needs=crash": "OSError: no such table",
    OUR_ID: "name its own source",
}


@pytest.mark.parametrize("address, words", REFUSED.items())
def test_what_is_more_than_one_reply_is_refused_in_one_sentence(address, words):
    with pytest.raises(AlphaZeroError, match=words) as caught:
        VerifiersTaskset.open(address, ProblemsConfig(source=f"verifiers:{address}"))
    assert isinstance(caught.value, ConfigError) and "\n" not in str(caught.value)


def test_other_environments_are_refused(tmp_path, monkeypatch):
    (tmp_path / "talking.py").write_text(
        "import verifiers.v1 as vf\n\n"
        "class Talking(vf.Taskset[vf.Task, vf.TasksetConfig]):\n    def load(self):\n        "
        "return []\n\n"
        "class Debate(vf.SingleAgentEnv):\n    async def run(self, task, agents):\n        pass\n\n"
        "__all__ = ['Talking', 'Debate']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="environment Debate has several turns"):
        VerifiersTaskset("talking")


# -- trained ---------------------------------------------------------------------------------------


def test_a_taskset_is_searched_sampled_and_evaluated(tmp_path):
    small = ["--set", "search.simulations=4"]
    assert main([*f"search --source {WORDS} --model embedded".split(), *small]) == 0
    sample = [
        *f"sample --source {WORDS} --model embedded -n 2 --out {tmp_path / 'trees'}".split(),
        *small,
    ]
    assert main(sample) == 0
    evaluate = f"eval --source {WORDS} --model embedded -n 4 --methods greedy majority".split()
    assert main([*evaluate, *f"--budget-tokens 200 --out {tmp_path / 'eval'}".split()]) == 0
