"""Turns in worlds as steps: tokens, masks and rewards of an episode, every way of answering, bad
worlds, and resumed trees. The students' tokens are scripted.
"""

import asyncio
import json
from types import SimpleNamespace

import pytest
from scripted import run, write_calls
from support import qwen_tokenizer
from tables import CHECKOUT

from alphazero_llm_trainer.answering.searches import answer_search
from alphazero_llm_trainer.chat.tool_calls import (
    FORMS,
    as_message,
    read_line,
    write_line,
)
from alphazero_llm_trainer.config.load import load_answering
from alphazero_llm_trainer.engine.protocol import Generated, Limits
from alphazero_llm_trainer.engine.step_ends import step_ends
from alphazero_llm_trainer.errors import ConfigError, RequestError
from alphazero_llm_trainer.eval.attempt import MethodContext
from alphazero_llm_trainer.eval.methods import ANSWERING, run_method
from alphazero_llm_trainer.mcts.steps import end_verdict
from alphazero_llm_trainer.policy.chat import Chat
from alphazero_llm_trainer.problems.load import load_tasks, opening
from alphazero_llm_trainer.problems.registry import hold_source, open_source, with_worlds
from alphazero_llm_trainer.problems.source import Source
from alphazero_llm_trainer.problems.step_checks import Calculator
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.problems.worlds import ObjectWorld
from alphazero_llm_trainer.rewards.turns import Ending, steps_for
from alphazero_llm_trainer.tree.arena import Tree
from alphazero_llm_trainer.tree.extract import OUTSIDE, trajectories
from alphazero_llm_trainer.types import Problem, Said, Task, ToolCall, drawn_mask, ids_of, text_of


def config_of(source, *more):
    asked = {"problems": {"source": source}, "search": {"max_tokens": 400}}
    return load_answering(None, [asked, *more])


class Scripted(Chat):
    """FAKE student: `script(turns so far, number of the draw)` is what it says next. A test
    tool."""

    def __init__(self, tokenizer, config, script, ends=True):
        self.tokenizer, self.opening, self.name = tokenizer, opening(config), "scripted"
        self.spec, self.script, self.ends = SimpleNamespace(thinking=None), script, ends
        self.engine, self.eos_id = self, tokenizer.eos_token_id
        self.capabilities = SimpleNamespace(max_context=4000)
        self.step_ends = step_ends(tokenizer, "line")
        self.requests, self.draws = [], {}

    async def generate(self, requests):
        await asyncio.sleep(0)
        return [[self.sample(request) for _ in range(request.n)] for request in requests]

    def sample(self, request):
        self.requests.append(request)
        number = self.draws.get(request.prompt_ids, 0)
        self.draws[request.prompt_ids] = number + 1
        text = self.script(self.tokenizer.decode(request.prompt_ids), number)
        ids = [*self.encode(text), *([self.eos_id] if self.ends and not self.plain else [])]
        whole = len(ids) <= request.max_new_tokens
        ids = tuple(ids[: request.max_new_tokens])
        finish = ("stop" if self.plain else "eos") if whole else "length"
        return Generated(ids, tuple(-0.1 - 0.01 * (token % 7) for token in ids), finish)


def solver(task, source, write, wrong=0):
    """Says the worked solution's turns in order; the first `wrong` draws at each state are a call
    that gives an error.
    """
    turns = [write(turn) for turn in source.turns(task)]

    def script(text, number):
        if number < wrong:
            return write(Said("", (ToolCall("calculate", {"expression": "apples"}),)))
        asked = text.rpartition(task.problem.question)[2]
        done = sum(turn.strip() in asked for turn in turns[:-1])
        return turns[done]

    return script


def calc(level=2, wrong=0, *more, write=None, chats=False):
    """A calc task, its student of a small vocabulary (`chats`: Qwen's), and the configuration."""
    config = config_of("calc", *more)
    source = open_source(config)
    [task] = load_tasks(source, "test", 1, start=level)
    lines = write_hermes if chats else (lambda said: write_line(said) + "\n")
    script = solver(task, source, write or lines, wrong)
    tokenizer = qwen_tokenizer() if chats else build_tokenizer(source)
    return task, Scripted(tokenizer, config, script), config


def policy_for(student, config):
    return steps_for(student, config.search, [open_source(config)])


