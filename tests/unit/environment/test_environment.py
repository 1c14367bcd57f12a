"""The verifiers taskset, harness and environment, run in this process."""

import asyncio
import json
import sys
import tomllib
from types import ModuleType, SimpleNamespace

import pytest
import verifiers.v1 as vf
from completion_server import CompletionServer
from fault_server import FaultServer
from renderers import DefaultRendererConfig
from support import tiny_chat
from tables import CHECKOUT, write_jsonl
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.serve import EnvClient, EnvServer

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import RewardConfig
from alphazero_llm_trainer.engine.protocol import Limits
from alphazero_llm_trainer.environment.argv import OUR_ID
from alphazero_llm_trainer.environment.calls import CONTINUE_FIELDS, ChatSteps
from alphazero_llm_trainer.environment.env import AlphaZeroEnv, AlphaZeroEnvConfig
from alphazero_llm_trainer.environment.front_end import left_out
from alphazero_llm_trainer.environment.frozen import EMBEDDED_MODEL, EMBEDDED_URL, shared_student
from alphazero_llm_trainer.environment.harness import AlphaZeroHarnessConfig, search_record
from alphazero_llm_trainer.environment.rollouts import TRACES, summarise_rollouts
from alphazero_llm_trainer.environment.taskset import (
    ENDLESS,
    TRAINERS,
    AlphaZeroData,
    AlphaZeroTask,
    AlphaZeroTaskConfig,
    AlphaZeroTaskset,
    AlphaZeroTasksetConfig,
    scoring_config,
    task_data,
)
from alphazero_llm_trainer.environment.taskset_rules import score_reply
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.grading.answers import extract
from alphazero_llm_trainer.mcts.driver import SearchResult
from alphazero_llm_trainer.policy.engine_steps import EngineSteps
from alphazero_llm_trainer.policy.folders import PACKAGED, find_model
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.registry import register_source
from alphazero_llm_trainer.problems.task_list import TaskList
from alphazero_llm_trainer.rewards.combined import combined
from alphazero_llm_trainer.rewards.perplexity import Perplexity
from alphazero_llm_trainer.rewards.terminal import make_evaluate
from alphazero_llm_trainer.serve.requests import ChatBody, Models, chat_request
from alphazero_llm_trainer.tree.arena import Tree
from alphazero_llm_trainer.types import Cost, Direction, Problem, Step, Task, ids_of, text_of


@pytest.fixture(scope="module")
def chat_student(tmp_path_factory):
    """A random model with a chat template, whose turns have a mark at their end."""
    folder = tiny_chat(tmp_path_factory.mktemp("models") / "Tiny-Chat")
    found, _ = find_model(str(folder), load_config())
    config = load_config(overrides=[found, "engine.max_context=1024"])
    return load_student(config)


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory):
    """A folder with 70 questions a split, each of which begins with the split's name."""
    folder = tmp_path_factory.mktemp("rows")
    for split in ("train", "test"):
        rows = [{"question": f"{split}: What is {i}?", "answer": f"#### {i}"} for i in range(70)]
        write_jsonl(folder / f"{split}.jsonl", rows)
    return folder


def environment(taskset=None, harness=None):
    own = {"source": "embedded", "split": "test", "eval_size": 2}  # which `vf-eval` fills in
    raw = {"taskset": {"id": OUR_ID, **own, **(taskset or {})}, "agent": {"harness": harness or {}}}
    env = vf.load_environment(vf.resolve_env_config(raw))
    assert isinstance(env, AlphaZeroEnv)
    return env


def play(env, ctx):
    """Every task of the environment's taskset, one episode each."""

    async def main():
        async with env.serving():
            return await asyncio.gather(*(env.run_episode(task, ctx) for task in env.taskset))

    return asyncio.run(main())


def embedded():
    return vf.ModelContext(model=EMBEDDED_MODEL, client=vf.EvalClientConfig(base_url=EMBEDDED_URL))


