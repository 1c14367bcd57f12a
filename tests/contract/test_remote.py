"""Search over OpenAI-compatible servers: `serve` itself, and behind a proxy that takes abilities
from it.
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from typing import Any, cast

import httpx
import openai
import processes
import pytest
from aiohttp import web
from fault_server import FakeServer, FaultServer
from tables import read_json, read_jsonl, table

import alphazero_llm_trainer as az
from alphazero_llm_trainer.chat import server as chat_server
from alphazero_llm_trainer.chat.client import ChatClient, Endpoint
from alphazero_llm_trainer.chat.remote import RemoteSteps, remote_student
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_answering, load_config
from alphazero_llm_trainer.config.sections import TeacherModel
from alphazero_llm_trainer.engine.protocol import Limits
from alphazero_llm_trainer.environment.calls import ChatSteps
from alphazero_llm_trainer.errors import RequestError
from alphazero_llm_trainer.mcts.steps import end_verdict
from alphazero_llm_trainer.policy.engine_steps import EngineSteps
from alphazero_llm_trainer.policy.folders import with_model
from alphazero_llm_trainer.problems.load import load_tasks, opening
from alphazero_llm_trainer.types import Cost, Opening, text_of

PROBLEMS = [task.problem for task in load_tasks("embedded", "test", 12, start=340)]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """`serve` with the embedded student."""
    server = processes.served(tmp_path_factory.mktemp("served"), "--model", "embedded")
    yield f"{processes.url(server)}/v1"
    server.kill()


REFUSALS = {
    "max_tokens": {
        "message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead.",
        "param": "max_tokens",
    },
    "temperature": {"message": "Input validation error: `temperature` must be strictly positive"},
    "seed": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "not permitted"}],
    "stream_options": {"message": "Unrecognized request argument supplied: stream_options"},
}


class Proxy(FakeServer):
    """A server that lacks some of what `serve` can, or with `says` answers that once it was
    greeted, with `first` that before. `bodies` are the requests that came.
    """

    def __init__(self, target, *lacks, says=None, first=()):
        self.target, self.lacks, self.says, self.first = target, lacks, says, [*first]
        self.bodies = []

    async def respond(self, request):
        body = await request.json()
        self.bodies.append(dict(body))
        if "key" in self.lacks and request.headers.get("authorization") != "Bearer right":
            return web.json_response({"error": {"message": "no such key"}}, status=401)
        for name, refusal in REFUSALS.items():
            if name in self.lacks and body.get(name, 1) != 1:
                where, status = ("error", 400) if isinstance(refusal, dict) else ("detail", 422)
                return web.json_response({where: refusal}, status=status)
        if "logprobs" in self.lacks and body.pop("logprobs", None):
            return web.json_response({"error": {"message": "logprobs: not this model"}}, status=400)
        if "going on" in self.lacks and "continue_final_message" in body:
            refusal = {"message": "unknown: continue_final_message"}
            return web.json_response({"error": refusal}, status=400)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        scripted = body.get("max_tokens") != 1
        if self.first and scripted:
            pieces = self.first.pop(0)
        else:
            pieces = self.says if scripted and self.says is not None else await self.pieces(body)
        for piece in pieces:
            if piece == CUT:
                request.transport.abort()
                break
            await answer.write(piece.encode())
        return answer

    async def pieces(self, body):
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(f"{self.target}/chat/completions", json=body)
        lines = answer.text.splitlines()
        if "usage" in self.lacks:
            lines = [line for line in lines if '"usage"' not in line]
        if "cached" in self.lacks:  # tells what it computed alone
            lines = [computed_alone(line) if '"usage"' in line else line for line in lines]
        return [f"{line}\n" for line in lines]


def computed_alone(line):
    told = json.loads(line.removeprefix("data: "))
    usage = told.get("usage") or {}
    if details := usage.pop("prompt_tokens_details", None):
        usage["prompt_tokens"] -= details["cached_tokens"]
    return f"data: {json.dumps(told)}"


CUT = "cut"


def student_at(url, **openai):
    layer = {
        "engine": {"backend": "openai", "openai": {"base_url": url, **openai}},
        "search": {"step": "line"},
    }
    config, _ = with_model("student", [layer], lambda layers: load_answering(None, layers))
    return remote_student(config)


def drawn(student, prefix=(), steps=12, tokens=60, n=2):
    policy, limits = RemoteSteps(student, 1.0), Limits(steps, tokens)
    return asyncio.run(policy.continuations(PROBLEMS[0], prefix, n, 5, limits, 0.0))


def test_steps_and_tokens_are_those_of_the_model_in_process(url):
    student, local = student_at(url), az.load("embedded")
    [mine, _], cost = drawn(student)
    policy = EngineSteps(local, 1.0)
    [theirs], _ = asyncio.run(policy.continuations(PROBLEMS[0], (), 1, 5, Limits(12, 60), 0.0))
    assert [step.text for step in mine.steps] == [step.text for step in theirs.steps]
    for own, other in zip(mine.steps, theirs.steps, strict=True):
        assert student.decode(own.token_ids) == own.text
        assert len(own.token_ids) == len(other.token_ids)
    *text, _ = [value for step in mine.steps for value in step.logprobs]  # but for the end token
    assert text == pytest.approx([v for step in theirs.steps for v in step.logprobs][:-1], abs=1e-5)
    assert mine.ended and theirs.ended
    assert cost.calls == 2 and cost.sampled_tokens == 2 * sum(len(s.token_ids) for s in mine.steps)
    # The rest of a response that has begun, and one step of it.
    [rest, _], _ = drawn(student, mine.steps[:1])
    assert rest.steps == mine.steps[1:]
    [line, _], _ = drawn(student, mine.steps[:1], steps=1)
    assert line.steps == mine.steps[1:2] and not line.ended


@pytest.mark.parametrize("lacks", ["logprobs", "going on", "usage", "cached"])
def test_a_server_that_lacks_something_is_asked_otherwise(url, lacks):
    own = drawn(student_at(url))[0][0].steps
    with (proxy := Proxy(url, lacks)) as place:
        student = student_at(place)
        student.max_tokens = 60
        [first, _], cost = drawn(student)
        before = len(proxy.bodies)
        drawn(student, first.steps[:1])
        body = proxy.bodies[before]
        drawn(student, first.steps[:1], tokens=20)
    assert text_of(first.steps) == text_of(own) and cost.sampled_tokens > 10
    assert len({step.token_ids for step in first.steps}) == len(first.steps)
    server = student.engine.server
    assert server.logprobs == (lacks != "logprobs")
    assert server.goes_on == (lacks in ("logprobs", "cached"))
    if lacks == "logprobs":
        assert {step.logprobs[0] for step in first.steps} == {-20.0}
        assert body["messages"][-1] == {"role": "assistant", "content": first.steps[0].text}
        # The limit is of the response: what it has already is told by the text of all samples.
        assert body["max_tokens"] == pytest.approx(60 - len(own[0].token_ids), abs=3)
        assert proxy.bodies[-1]["max_tokens"] == 20  # what a budget leaves is of this sample alone
    elif lacks != "cached":
        assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
        assert student.word is not None


def replied(url, says, steps=12, tokens=60, **settings):
    """The sample that a server streams, its cost, and the student that asked."""
    with Proxy(url, says=says) as place:
        student = student_at(place, **settings)
        [reply], cost = drawn(student, steps=steps, tokens=tokens, n=1)
    return reply, cost, student


def chunk(text=None, finish=None, **more):
    """An event of a streamed reply."""
    tokens = [{"token": text, "logprob": more.pop("logprob", -0.5)}] if text else []
    choice = {
        "index": 0,
        "delta": {"content": text} | more.pop("delta", {}),
        "finish_reason": finish,
        "logprobs": {"content": tokens} if tokens else None,
    }
    return f"data: {json.dumps({'choices': [choice]} | more)}\n\n"


USAGE = {"prompt_tokens": 9, "completion_tokens": 2}
END = [chunk(finish="stop"), "data: [DONE]\n\n"]
NONSENSE = {
    "no end": ([chunk("3 + 4 = 7\n")], "broke off in a reply"),
    "a page": (["<html>busy</html>"], "broke off in a reply"),
    "no choices": (["data: {}\n\n"], "no chat completion"),
    "a failure": (['data: {"error": {"message": "\\u001b[31mburnt"}}\n\n'], "burnt"),
    "no end of it": ([chunk("x" * 64)] * 100, "ignores the limit"),
    "more than was asked for": (
        [chunk("7"), chunk(finish="stop", usage={**USAGE, "completion_tokens": 500})],
        "sampled 500 tokens where max_tokens was 40: it ignores the limit, or searches",
    ),
    "nothing to count by": ([chunk(delta={"content": "7"}), *END], "no token can be counted"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_a_server_that_answers_nonsense_ends_in_a_sentence(url, case, monkeypatch):
    monkeypatch.setattr(chat_server, "PAUSE_SECONDS", 0.0)
    says, words = NONSENSE[case]
    with pytest.raises(az.AlphaZeroError) as caught:
        replied(url, says, tokens=40)
    assert words in str(caught.value) and str(caught.value).isprintable()


SERVERS = table("servers")


@pytest.mark.parametrize("case", SERVERS["replies"], ids=lambda case: case["name"])
def test_odd_events_are_read_or_skipped_and_counted(case):
    with FaultServer(lambda number, body: case["name"]).running() as place:
        student = student_at(place)
        [reply], cost = drawn(student, n=1, tokens=40)
    assert text_of(reply.steps) == case.get("text", text_of(reply.steps))
    assert reply.why == case.get("why") and reply.ended == (reply.why is None)
    assert cost.sampled_tokens in (1, 5)  # an end is a token, whatever usage says
    word = str(student.word)
    assert ("sent" in word) == (case["word"] is not None) and (case["word"] or "") in word


@pytest.mark.parametrize("said, again", SERVERS["failures"])
def test_a_failure_in_a_stream_is_tried_again_where_that_may_help(url, said, again, monkeypatch):
    monkeypatch.setattr(chat_server, "PAUSE_SECONDS", 0.0)
    whole = [chunk("#### 7", "stop")]
    with (proxy := Proxy(url, says=whole, first=[[f"event: error\ndata: {said}\n\n"]])) as place:
        student = student_at(place)
        if again:
            assert text_of(drawn(student, n=1)[0][0].steps) == "#### 7"
        else:
            with pytest.raises(RequestError):
                drawn(student, n=1)
        assert len(proxy.bodies) == 3 + again  # two greet


def eval_at(place, out, *more):
    argv = f"eval --base-url {place} --model m -n 6 --methods greedy majority --out {out}"
    return main([*argv.split(), "--budget-tokens", "20", "--samples", "2", *more])


@pytest.mark.parametrize("status, body, words", SERVERS["refusals"])
def test_a_refused_question_is_unanswered_and_the_others_stand(
    status, body, words, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.01)
    tasks = load_tasks("embedded", "test", 6)
    refused = tasks[4].problem

    def choose(number, asked):
        return (status, body) if asked["messages"][-1]["content"] == refused.question else "ok"

    server = FaultServer(choose, write=lambda asked: "3 + 4 = 7\n#### 7")
    with server.running() as place:
        assert eval_at(place, tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "1 of 6 questions are refused" in shown and refused.id in shown
    found = read_json(tmp_path / "out" / "results.json")
    for row in found["rows"] + found["at_k"]:
        [(key, why)] = row["refusals"].items()
        assert key == refused.id and words in why
    assert all(row["refused"] == 1 and row["no answer"] == 0 for row in found["rows"])


def test_where_all_questions_are_refused_at_the_start_it_is_an_error(tmp_path, capsys):
    def choose(number, asked):
        return (400, {"error": {"message": "not you"}}) if asked["max_tokens"] > 1 else "ok"

    with FaultServer(choose).running() as place:
        assert eval_at(place, tmp_path / "out") == 2
        assert "not you" in capsys.readouterr().err
        argv = f"sample --base-url {place} --model m -n 6 --out {tmp_path / 'trees'}"
        assert main(argv.split()) == 2
        assert "not you" in capsys.readouterr().err


@pytest.mark.parametrize("refusal", SERVERS["no_system"])
def test_a_server_without_a_system_role_reads_the_prompt_before_the_question(refusal, monkeypatch):
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.01)

    def choose(number, asked):
        return tuple(refusal) if asked["messages"][0]["role"] == "system" else "ok"

    with (server := FaultServer(choose, write=lambda asked: "#### 7")).running() as place:
        student = student_at(place)
        student.opening = Opening("Be brief.")
        [reply], _ = drawn(student, n=1)
        count = len(server.requests)
        drawn(student, n=1)
    assert text_of(reply.steps) == "#### 7" and len(server.requests) == count + 1
    question = {"role": "user", "content": f"Be brief.\n\n{PROBLEMS[0].question}"}
    assert server.requests[-1]["messages"] == [question]
    assert "--set problems.system_prompt=" in str(student.word)
    assert opening(load_config(overrides=["problems.system_prompt="])).system_prompt is None


@pytest.mark.parametrize("refusal", SERVERS["few"])
def test_a_server_that_wants_more_tokens_is_greeted_with_more(refusal):
    def choose(number, asked):
        most = asked.get("max_tokens", asked.get("max_completion_tokens"))
        return (400, refusal) if most < 16 else "ok"

    with FaultServer(choose, write=lambda asked: "#### 7").running() as place:
        student = student_at(place)
        [reply], _ = drawn(student, n=1)
        [short], cost = drawn(student, n=1, tokens=9)  # fewer than it takes are lost
    assert text_of(reply.steps) == "#### 7"
    assert short.cut and not short.steps and cost.sampled_tokens == 9 and not cost.calls


def test_replies_that_say_nothing_end_a_question(tmp_path, capsys):
    """They cost next to nothing, so no budget would."""
    with (server := FaultServer(lambda number, body: "a call of a tool")).running() as place:
        assert eval_at(place, tmp_path / "out", "--samples", "0") == 2
        assert "calls of tools" in capsys.readouterr().err
        assert len(server.requests) < 99
    with FaultServer(lambda number, body: "a refusal").running() as place:
        argv = f"search --base-url {place} --model m --set search.samples=2 --simulations 1"
        assert main(argv.split()) == 0
    assert "of 2 responses 2 were refused: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "broken",
    [
        ['data: {"error": {"message": "overloaded", "code": 529}}\n\n'],
        ['data: {"error": "overloaded"}\n\n'],
        [CUT],
        ['data: {"choices": [{"delta": {"con'],
        [chunk(finish="error")],
        [],
    ],
)
def test_a_reply_that_breaks_off_is_begun_again(url, broken, monkeypatch):
    monkeypatch.setattr(chat_server, "PAUSE_SECONDS", 0.0)
    whole = [chunk("3 + 4"), chunk(" = 7\n"), chunk("#### 7", "stop")]
    twice = [[chunk("8 + 8 = "), *broken]] * 2
    with (proxy := Proxy(url, says=whole, first=twice)) as place:
        [reply], cost = drawn(student_at(place), n=1)
    assert text_of(reply.steps) == "3 + 4 = 7\n#### 7" and reply.ended
    assert cost.calls == 3 and cost.sampled_tokens == 5 and not proxy.first


def test_a_request_that_is_refused_in_a_stream_is_not_begun_again(url):
    refusal = 'data: {"error": {"message": "too long", "code": 400}}\n\n'
    with (proxy := Proxy(url, first=[[refusal], []])) as place:
        with pytest.raises(RequestError):
            drawn(student_at(place), n=1)
        assert len(proxy.first) == 1


ENDS = ("stop", "eos", "eos_token", "end_turn", "STOP", "tool_calls", "stop_sequence", None)


@pytest.mark.parametrize("reason", [*ENDS, "length", "max_tokens"])
def test_only_a_cut_is_no_end(url, reason):
    text = "3 + 4 = 7\n#### 7"
    says = [chunk("3 + 4 = 7\n"), chunk("#### 7"), chunk(finish=reason), END[-1]]
    reply, _, _ = replied(url, says)
    assert text_of(reply.steps) == text
    assert (reply.ended, reply.cut) == ((True, False) if reason in ENDS else (False, True))

    async def call(*_, **more):
        return {"message": {"content": text}, "finish_reason": reason}, Cost()

    steps = ChatSteps(cast(Any, call), [], load_config().search, None)
    [own], _ = asyncio.run(steps.continuations(PROBLEMS[0], (), 1, 5, Limits(12, 60)))
    assert (own.ended, own.cut) == (reply.ended, reply.cut)


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_by_name_is_left_out(url, name):
    """Once: then it is known. Steps are the same, and a teacher asks as well."""
    own = text_of(drawn(student_at(url))[0][0].steps)
    with (proxy := Proxy(url, name)) as place:
        student = student_at(place)
        assert text_of(drawn(student, n=1)[0][0].steps) == own
        count = len(proxy.bodies)
        drawn(student, n=1)
        assert len(proxy.bodies) == count + 1
        body = proxy.bodies[-1]
        assert name not in body and ("max_completion_tokens" in body) == (name == "max_tokens")
        assert "refuses" in str(student.word)
        settings = load_config().teachers.with_values(max_tokens=60)
        client = ChatClient(Endpoint(place, None, settings), TeacherModel(model="student"))
        question = [{"role": "user", "content": PROBLEMS[0].question}]
        assert "####" in asyncio.run(client.complete(question, temperature=0.0))


def test_proxies_addresses_and_refused_connections(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(az.AlphaZeroError, match="can't be reached"):
        drawn(student_at(place))
    monkeypatch.setenv("OPENAI_BASE_URL", place)
    openai = load_config().engine.openai
    assert openai.base_url is None and chat_server.ChatServer(openai, "m").url == place
    monkeypatch.setenv("OPENAI_BASE_URL", "http://ana:sesame@127.0.0.1/v1")
    with pytest.raises(az.AlphaZeroError, match="OPENAI_BASE_URL") as slip:
        chat_server.ChatServer(openai, "m")
    assert "sesame" not in str(slip.value)
    monkeypatch.setenv("ALL_PROXY", "socks5://ana:sesame@127.0.0.1:9")
    with pytest.raises(az.AlphaZeroError, match="ALL_PROXY") as slip:
        drawn(student_at(place))
    assert "sesame" not in str(slip.value)


LIES = {"prompt_tokens": -4, "completion_tokens": "many", "cost": float("nan")}


@pytest.mark.parametrize("usage", [LIES, {**USAGE, "completion_tokens": 0}, "none", None])
def test_what_a_server_says_of_tokens_is_held_to_what_came(url, usage):
    says = [chunk("3 + 4"), chunk(" = 7\n"), chunk("####"), chunk(" 7", "stop", usage=usage)]
    reply, cost, _ = replied(url, says)
    assert text_of(reply.steps) == "3 + 4 = 7\n#### 7" and reply.ended
    assert cost.sampled_tokens == 4 and cost.dollars == 0.0


def test_an_impossible_log_probability_is_that_of_unknown_ones(url):
    odd = [chunk("3", logprob=2.0), chunk(" + 4 = 7\n", logprob=-1e9), *END]
    reply, _, _ = replied(url, odd)
    assert [step.logprobs for step in reply.steps] == [(-20.0, 0.0)]


def test_a_beginning_that_is_repeated_is_left_out(url):
    """By a model that was asked to go on."""
    pieces = ["3 + 4 = 7\n", "7 - 5", " = 2\n", "#### 2"]
    says = [*map(chunk, pieces), *END]
    with Proxy(url, "going on", says=says) as place:
        student = student_at(place)
        [whole], _ = drawn(student, n=1)
        assert [len(step.token_ids) for step in whole.steps] == [1, 2, 2]  # an end token too
        for steps in (1, 12):
            [rest], _ = drawn(student, whole.steps[:1], steps=steps, n=1)
            assert rest.steps == whole.steps[1 : 1 + steps]


def test_thinking_alone_is_a_reply_without_words(url):
    says = [chunk(delta={"reasoning_content": "Hm. "}), chunk(finish="length", usage=USAGE)]
    reply, cost, student = replied(url, says)
    assert end_verdict(reply, Limits(1, 60)) == "thinking"
    assert end_verdict(reply, Limits(2, 60, "budget")) == "thinking budget"
    assert reply.cut and not reply.ended and text_of(reply.steps) == "" and cost.sampled_tokens == 2
    assert student.word is not None and "thinking alone" in student.word
    assert student.engine.server.logprobs  # a thought kept apart says nothing of them


@pytest.mark.parametrize("dollars, tokens", [(0.0, 1), (1.0, 50)])
def test_a_sample_is_closed_as_soon_as_its_step_is_whole(url, dollars, tokens):
    """In dollars the usage at its end counts."""
    lines = ["3 + 4 = 7\n", "7 - 5 = 2\n", "2 + 2 = 4\n", "#### 4"]
    says = [*map(chunk, lines), chunk(finish="stop", usage={**USAGE, "completion_tokens": 50})]
    line, cost, _ = replied(url, says, steps=1, completion_cost=dollars)
    assert [step.text for step in line.steps] == lines[:1] and not line.ended
    assert cost.sampled_tokens == tokens


def test_a_server_that_comes_late_is_greeted_again(url):
    with (proxy := Proxy(url, "key")) as place:
        student = student_at(place)
        with pytest.raises(az.AlphaZeroError, match="refuses the key"):
            drawn(student)
        proxy.lacks = ()
        assert drawn(student)[0][0].ended


def test_eval_compares_methods_over_a_server(url, tmp_path):
    command = "eval -n 12 --start 340 --budget-tokens 120 --methods greedy majority".split()
    command += "adaptive-best-of-n step-rejection beam mcts --set search.step=line".split()
    places = {"a": f"--base-url {url} --model student", "b": "--model embedded"}
    found = []
    for name, place in places.items():
        assert main([*command, *place.split(), "--out", str(tmp_path / name)]) == 0
        found.append(read_json(tmp_path / name / "results.json"))
    assert found[0]["student"] == f"student at {url}"
    assert all(row["sampled_tokens"] > 0 for row in found[0]["rows"])
    greedy = [(one["rows"][0]["accuracy"], one["rows"][0]["sampled_tokens"]) for one in found]
    assert greedy[0] == greedy[1]


def test_sampled_trees_teach_by_their_texts(url, tmp_path, capsys):
    out, table = tmp_path / "trees", tmp_path / "sft.parquet"
    argv = f"sample --base-url {url} --model student -n 8 --set search.step=line --out {out}"
    assert main(argv.split()) == 0
    journal = read_jsonl(out / "journal.jsonl")
    assert len(journal) == 8 and {line["tokens"] for line in journal} == {"server"}
    export = f"export --data {out} --kind"
    assert main(f"{export} sft --out {table}".split()) == 0
    rows = pytest.importorskip("pyarrow.parquet").read_table(table).to_pylist()
    assert rows and all("####" in row["completion"] and not row["completion_ids"] for row in rows)
    for refused in (
        f"{export} value --out {table}",
        f"{export} rollouts --out {tmp_path / 'r.jsonl'}",
        f"value --model embedded --data {out} --out {tmp_path / 'v'}",
        f"{argv} --resume --set rewards.use_student_model=true",
    ):
        assert main(refused.split()) == 2


LIGHT = """
import sys
from alphazero_llm_trainer.cli.main import main
for line in sys.argv[1:]:
    code = main(line.split())
    assert code == (130 if line.startswith("serve") else 0), (line, code)
    heavy = {"torch", "transformers", "datasets", "verifiers"} & {*sys.modules}
    assert not heavy, (line, heavy)