async def play_once(policy, problem, tokens):
    """An episode in one draw, what it cost, and how it ended."""
    async with policy.episode(problem):
        [made], cost = await policy.continuations(problem, (), 1, 0, Limits(12, tokens))
        return made, cost, policy.ending(problem, text_of(made.steps))


def answer(task, student, config, method, budget, verifier=None, seed=0):
    """What a method answers; no stage is left open."""
    context = MethodContext(student, verifier, config, tasks=[task])
    made = run(lambda: run_method(method, context, task.problem, seed, budget))
    assert not context.policy.stages
    return made


def write_hermes(said):
    return write_calls(said, FORMS["hermes"]).strip("\n")


def test_a_line_is_read_as_a_call():
    tools = [{"function": {"name": name, "parameters": {"properties": properties}}}
             for name, properties in (("say", {"text": {"type": "string"}}),
                                      ("add", {"n": {"type": "integer"}}),
                                      ("set", {"a": {}, "b": {}}), ("look", {}))]  # fmt: skip
    for line, name, arguments in (
        ("say: 3 + 4", "say", {"text": "3 + 4"}),
        ("add: 3\n", "add", {"n": 3}),
        ('set: {"a": 1, "b": "x"}', "set", {"a": 1, "b": "x"}),
        ("look:", "look", {}),
    ):
        said = read_line(line, tools)
        assert (
            said == Said("", (ToolCall(name, arguments),))
            and read_line(write_line(said), tools) == said
        )
    assert read_line("set: 1", tools).calls[0].error is not None
    for text in ("say 3", "other: 3", "#### 7", "say"):
        assert read_line(text, tools) == Said(text)
    with pytest.raises(ConfigError, match="turns apart"):
        write_line(Said("First.", (ToolCall("look", {}),)))


def test_an_episode_is_a_hand_made_one_token_by_token():
    task, student, config = calc()
    source = open_source(config)
    policy = policy_for(student, config)
    policy.tasks[task.problem.id] = task
    lines = [write_line(turn) + "\n" for turn in source.turns(task)]
    results = [step.rpartition(" = ")[2] + "\n" for step in task.solution.split("\n")[:-1]]

    made, cost, ending = run(lambda: play_once(policy, task.problem, 300))
    wanted = [text for pair in zip(lines, results, strict=False) for text in pair] + lines[-1:]
    encoded = [student.encode(text) for text in wanted]
    assert [*ids_of(made.steps)] == [token for ids in encoded for token in ids]
    mask = [at % 2 == 0 for at, ids in enumerate(encoded) for _ in ids]
    assert [*drawn_mask(made.steps)] == mask and made.ended and not made.cut
    assert [step.text for step in made.steps] == lines
    assert (cost.sampled_tokens, cost.given_tokens) == (sum(mask), len(mask) - sum(mask))
    calls = len(results)
    assert (cost.turns, cost.tool_calls, cost.tool_errors) == (calls + 1, calls, 0)
    assert ending.reward == 1.0 and (ending.turns, ending.calls) == (calls + 1, calls)
    # Each turn was drawn after exactly what the tree holds.
    assert student.requests[-1].prompt_ids == student.chat_ids(
        [{"role": "user", "content": task.problem.question}]
    ) + ids_of(made.steps[:-1])
    assert not policy.stages


def test_a_chat_template_renders_what_is_given():
    """The whole token sequence is what the template writes of the whole chat."""
    task, student, config = calc(chats=True)
    source = open_source(config)
    policy = policy_for(student, config)
    policy.tasks[task.problem.id] = task

    async def play():
        async with policy.episode(task.problem):
            made, _, ending = await play_once(policy, task.problem, 4000)
            stage = policy.stages[task.problem.id]
            return made, ending, stage.prompt, stage.chat.tools

    made, ending, prompt, tools = run(play)
    assert made.ended and ending.reward == 1.0
    assert {token for step in made.steps for token in step.token_ids[: step.drawn][-1:]} == {
        student.eos_id
    }
    messages = [{"role": "system", "content": source.system_prompt},
                {"role": "user", "content": task.problem.question}]  # fmt: skip
    for turn, step in zip(source.turns(task), made.steps, strict=True):
        messages.append(as_message(turn))
        if turn.calls:
            content = step.seen.text
            messages.append({"role": "tool", "content": content, "tool_call_id": f"{0:09}"})
    text = student.tokenizer.decode([*prompt, *ids_of(made.steps)])
    whole = student.render(messages, "closed", tools)
    assert text == whole.rstrip("\n") and "calculate" in text.partition("user")[0]