def remote(env, server, monkeypatch, train=False):
    """The episodes of the environment with a server's model."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    kind = vf.TrainClientConfig if train else vf.EvalClientConfig
    with server.running() as url:
        client = kind(base_url=url, api_key_var="NO_SUCH_KEY")
        return play(env, vf.ModelContext(model="m", client=client))


# -- the plugin ------------------------------------------------------------------------------------


def test_a_split_that_nobody_named_is_test_where_nothing_trains(gsm8k, monkeypatch):
    """Whoever asks, and it stands in what is saved: in the configuration and in each trace."""
    for name in TRAINERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    raw = {"taskset": {"id": OUR_ID, "path": str(gsm8k)}}
    config = vf.resolve_env_config(raw)  # as an environment server's, or prime-rl's `uv run eval`
    saved = json.loads(config.model_dump_json())["taskset"]
    assert (saved["source"], saved["split"]) == ("gsm8k", "test")
    again = vf.resolve_env_config(json.loads(config.model_dump_json()))
    for tasks in (list(vf.load_environment(again).taskset), list(vf.load_taskset(config.taskset))):
        assert len(tasks) == 20
        assert all(task.data.prompt_text.startswith("test: ") for task in tasks)
        assert {(task.data.source, task.data.split) for task in tasks} == {("gsm8k", "test")}


def test_prime_rls_evaluation_file_has_a_taskset_of_ours():
    """Its own keys are tried by nobody here: `uv run eval` is younger than what can be
    installed."""
    file = CHECKOUT / "examples" / "prime_rl_eval.toml"
    [source] = tomllib.loads(file.read_text("utf-8"))["source"]
    config = vf.resolve_env_config(source["env"])
    assert isinstance(config, AlphaZeroEnvConfig) and config.taskset.split == "test"


@pytest.mark.parametrize("name", TRAINERS)
def test_where_a_trainer_runs_the_split_has_to_be_named(name, gsm8k, monkeypatch):
    """It loads the same taskset for its data set and for its evaluation, and says which to none."""
    for other in TRAINERS:  # other tests'
        monkeypatch.delitem(sys.modules, other, raising=False)
    monkeypatch.setitem(sys.modules, name, ModuleType(name))

    def tasks(**own):
        config = vf.taskset_config_type(OUR_ID)(id=OUR_ID, path=str(gsm8k), **own)
        return list(vf.load_taskset(config))

    with pytest.raises(ConfigError, match=f"split isn't named, and {name.partition('.')[0]} may"):
        tasks()
    for split, least in (("train", 50), ("test", 20)):  # train gives validation a few
        rows = tasks(split=split)
        assert len(rows) >= least
        assert all(task.data.prompt_text.startswith(f"{split}: ") for task in rows)


def test_the_taskset_sizes_splits_and_keys():
    def tasks(**config):
        own = {"source": "embedded", "split": "test"}
        return list(AlphaZeroTaskset(AlphaZeroTasksetConfig(id=OUR_ID, **(own | config))))

    assert len(tasks()) == 20
    assert len(tasks(split="train", train_size=50)) == 50
    assert len(tasks(split="train")) == ENDLESS
    assert len(tasks(eval_size=3)) == 3
    assert {task.data.level for task in tasks(levels=[2])} == {2}
    first, second = tasks(eval_size=1)[0], tasks(eval_size=2)[0]
    assert first.key == second.key == first.data.id
    assert {task.key for task in tasks()}.isdisjoint(task.key for task in tasks(split="train"))


def test_the_default_harness_is_named_where_it_is_set():
    """verifiers from 0.4.1 on merges what is set of a default configuration: without an id its own
    `bash` harness runs.
    """
    default = AlphaZeroEnvConfig.model_fields["agent"].default
    assert default.model_dump(exclude_unset=True)["harness"]["id"] == OUR_ID


# -- rewards ---------------------------------------------------------------------------------------


def test_any_gold_answer_of_a_task_counts_in_the_environment():
    task = Task(Problem("p", "Who?", "several"), "Ann", others=("Anne B",))
    register_source(TaskList([task], "several"))
    item = AlphaZeroTask(task_data(task), AlphaZeroTaskConfig())
    right = [
        asyncio.run(item.grade_response(f"#### {answer}")).correct for answer in ("Anne B", "Bob")
    ]
    assert right == [True, False]


def test_one_reward_in_the_environment_in_training_and_in_the_formula():
    """The same responses, sampled by the student and written by hand, with perplexity and
    without.
    """
    config = load_config()
    tasks = load_tasks("embedded", "test", 3, levels=[2])
    items = [AlphaZeroTask(task_data(task), AlphaZeroTaskConfig()) for task in tasks]
    agent = vf.SingleAgentEnvConfig().agent

    async def main():
        student = shared_student().student
        engine_steps = EngineSteps(student, 1.0)
        for likely in (Perplexity(student, config.search.max_tokens), None):
            golds = {task.problem.id: task for task in tasks}
            evaluate = make_evaluate(config.rewards, likely, golds)
            for task, item in zip(tasks, items, strict=True):
                problem, limits = task.problem, Limits(12, 160)
                sampled, _ = await engine_steps.continuations(problem, (), 4, 3, limits)
                lines = ["1 + 1 = 2\n", "\n\n", "2 + 2 = 4\n", f"#### {task.gold}"]
                written = [step_of(student, line, line == lines[-1]) for line in lines]
                for steps in (*(one.steps for one in sampled), written):
                    text = text_of(steps)
                    parts = await evaluate(problem, steps, [Direction.NONE] * len(steps), "answer")
                    trace = await score_reply(agent, item.with_student(likely is not None), text)
                    assert trace.ok, trace.errors
                    pre = trace.metrics.get("perplexity_reward")
                    count = sum(bool(line.strip()) for line in text.split("\n"))
                    told = {"steps": count, "right": 0, "wrong": 0, "weights": config.rewards}
                    assert trace.reward == combined(parts.hre, pre, **told).total
                    assert trace.metrics["correctness_reward"] == parts.hre
                    assert (pre is None) == (likely is None)
                    assert trace.reward == pytest.approx(parts.total, abs=1e-6)
                total = 0.97 if likely is None else 0.4 + 0.6 * pre - 0.03
                assert trace.reward == pytest.approx(total)

    asyncio.run(main())


def step_of(student, line, last):
    ids = (*student.encode(line), *((student.engine.eos_id,) if last else ()))
    return Step(ids, (0.0,) * len(ids), line)


def test_a_searchs_directions_count_in_the_reward():
    item = AlphaZeroTask(
        AlphaZeroData(id="a", prompt="q", gold="4"), AlphaZeroTaskConfig()
    ).with_student(False)

    def reward(*directions):
        info = {"mcts": {"response": "2 + 2 = 4\n#### 5", "directions": list(directions)}}
        trace = SimpleNamespace(info=info, last_reply="#### 5", metrics={"correctness_reward": 0.0})
        return asyncio.run(item.combined_reward(trace))

    assert reward("none", "none") == 0.0  # 0.02 below 0
    assert reward("right", "none") == reward("right", "right") == pytest.approx(0.08)
    assert reward("right", "wrong") == pytest.approx(0.03)


def test_a_reward_sees_the_columns_of_its_row_and_traces_keep_them(tmp_path, monkeypatch):
    code = "def hard(problem, response, task):\n    return task.row['difficulty'] / 4\n"
    (tmp_path / "own.py").write_text(code)
    rows = [
        {"question": f"{i} + 1?", "answer": i + 1, "difficulty": i, "tags": ["007", None],
         "split": "test"}
        for i in (1, 3)
    ]  # fmt: skip
    write_jsonl(tmp_path / "rows.jsonl", rows)
    own = {
        "source": str(tmp_path / "rows.jsonl"),
        "task": {"custom": f"{tmp_path / 'own.py'}:hard"},
    }
    episodes = remote(environment(own), FaultServer(write=lambda body: "#### 0"), monkeypatch)
    saved = [json.loads(episode.model_dump_json())["traces"][0] for episode in episodes]
    assert [trace["task"]["data"]["row"] for trace in saved] == rows
    assert [trace["metrics"]["custom_reward"] for trace in saved] == [0.25, 0.75]


def test_perplexity_is_by_the_student_that_the_run_names(tmp_path, monkeypatch, chat_student):
    """Of a served model, in the question's own prompt; without one it is refused by name."""
    folder = tiny_chat(tmp_path / "Tiny-Chat")
    file = tmp_path / "own.yaml"
    entry = "{path: " + str(folder) + ", max_tokens: 20}"
    file.write_text(f"student: mine\nmodels: {{mine: {entry}}}\n")
    told = {"use_student_model": True, "config_file": str(file), "eval_size": 1}
    server = FaultServer(write=lambda body: "1 + 1 = 2\n#### 2")
    [episode] = remote(environment(told), server, monkeypatch)
    [trace] = episode.traces
    config = trace.task.data and environment(told).config.taskset.task
    assert config.student == "mine" and config.entry.path == str(folder)

    async def own():
        data, steps = trace.task.data, []
        frozen = shared_student("mine", config.entry, data.system_prompt)
        assert frozen.student.opening.system_prompt == data.system_prompt
        ids = frozen.encode("1 + 1 = 2\n#### 2", True)
        steps.append(Step(ids, (), ""))
        problem = Problem("p", data.prompt_text, "x")
        reward, _ = await Perplexity(frozen.student, frozen.config.search.max_tokens)(
            problem, steps
        )
        return reward

    assert episode.ok, trace.errors
    assert trace.metrics["perplexity_reward"] == pytest.approx(asyncio.run(own()), abs=1e-5)
    with pytest.raises(ConfigError, match=r"--use-student-model measures .* and m is served"):
        remote(environment({"use_student_model": True}), server, monkeypatch)