"""


def test_commands_over_a_server_need_no_pytorch(url, tmp_path):
    lines = [
        f"{line} --base-url {url} --model student"
        for line in ("search -q", "eval -q -n 2 --methods greedy mcts --out x", "serve --port 0")
    ]
    done = subprocess.Popen(
        [sys.executable, "-c", LIGHT, *lines], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout is not None
    assert any("answers at" in line for line in done.stdout)
    done.send_signal(signal.SIGINT)
    assert done.wait(60) == 0


def test_serve_puts_search_before_another_server(url, tmp_path):
    kept = tmp_path / "kept"
    flags = f"--base-url {url} --model student --keep-traces {kept} --set search.step=line"
    server = processes.served(tmp_path, *flags.split())
    with openai.OpenAI(base_url=f"{processes.url(server)}/v1", api_key="any") as client:
        turns = [("user", "Hello."), ("assistant", "Ask me."), ("user", PROBLEMS[2].question)]
        chat = [{"role": role, "content": text} for role, text in turns]
        ask = {"messages": chat, "extra_body": {"budget_tokens": 150}}
        answer = client.chat.completions.create(model="student", **ask)
        about = answer.model_extra["alphazero"]
        assert about["method"] == "mcts" and about["sampled_tokens"] <= 150
        assert answer.usage.prompt_tokens > 20
        assert "####" in str(answer.choices[0].message.content)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="student@sample", messages=chat)
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="student", prompt="3 + 4 =")
    server.kill()
    [line] = read_jsonl(kept / "journal.jsonl")
    assert line["tokens"] == "server" and line["split"] == "served"


def test_a_model_that_the_server_does_not_have_is_named(url, capsys):
    assert main(f"search --base-url {url} --model magic".split()) == 2
    error = capsys.readouterr().err
    assert "magic" in error and error.count("error: ") == 1


def test_the_key_and_the_dollars(url, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "wrong")
    with Proxy(url, "key") as place:
        with pytest.raises(az.AlphaZeroError, match="SOME_KEY"):
            drawn(student_at(place, key_variable="SOME_KEY"))
        monkeypatch.setenv("SOME_KEY", "right")
        student = student_at(place, key_variable="SOME_KEY", completion_cost=1e4, dollars=0.3)
        _, cost = drawn(student)
        assert cost.dollars == pytest.approx(cost.sampled_tokens / 100)
        assert 0.3 < student.engine.cost.dollars < 1
        with pytest.raises(az.AlphaZeroError, match=r"engine\.openai\.dollars is 0\.3"):
            drawn(student)