def test_a_template_without_system_messages_has_it_in_the_first_question():
    task, student, config = calc(chats=True)
    refuse = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    student.tokenizer.chat_template = refuse + student.tokenizer.chat_template
    made = answer(task, student, config, "greedy", 4000)
    assert made.ending.reward == 1.0
    asked = student.tokenizer.decode(student.requests[0].prompt_ids)
    assert f"{open_source(config).system_prompt}\n\n{task.problem.question}" in asked


@pytest.mark.parametrize("method", ANSWERING)
def test_every_method_plays_worlds(method):
    task, student, config = calc()
    made = answer(task, student, config, method, 600, Calculator(), seed=3)
    assert made.ending.reward == 1.0 and made.ending.turns == made.ending.calls + 1
    assert made.cost.given_tokens > 0 and made.tokens == made.cost.computed <= 600


@pytest.mark.parametrize(
    "search", [{"select": name} for name in ("puct", "ucb1", "gumbel", "phs", "best-first")]
)  # fmt: skip
def test_an_erroneous_turn_is_drawn_again(search):
    """Step rejection and a search under the rule answer where each state's first draw is an error;
    one chain can't.
    """
    task, student, config = calc(2, 1, {"search": search})
    for method, reward in (("greedy", None), ("step-rejection", 1.0), ("mcts", 1.0)):
        student.draws = {}
        made = answer(task, student, config, method, 900, Calculator(), seed=3)
        got = None if made.ending is None or made.ending.errors else made.ending.reward
        assert got == reward and made.cost.tool_errors > 0


@pytest.mark.parametrize("select", ["ucb1", "puct", "gumbel"])
def test_a_plain_search_grows_a_tree_of_turns(select):
    task, student, config = calc(2, 1, {"search": {"select": select, "simulations": 6}})
    policy = policy_for(student, config)
    search = answer_search(student, config, policy=policy)

    async def play(tree=None):
        async with policy.episode(task.problem):
            return await search.run(task.problem, 0, tree)

    result = run(play)
    tree = result.tree
    assert any(seen is not None and seen.errors for seen in tree.seen) and result.choice
    again = Tree.from_dict(tree.to_dict())
    assert again.to_dict() == tree.to_dict() and tree.to_dict()["format"] == 3
    assert all(len(one.mask) == len(one.token_ids) for one in trajectories(tree))
    # A tree of an earlier process goes on: its places are played again.
    more = run(lambda: play(again))
    assert len(more.tree.simulations) == 12 and more.cost.sampled_tokens > 0


def test_a_response_beside_the_tree_tells_given_tokens_too():
    """Where the verifier passed no turn, one more chain is drawn, and its tree is read again."""
    task, student, config = calc(2, 2, {"search": {"simulations": 2, "select": "puct"}})
    policy = policy_for(student, config)
    search = answer_search(student, config, policy=policy, verifier=Calculator())

    async def play():
        async with policy.episode(task.problem):
            return (await search.run(task.problem, 0)).tree

    tree = run(play)
    [rollout] = tree.rollouts
    assert {*rollout.mask} == {True, False} and len(rollout.mask) == len(rollout.logprobs)
    given = [
        value for value, drawn in zip(rollout.logprobs, rollout.mask, strict=True) if not drawn
    ]
    assert not any(given) and tree.to_dict()["format"] == 3
    again = Tree.from_dict(json.loads(json.dumps(tree.to_dict())))
    assert again.rollouts == tree.rollouts
    [response] = [one for one in trajectories(again) if OUTSIDE in one.nodes]
    assert response.mask == rollout.mask and response.token_ids == rollout.token_ids


def test_what_does_not_fit_is_cut_and_paid_for():
    task, student, config = calc(2)
    policy = policy_for(student, config)
    whole, *_ = run(lambda: play_once(policy, task.problem, 300))
    length = len(ids_of(whole.steps))
    for tokens in range(1, length):
        made, cost, _ = run(lambda tokens=tokens: play_once(policy, task.problem, tokens))
        assert not made.ended and cost.computed <= tokens
        # Half a line that states an answer.
        assert end_verdict(made, Limits(12, tokens)) == "length"
        kept = [step for step in made.steps if step.seen is not None]
        assert [step.token_ids for step in kept] == [s.token_ids for s in whole.steps[: len(kept)]]
        assert made.cut == (len(kept) < len(made.steps))