def test_weights_come_from_the_yaml_file_and_weigh_something(tmp_path):
    def tasks(weight):
        file = tmp_path / "weights.yaml"
        file.write_text(f"rewards: {{hre_weight: {weight}, use_student_model: true}}")
        own = {"config_file": str(file), "use_student_model": False}
        return list(environment(own).taskset)

    assert tasks(0.1)[0].config.needs.hre_weight == 0.1
    with pytest.raises(ConfigError, match=r"rewards\.hre_weight is 0\.0 .* weigh nothing"):
        tasks(0.0)
    off = RewardConfig(use_student_model=False)
    assert scoring_config(AlphaZeroTasksetConfig(), off).use_student_model is False
    assert (
        scoring_config(AlphaZeroTasksetConfig(use_student_model=True), off).use_student_model
        is True
    )


def test_a_right_answer_of_another_model_scores_one_less_its_steps(
    monkeypatch,
):
    golds = {task.data.prompt_text: task.data.gold for task in environment().taskset}

    first = next(iter(golds))

    def answer(body):
        right = body["messages"][-1]["content"] == first
        return f"1 + 1 = 2\n#### {golds[first]}" if right else "#### -999"

    server = FaultServer(write=answer)
    episodes = remote(environment(), server, monkeypatch)
    assert [episode.ok for episode in episodes] == [True, True]
    traces = [episode.traces[0] for episode in episodes]
    assert [trace.metrics["correctness_reward"] for trace in traces] == [1.0, 0.0]
    assert all(len(trace.metrics) == 1 for trace in traces)
    assert [trace.reward for trace in traces] == [0.98, 0.0]  # two steps, and one
    for body in server.requests:
        assert "temperature" not in body
        # The model sees the prompt and nothing of the task's other fields.
        assert [message["role"] for message in body["messages"]] == ["system", "user"]


@pytest.mark.parametrize(
    "reply, finish, right",
    [
        ("2 + 2 = 4", "stop", True),
        ("2 + 2 = 4", "length", False),
        (r"It is \boxed{4}. Let me check: 5", "length", True),
        ("2 + 2 = 4\n#### N", "stop", True),
    ],
)
def test_of_a_reply_that_was_cut_a_marked_answer_alone_counts(reply, finish, right):
    item = AlphaZeroTask(AlphaZeroData(id="a", prompt="q", gold="4"), AlphaZeroTaskConfig())
    calls = [
        SimpleNamespace(error=None, finish_reason=finish),
        SimpleNamespace(error="refused", finish_reason=None),
    ]
    trace = SimpleNamespace(info={}, last_reply=reply, calls=calls)
    assert asyncio.run(item.correctness_reward(trace)) == float(right)


# -- the harness -----------------------------------------------------------------------------------


def test_a_failed_call_fails_the_rollout(monkeypatch):
    for harness in ({}, {"search": "mcts", "simulations": 1}):
        server = FaultServer(lambda number, body: "500")
        episodes = remote(environment(harness=harness), server, monkeypatch)
        assert [episode.ok for episode in episodes] == [False, False]
        assert all(episode.traces[0].reward == 0.0 for episode in episodes)