class Worlds(Source):
    """A source of one world of the test's own."""

    name, worlds, gold_free = "worlds", True, True
    system_prompt = None

    def __init__(self, kind):
        self.kind = kind

    def load(self, split, count, start=0):
        return [Task(Problem("w/0", "Go.", self.name), "")][start : start + count]

    def world(self, task, tooling):
        messages = ({"role": "user", "content": task.problem.question},)
        return ObjectWorld(self.kind(), {}, messages, tooling)

    def vocabulary_texts(self):
        yield "look: 12345 67890\nGo. error\n"


class Fine:
    def reset(self):
        self.count = 0

    def look(self) -> str:
        """Look."""
        self.count += 1
        return str(self.count)

    def reward(self):
        return float(self.count == 1)


class Dies(Fine):
    def reward(self):
        raise OSError("gone")


class Unopened(Fine):
    def reset(self):
        raise OSError("nothing here")


class Clock(Fine):
    ticks = 0

    def look(self) -> str:
        """Look."""
        Clock.ticks += 1
        return str(Clock.ticks)


def play_own(kind, script):
    source = Worlds(kind)
    hold_source(source)
    config = config_of("worlds")
    [task] = source.load("test", 1)
    student = Scripted(build_tokenizer(source), config, script)
    return answer(task, student, config, "majority", 60)


def look_once(text, number):
    return "Go.\n" if "look" in text else "look:\n"


def test_a_bad_world_ends_its_question_alone():
    made = play_own(Fine, look_once)
    assert made.ending.reward == 1.0 and made.ending.calls == 1
    for kind, said in ((Dies, "the world died"), (Unopened, "didn't open")):
        made = play_own(kind, look_once)
        assert made.response is None and said in made.refusal
    with pytest.raises(ConfigError, match="tool `look` answers differently"):
        play_own(Clock, look_once)


@pytest.mark.parametrize("method", ["majority", "step-rejection", "mcts"])
def test_a_game_that_ran_out_of_flips_is_no_answer(method):
    """The first game ends with its flips; a later one in order, which is the answer."""
    config = config_of("hidden")
    [task] = [Task(Problem("hidden/out", "2 flips: 321", "hidden", 1), "123")]

    def script(text, number):
        return "3" if "assistant\n2" in text or number else "2"

    student = Scripted(qwen_tokenizer(), config, script)
    verifier = None if method == "majority" else Calculator()
    made = answer(task, student, config, method, 500, verifier)
    assert made.ending.reward == 1.0 and made.ending.turns == 1


def test_turns_that_read_alike_and_end_differently_are_refused():
    """Two lines are no move, so that where a turn ends decides the game; the text doesn't tell."""
    config = config_of("hidden")
    problem = Problem("hidden/alike", "2 flips: 321", "hidden")

    def script(text, number):
        if "assistant\n2" not in text:
            return ("2\n9", "2")[number]
        return "3" if "assistant\n2\n9" in text else "9\n3"

    student = Scripted(qwen_tokenizer(), config, script)
    policy = policy_for(student, config)

    async def play(n):
        async with policy.episode(problem):
            drawn, _ = await policy.continuations(problem, (), n, 0, Limits(12, 4000))
            return [policy.grade(problem, text_of(one.steps)).score for one in drawn]

    assert run(lambda: play(1)) == [1.0]
    student.draws = {}
    with pytest.raises(RequestError, match="read alike"):
        run(lambda: play(2))


def test_a_class_of_ones_own_is_played_and_serving_refuses_it():
    """The example's boxes, opened one by one."""
    config = config_of(str(CHECKOUT / "examples" / "own_world.py") + ":World")
    source = open_source(config)
    [task] = load_tasks(source, "test", 1)

    def script(text, number):
        return (
            "Found.\n"
            if str(task.row["goal"]) in text.split("\n")[1:]
            else (f"look: {1 + text.count('look')}\n")
        )

    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = None
    student = Scripted(tokenizer, config, script)
    made = answer(task, student, config, "greedy", 400)
    assert made.ending == Ending("Found.", 1.0, 4, 3, 0)
    with pytest.raises(ConfigError, match="serve plays none"):
        with_worlds(config, "serve")