def test_search_with_the_embedded_student_leaves_its_tree_in_the_trace():
    harness = {"search": "mcts", "simulations": 4, "samples": 2}
    for episode in play(environment(harness=harness), embedded()):
        [trace] = episode.traces
        assert episode.ok, trace.errors
        found = trace.info["mcts"]
        tree = Tree.from_dict(found["tree"])
        assert found["response"].startswith(found["steps"][0]) and found["visits"] >= 1
        assert found["answer"] == extract(found["response"])
        # One call more: the greedy answer of the frozen student, which PRE measures responses
        # against.
        assert found["cost"]["calls"] == len(trace.calls) + 1
        assert all(call.sampling.temperature == 1.0 for call in trace.calls)
        sampled = [node for node in range(1, len(tree)) if tree.source[node] == "student"]
        assert all(len(tree.token_ids[node]) == len(tree.logprobs[node]) > 0 for node in sampled)
        assert found["directions"] == ["none"] * len(found["steps"])


def test_clients_of_an_environment_server_get_what_a_run_alone_gets():
    """verifiers' own server and client, over its wire."""
    searched = {"search": "mcts", "simulations": 6, "samples": 3}
    env = environment({"eval_size": 3}, searched)
    alone = [trace.info["mcts"]["tree"] for one in play(env, embedded()) for trace in one.traces]

    async def main():
        server = EnvServer(environment({"eval_size": 3}, searched).config, "tcp://127.0.0.1:0")
        running = asyncio.create_task(server.run())
        clients = [EnvClient(server.address) for _ in range(3)]

        async def ask(client, task):
            await client.wait_for_server_startup()
            endpoint = vf.EvalClientConfig(base_url=EMBEDDED_URL)
            data = task.data.model_dump(mode="json")
            return await client.run(endpoint, EMBEDDED_MODEL, vf.SamplingConfig(), data)

        try:
            return await asyncio.gather(*map(ask, clients, env.taskset))
        finally:
            await asyncio.gather(*(client.close() for client in clients))
            running.cancel()
            await running
            await server.env.stop()

    for episode, own in zip(asyncio.run(main()), alone, strict=True):
        [trace] = episode.traces
        found = trace.info["mcts"]["tree"]
        assert found["token_ids"] == [list(ids) for ids in own["token_ids"]]
        assert found["N"] == own["N"]


def test_an_environment_server_scores_by_the_tasksets_settings(tmp_path):
    """It gets a task's data alone."""
    file = tmp_path / "own.yaml"
    file.write_text("rewards: {step_penalty: 0.25}\n")
    env = environment({"config_file": str(file)})
    server = EnvServer(env.config, "tcp://127.0.0.1:0")
    for task in env.taskset:
        served = server._build_task(task.data.model_dump(mode="json"))
        assert served.config == task.config and served.config.needs.step_penalty == 0.25
    server.frontend.close()
    server.ctx.term()


def test_a_training_client_gets_whole_responses_with_their_tokens(
    monkeypatch,
):
    """verifiers' client of vLLM's token endpoint, as prime-rl uses it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = CompletionServer()
    client = vf.TrainClientConfig(
        base_url=server.url, renderer=DefaultRendererConfig(), renderer_model_name=str(PACKAGED)
    )
    sampling = vf.SamplingConfig(temperature=1.0)
    student, engine = server.students["student"], server.students["student"].engine
    try:
        for episode in play(environment(), vf.ModelContext("student", client, sampling)):
            [trace] = episode.traces
            ids, reply = trace.branches[0].token_ids, trace.nodes[-1]
            prompt = student.prompt_ids(trace.task.data.prompt)
            assert episode.ok and tuple(ids[: len(prompt)]) == prompt
            assert trace.last_reply == student.decode(ids[len(prompt) :]).strip()
            [own] = server.wait(engine.score([(prompt, tuple(ids[len(prompt) :]))]))
            assert reply.logprobs == pytest.approx(own, abs=1e-4)
            assert trace.metrics["correctness_reward"] in (0.0, 1.0)
    finally:
        server.close()


def test_search_over_any_endpoint_votes_and_never_sends_gold(
    monkeypatch,
):
    def answer(body):
        if body["max_tokens"] == 1:  # a probe
            return "."
        final = "#### 5" if body["seed"] % 3 else "#### 6"
        begun = body["messages"][-1]["role"] == "assistant"
        return final if begun else f"1 + 1 = 2\n2 + 2 = 4\n{final}\nthis line is not asked for"

    harness = {"search": "mcts", "simulations": 4, "samples": 4}
    server = FaultServer(write=answer)
    episodes = remote(environment(harness=harness), server, monkeypatch)
    bodies = server.requests
    for episode in episodes:
        found = episode.traces[0].info["mcts"]
        assert found["answer"] in ("5", "6") and found["steps"][0] == "1 + 1 = 2"
    asked = [body for body in bodies if body["max_tokens"] > 1]
    assert all("stop" not in body and body["temperature"] == 1.0 for body in asked)
    assert {body["max_tokens"] for body in asked} == {400}  # a chat model's, as models.yaml has it
    begun = [body for body in bodies if body["messages"][-1]["role"] == "assistant"]
    assert begun and all(body | CONTINUE_FIELDS == body for body in begun)
    questions = {task.data.prompt_text for task in environment().taskset}
    written = {m["content"] for body in asked for m in body["messages"] if m["role"] != "system"}
    assert written - questions <= {"1 + 1 = 2\n", "1 + 1 = 2\n2 + 2 = 4\n"}
    assert all("gold" not in body for body in bodies)


@pytest.mark.parametrize(
    "model, student",
    [
        (EMBEDDED_MODEL, "embedded"),
        ("meta-llama/Llama-3.2-3B-Instruct", "llama-3.2-3b"),
        ("my@model", "my@model"),
    ],
)
def test_where_steps_end_is_as_the_students_entry_says(model, student):
    config = AlphaZeroHarnessConfig(simulations=5).resolve(model)
    entry = config.models[student]
    assert (config.student, config.search.simulations) == (student, 5)
    assert (config.search.step, config.search.max_tokens) == (entry.step, entry.max_tokens)
    assert entry.step == ("line" if student == "embedded" else "thought")


def test_a_search_draws_the_students_own_chain(chat_student):
    """What the harness sends for a prefix is, through `serve`, the prompt of a search in this
    process: token for token.
    """
    config = load_config(overrides=["student=embedded"])
    question = load_tasks("embedded", "test", 1)[0].problem.question
    problem = Problem("a", question, "x")

    async def main():
        # One that has a chat template with a mark at each turn's end, and the embedded student.
        for student in (chat_student, shared_student().student):
            policy = EngineSteps(student, 1.0)
            opening = [*student.opening.messages(question), {"role": "user", "content": question}]
            calls = ChatSteps(None, opening, config.search, None)
            for lines in ([], ["1 + 1 = 2\n"], ["1 + 1 = 2\n", "\n2 + 2 = 4\n", "So "]):
                steps = [Step(tuple(student.encode(line)), (), line) for line in lines]
                body = {
                    "model": "m",
                    "messages": calls.messages(steps),
                    **(CONTINUE_FIELDS if steps else {}),
                }
                wanted = chat_request(ChatBody.model_validate(body), student, Models("m"))
                assert wanted.prompt == policy.prompt_ids(problem) + ids_of(steps)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["ignores", "trains"])
def test_a_server_that_does_not_go_on_from_a_message_is_named(kind, monkeypatch):
    def answer(body):
        return ("1 + 1 = 2\n#### 2", 12 if body["messages"][-1]["role"] == "assistant" else 5)

    harness = {"search": "mcts", "simulations": 3, "samples": 1}
    server, env = FaultServer(write=answer), environment({"eval_size": 1}, harness)
    episodes = remote(env, server, monkeypatch, train=kind == "trains")
    [error] = episodes[0].traces[0].errors
    why = {"ignores": "begins a new message", "trains": "training client"}[kind]
    assert why in error.message and "continue_final_message" in error.message


def test_a_search_that_finished_nothing_has_nothing_to_score():
    result = SearchResult(Problem("a", "q", "x"), Tree(), None, Cost(), "tokens", 1)
    with pytest.raises(EngineError, match="no finished response"):
        search_record(result)


def test_a_limit_of_lines_ends_a_continuation():
    class Endless:
        async def __call__(self, messages, **parameters):
            assert parameters["max_tokens"] == 100
            return {"message": {"content": "1 + 1 = 2\n" * 9}, "finish_reason": "length"}, Cost(
                sampled_tokens=100
            )

    async def main(limits):
        search = load_config(overrides=["student=embedded"]).search
        return await ChatSteps(Endless(), [], search, None).continuations(
            Problem("a", "q", "x"), (), 1, 0, limits
        )

    for lines in (3, 9, 12):
        [continuation], _ = asyncio.run(main(Limits(steps=lines, tokens=100)))
        assert (len(continuation.steps), continuation.ended) == (min(lines, 9), False)


# -- teachers --------------------------------------------------------------------------------------


def test_a_tier_that_takes_no_part_is_named_with_all_its_reasons(
    monkeypatch,
):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    env = environment({"tier": "free"}, {"search": "mcts", "simulations": 1})
    assert env.config.agent.harness.tier == "free"
    assert all(episode.ok for episode in play(env, embedded()))
    plain = environment({"tier": "free"})
    [line] = left_out(EvalConfig(env=env.config, model="m"))
    assert "OPENROUTER_API_KEY isn't set" in line and "search" not in line
    [line] = left_out(EvalConfig(env=plain.config, model="m"))
    assert "OPENROUTER_API_KEY isn't set" in line and "steps of a search" in line
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    assert left_out(EvalConfig(env=env.config, model="m")) == []
    [line] = left_out(EvalConfig(env=plain.config, model="m"))
    assert "steps of a search" in line and "isn't set" not in line


def test_teachers_propose_steps_where_their_tier_needs_no_key(tmp_path):
    server, file = FaultServer(write=lambda body: "2 + 2 = 4"), tmp_path / "teachers.yaml"
    with server.running() as url:
        file.write_text(
            f"teacher_tiers: {{local: {{base_url: '{url}', teachers: [{{model: t}}]}}}}"
        )
        taskset = {"tier": "local", "config_file": str(file), "eval_size": 1}
        searched = {"search": "mcts", "simulations": 1, "samples": 1}
        [episode] = play(environment(taskset, searched), embedded())
    # One likely-right proposal; likely-wrong ones have no place in an answer.
    assert len(server.requests) == 1
    tree = episode.traces[0].info["mcts"]["tree"]
    assert tree["source"][tree["text"].index("2 + 2 = 4\n")] == "teacher:t"
    (tmp_path / TRACES).write_text(episode.model_dump_json() + "\n")
    assert summarise_rollouts(tmp_path).taught == 1
