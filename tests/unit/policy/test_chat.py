"""Chat models: folders, limits, prompts and shots; templates as models come with them; texts that
think.
"""

import asyncio
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support import tiny_chat
from tables import read_json, table, write_jsonl

import alphazero_llm_trainer as alphazero
from alphazero_llm_trainer.answering.students import answering_student
from alphazero_llm_trainer.api.settings import configure_call
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_answering, load_config, load_training
from alphazero_llm_trainer.config.sections import SearchConfig
from alphazero_llm_trainer.engine.protocol import Generated, Limits
from alphazero_llm_trainer.engine.step_ends import response_steps
from alphazero_llm_trainer.environment.calls import ChatSteps
from alphazero_llm_trainer.errors import CheckpointError, ConfigError, DataError, RequestError
from alphazero_llm_trainer.grading.answers import is_final, thinks, without_thinking
from alphazero_llm_trainer.learning.critic_network import CriticNetwork, save_critic
from alphazero_llm_trainer.learning.models import make_trainable, save_adapter
from alphazero_llm_trainer.mcts.steps import end_verdict
from alphazero_llm_trainer.policy import folders
from alphazero_llm_trainer.policy.adapters import POLICY, model_fingerprint, own_parameters
from alphazero_llm_trainer.policy.critic import load_critic
from alphazero_llm_trainer.policy.engine_steps import EngineSteps
from alphazero_llm_trainer.policy.engine_tokens import EngineTokens
from alphazero_llm_trainer.policy.folders import PACKAGED, find_model, trained_with, write_facts
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import opening, tasks_of
from alphazero_llm_trainer.problems.prompts import SYSTEM_PROMPTS
from alphazero_llm_trainer.rewards.combined import steps_of
from alphazero_llm_trainer.runs.merging import bare_model
from alphazero_llm_trainer.tree.extract import SHORT, shortfall
from alphazero_llm_trainer.types import NOTHING, Direction, Opening, Problem, Step

CASES = table("chat")

GEMMA = (
    "{{ '<bos>' }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not "
    "supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') "
    "}}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + "
    "m['content'] | trim"
    " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' "
    "}}{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') "
    "}}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == "
    "'assistant' %}"
    "{{ m['content'] + '</s>' }}{% else %}{{ raise_exception('Only user and assistant roles are "
    "supported!') }}"
    "{% endif %}{% endfor %}"
)
# leaves system messages out without a word
SILENT = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'U: ' + m['content'] + '\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ 'A: ' + m['content'] + '\n' }}{% endif %}{% endfor %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}%s{% endif %}"
)
# Qwen 3: thinking is off where it is told so; DeepSeek's and QwQ's open it themselves
QWEN3 = CHATML.replace(
    "%s",
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% "
    "endif %}",
)
OPENED = CHATML.replace("%s", "{{ '<think>\n' }}")
QUESTION = "Ana has 2 pens."


@pytest.fixture
def student():
    return load_student(load_config(overrides=["student=embedded"]))


def with_template(student, template, opening=NOTHING, **spec):
    student.tokenizer.chat_template = template
    student.opening, student.spec = opening, student.spec.with_values(**spec)
    return student


def prompt(student, *setting, **spec):
    """What the student's prompt was before it became tokens: its own vocabulary has few of these
    words. `setting` is as `with_template` takes it.
    """
    if setting:
        with_template(student, *setting, **spec)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(student), "encode", lambda self, text: seen.append(text) or [5])
        student.prompt_ids(QUESTION)
    return seen[-1]


BRIEF = "Be brief."


SHOTS = Opening(BRIEF, (("1 + 1?", "1 + 1 = 2"), ("2 + 2?", "2 + 2 = 4")), 2)


@pytest.mark.parametrize("template", [GEMMA, MISTRAL, SILENT])
def test_a_system_text_goes_into_the_first_question_where_the_role_is_refused(student, template):
    text = prompt(student, template, SHOTS)
    assert text.count(BRIEF) == 1 and "Be brief.\n\n1 + 1?" in text
    places = [text.index(part) for part in ("1 + 1 = 2", "2 + 2?", "2 + 2 = 4", QUESTION)]
    assert places == sorted(places)
    begun = [*SHOTS.messages("?"), {"role": "user", "content": QUESTION}]
    begun.append({"role": "assistant", "content": "2 + 3 = "})
    assert student.chat_ids(begun, going_on=True)[-3:] == tuple(student.encode("2 + 3 = "))[-3:]
    assert f"Be brief.\n\n{QUESTION}" in prompt(student, template, Opening(BRIEF))
    assert BRIEF not in prompt(student, template)


def test_a_system_role_that_is_shown_stays_and_the_embedded_student_leaves_it_out(student):
    assert prompt(replace(student, opening=SHOTS)).startswith("1 + 1?\n")
    assert prompt(student, QWEN3, SHOTS).startswith("<|system|>Be brief.\n<|user|>1 + 1?\n")


@pytest.mark.parametrize("template", CASES["templates"])
def test_a_template_that_takes_no_question_is_one_sentence(student, template):
    with pytest.raises(RequestError, match=r"^.*(leaves out the|refuses these messages).*$"):
        with_template(student, template, SHOTS).prompt_ids(QUESTION)


NO_THOUGHT = "<|assistant|><think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    "template, thinking, end, lead",
    [
        (QWEN3, None, NO_THOUGHT, ""),
        (QWEN3, "off", NO_THOUGHT, ""),
        (QWEN3, "on", "<|assistant|>", ""),
        (OPENED, None, "<think>\n", "<think>\n"),
        (OPENED, "on", "<think>\n", "<think>\n"),
        (OPENED, "off", NO_THOUGHT, ""),
    ],
)
def test_thinking_is_switched_by_the_students_entry(student, template, thinking, end, lead):
    assert prompt(student, template, thinking=thinking).endswith(end)
    assert student.lead() == lead


@pytest.mark.parametrize("overrides, limits", CASES["thinking"])
def test_its_tokens_come_on_top(overrides, limits):
    asked = ["student=qwen3-0.6b", *(f"models.qwen3-0.6b.{one}" for one in overrides)]
    search = load_config(overrides=asked).search
    assert [search.max_tokens, search.max_depth, search.verify.reserve] == limits
    assert load_config(overrides=[*asked, "search.max_tokens=99"]).search.max_tokens == 99


THOUGHT = "<think>\n1 + 1 = 2\n#### 5\nWait.\n</think>\n\n1 + 2 = 3\n#### 3\n"


def test_thinking_is_no_step_of_the_penalty_and_ends_nothing():
    for text in (THOUGHT, THOUGHT.removeprefix("<think>\n"), "1 + 2 = 3\n#### 3"):
        assert steps_of(text) == 2
    assert steps_of("<think>\nStill at it.\n#### 5\n") == 0
    assert without_thinking("plain\n#### 1") == "plain\n#### 1"
    assert thinks("<think>\nso") and not thinks(THOUGHT) and not thinks("2 < 3")
    for ends, *texts in CASES["finals"]:
        assert is_final(*texts) == ends, texts


def test_a_step_inside_it_is_a_step_of_search(student, monkeypatch):
    """One token a line here, so that the cut is at every line and what it reads is the text
    above.
    """
    texts = [f"{line}\n" for line in [*THOUGHT.splitlines(), "and more"] if line]
    monkeypatch.setattr(type(student), "decode", lambda self, ids: "".join(texts[i] for i in ids))
    student.engine.step_ends = replace(
        student.engine.step_ends,
        tokens=frozenset(range(9)),
        blanks=frozenset(),
        texts=(),
        goes_on=None,
    )

    def cut(ids, before=()):
        generated = Generated(tuple(ids), (0.0,) * len(ids), "stop")
        return EngineSteps(student, 1.0).cut(generated, before)

    def said(found):
        return [step.text for step in found.steps]

    wide, before = Limits(40, 400), cut(range(3)).steps[:2]
    whole = cut(range(8))
    # Thinking's #### 5 ended nothing, the answer's did.
    assert said(whole) == texts[:7] and end_verdict(whole, wide) == "answer"
    assert end_verdict(cut(range(3)), wide) == "length"
    assert end_verdict(cut([2], before), Limits(1, 400), before) == "depth"
    assert said(cut(range(2, 8), before)) == texts[2:7]
    # A template that opened thinking itself: the first step says so, its tokens are as they were.
    with_template(student, OPENED)
    opened = cut([1, 2, 5])
    assert said(opened) == ["<think>\n1 + 1 = 2\n", "#### 5\n", "1 + 2 = 3\n"]
    assert opened.steps[0].token_ids == (1,)
    with pytest.raises(ConfigError, match=r"search\.mode is 'token'.*thinking=off"):
        EngineTokens(student, 1.0, 1)


def test_tags_are_read_where_they_are_special_tokens(student):
    marks = ["<think>", "</think>", "[THINK]", "<|channel|>", "<|message|>", "<|start|>"]
    student.tokenizer.add_special_tokens({"extra_special_tokens": marks})
    for text in ("<think>1 + 1 = 2\n", "[THINK]2", "<|channel|>2<|message|>3"):
        ids = [*student.encode(text), student.engine.eos_id]
        assert student.decode(ids).replace(" ", "") == text.replace(" ", "")
    assert "start" not in student.decode(student.encode("<|start|>2"))


def test_a_teachers_answer_inside_it_ends_nothing(student):
    def adopted(calls, *steps):
        given = (Problem("a", QUESTION, "embedded"), steps, "#### 5", "teacher:x", Direction.RIGHT)
        return asyncio.run(calls.adopt(*given))[0]

    thought = Step(tuple(student.encode("1 + 1 = 2\n")), (), "<think>\n1 + 1 = 2\n")
    assert adopted(EngineSteps(student, 1.0)).ended
    assert not adopted(EngineSteps(student, 1.0), thought).ended
    first = adopted(EngineSteps(with_template(student, OPENED), 1.0))
    assert not first.ended and thinks(first.steps[0].text)
    # Nor a server's.
    reply = "#### 5\nso\n</think>\n#### 3\nmore\n"
    texts, read = response_steps(reply, "line", "<think>\n")
    assert texts == ["#### 5\n", "so\n", "</think>\n", "#### 3\n"] and not read
    search = load_config(overrides=["search.step=line"]).search
    inside = Step((), (), "<think>\nso\n")
    assert not adopted(ChatSteps(None, [], search, None), inside).ended


def found(model):
    """A model's entry, as `--model` finds it."""
    return find_model(str(model), load_config())[0]


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return tiny_chat(tmp_path_factory.mktemp("models") / "Tiny-Chat", dtype=torch.bfloat16)


# -- what a folder is ------------------------------------------------------------------------------


def test_a_folder_is_a_student_of_its_own(chat, capsys, monkeypatch, tmp_path):
    said = []
    for command in ("info", "train --dry-run"):
        assert main([*command.split(), "--model", str(chat), "--json"]) == 0
        said.append(json.loads(capsys.readouterr().out)["student"])
    own = {"name": "tiny-chat", "path": str(chat), "trained": "full"}
    # What is trained whole is trained in float32.
    assert said[0] == said[1] and said[0].items() >= {**own, "numbers": "float32"}.items()
    assert find_model(str(PACKAGED), load_config()) == ({"student": "embedded"}, PACKAGED)
    assert find_model(str(chat), load_config(overrides=["student=smollm2-135m"])) == ({}, chat)
    monkeypatch.setattr(folders, "LORA_FROM", 10_000)  # a large one gets adapters
    spec = load_config(overrides=[found(chat)]).models["tiny-chat"]
    assert (spec.adapter, spec.dtype, spec.quantization) == ("lora", "bfloat16", "none")
    folder = tiny_chat(tmp_path / "chat")
    thinking = [found(folder), "models.chat.thinking=on"]
    student = load_student(load_config(overrides=thinking))
    write_facts(folder, "tiny-chat", trained_with(student, "embedded"))
    assert found(folder)["models"]["tiny-chat"]["thinking"] == "on"  # it goes on so
    (folder / folders.FACTS).write_text("[]")
    with pytest.raises(CheckpointError, match=r"broken student\.json"):
        found(folder)


TRAIN = """
    train --use-rft --quiet
    --set train.num_examples=4 --set train.preflight=0 --set train.questions_per_round=4
    --set train.eval_size=2 --set train.validation_size=0 --set search.samples=2
    --set train.requeue_limit=0 --set train.updates_per_round=1 --set search.max_tokens=12
    --set engine.max_context=512 --set train.demonstrations=8
""".split()


def test_what_a_run_wrote_goes_on_as_what_it_is(chat, tmp_path):
    assert main([*TRAIN, *f"--model {chat} --out {tmp_path}".split()]) == 0
    run = tmp_path / "run-001"
    assert read_json(run / "run.json")["student"] == "tiny-chat"
    assert "rft on tiny-chat" in (run / "report.html").read_text()
    assert (run / "student" / "README.md").read_text().count("# tiny-chat, trained by search") == 1
    assert found(run / "student")["student"] == "tiny-chat"


# -- limits ----------------------------------------------------------------------------------------


def test_answers_are_drawn_at_the_students_temperature_and_training_at_1(chat):
    def drawn(load, model, *given):
        return load(overrides=[found(model), *given]).search.temperature

    # Training: a ratio of 1 to what is trained.
    for load, model, *given, wanted in (
        (load_answering, chat, 0.6),
        (load_answering, "embedded", 1.0),
        (load_training, chat, 1.0),
        (load_config, chat, 1.0),
        (load_answering, chat, "search.temperature=0.9", 0.9),
    ):
        assert drawn(load, model, *given) == wanted
    sizes = {"model": str(chat), "simulations": 2, "max_tokens": 12}
    own, same, other = (
        alphazero.search("What is 1 + 1?", **sizes, **given).tree.token_ids
        for given in ({}, {"temperature": 0.6}, {"temperature": 1.0})
    )
    assert own == same != other


def test_limits_are_the_students_and_explicit_ones_win(chat):
    for overrides, limits in CASES["limits"]:
        layers = [found(chat) if one == "chat" else one for one in overrides]
        search = load_config(overrides=layers).search
        assert [search.max_tokens, search.max_depth, search.verify.reserve] == limits, overrides
    assert SearchConfig().verify.reserve == 40
    # A loaded student brings its own.
    resolved, folder = configure_call(alphazero.load(chat), None, {})
    assert (resolved.student, resolved.search.max_tokens, folder) == ("tiny-chat", 400, None)


# -- what a chat says before a question ------------------------------------------------------------


ROWS = [
    {"question": f"Ana has {n} pens and buys {n + 1} more. How many pens does Ana have now?",
     "answer": str(2 * n + 1), "solution": f"{n} + {n + 1} = {2 * n + 1}"}
    for n in range(2, 42)
]  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "pens.jsonl"
    write_jsonl(file, ROWS)
    return str(file)


def told(chat, rows, *overrides):
    more = [f"problems.source={rows}", "engine.max_context=1024", *overrides]
    config = load_config(overrides=[found(chat), *more])
    return load_student(config, opening=opening(config)), config


def test_whose_prompt_a_student_is_told(chat, rows, tmp_path):
    def system(model, source, *overrides):
        return told(model, source, *overrides)[0].opening.system_prompt

    own = "models.tiny-chat.system_prompt=Own."
    assert system(chat, rows) == SYSTEM_PROMPTS["numbers"]
    assert system(chat, rows, own) == "Own."
    assert system(chat, rows, own, "problems.system_prompt=Asked.") == "Asked."
    # What a folder was trained with, it goes on with: for that source.
    folder = tiny_chat(tmp_path / "trained")
    student = told(chat, rows)[0]
    student.opening = Opening("Trained.")
    write_facts(folder, "tiny-chat", trained_with(student, rows))
    assert system(folder, rows) == "Trained."
    assert system(folder, "embedded") == SYSTEM_PROMPTS["numbers"]


def test_shots_are_turns_of_the_train_split_and_never_the_question_itself(chat, rows, tmp_path):
    student, config = told(chat, rows, "problems.shots=2")
    shown = tasks_of(config, "train", 3)
    first = student.opening.messages("What now?")
    roles = [message["role"] for message in first]
    assert roles == ["system", *["user", "assistant"] * 2]
    assert first[1]["content"] == shown[0].problem.question
    assert first[2]["content"].endswith(f"#### {shown[0].gold}")
    mine = student.opening.messages(shown[0].problem.question)
    asked = [task.problem.question for task in shown[1:]]
    assert [message["content"] for message in mine[1::2]] == asked
    held_out = [*tasks_of(config, "validation", 9), *tasks_of(config, "test", 9)]
    questions = {task.problem.question for task in held_out}
    assert not questions & {pair[0] for pair in student.opening.worked}
    file = tmp_path / "bare.jsonl"  # without worked solutions
    write_jsonl(file, ({"question": row["question"], "answer": row["answer"]} for row in ROWS))
    with pytest.raises(DataError, match=r"problems\.shots is 2"):
        told(chat, file, "problems.shots=2")


def widths(student):
    return {p.dtype for p in student.model.parameters()}


def test_a_fifth_of_cut_responses_is_told_with_the_key_that_helps():
    search = {"max_tokens": 400, "max_depth": 12, "budget_tokens": 500, "mode": "step"}
    assert shortfall({"answer": 80, "length": 20}, search) is None and shortfall({}, {}) is None
    assert shortfall({"answer": 70, "length": 5, "depth": 25}, search) == (
        "of 100 responses 5 were cut by search.max_tokens, 25 were cut by search.max_depth: "
        "--set search.max_depth=24"
    )
    for why, told in SHORT.items():  # each has its own words, and one thing that helps
        said = str(shortfall({"answer": 5, why: 3}, search))
        assert said.startswith(f"of 8 responses 3 {told[0]}: ") and "{" not in said
        assert said.count("--set") <= 1
    assert shortfall({"budget": 2}, search, 60, "answers") == (
        "of 2 answers 2 were cut by the budget: --budget-tokens 120"
    )


@pytest.mark.parametrize("quick", [False, True])
def test_an_adapter_is_trained_in_float32_where_bfloat16_has_no_quick_products(
    chat, tmp_path, quick, monkeypatch
):
    monkeypatch.setattr(folders, "LORA_FROM", 10_000)
    monkeypatch.setattr(folders, "multiplies_fast", lambda dtype: quick or dtype == "float32")
    config = load_config(overrides=[found(chat)])
    student = load_student(config)
    assert widths(student) == {torch.bfloat16 if quick else torch.float32}
    for alone in (True, False):  # what only answers keeps its precision, beside critics too
        answering = answering_student(config, inference=alone)
        assert widths(answering) == {torch.bfloat16}
        # It is the same base, whose adapters go either way, and what is written has its precision.
        assert student.weights == answering.weights
    assert bare_model(student.model).dtype == torch.bfloat16
    if quick:
        return
    assert widths(alphazero.load(str(chat))) == {torch.float32}  # which may be trained
    run = tmp_path / "run-001"
    assert main([*TRAIN, *f"--model {chat} --out {tmp_path}".split()]) == 0
    own, folder = find_model(str(run / "adapter"), load_config())  # it knows its base
    assert folder == run / "adapter" and own["models"]["tiny-chat"]["path"] == str(chat)
    written = load_file(run / "student" / "model.safetensors")
    assert {weights.dtype for weights in written.values()} == {torch.bfloat16}
    monkeypatch.setattr("alphazero_llm_trainer.policy.student.widen_weights", pytest.fail)
    sizes = {"search.max_tokens": 8, "search.simulations": 2, "engine.max_context": 512}
    assert len(alphazero.collect("embedded", str(chat), num=1, config=sizes)) == 1


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_head_over_an_adapter_is_known_whether_weights_are_widened_or_not(
    chat, tmp_path, quantization, monkeypatch
):
    if quantization == "nf4":
        pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(folders, "LORA_FROM", 10_000)
    more = [f"models.tiny-chat.quantization={quantization}", "models.tiny-chat.cpu=true"]
    config, adapter = load_config(overrides=[found(chat), *more]), tmp_path / "adapter"

    def load(quick, path):
        monkeypatch.setattr(folders, "multiplies_fast", lambda dtype: quick)
        return load_student(config, path=path)

    student = load(False, None)
    model = make_trainable(student.model, student.spec, "lora")
    for name, parameter in own_parameters(model, POLICY).items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.03)
    save_adapter(model, adapter)
    wide, narrow = load(False, adapter), load(True, adapter)
    assert torch.bfloat16 not in widths(wide)
    assert wide.weights == narrow.weights != model_fingerprint(wide.model, None)
    head = CriticNetwork(wide.model, start=0.0, head=True)
    card = {"kind": "value", "rollout_weight": 1.0}
    save_critic(tmp_path / "head", head, card, wide, config)
    assert load_critic(tmp_path / "head", narrow, config, "value").engine is narrow.engine
    # What is trained is another student with every update, however small.
    trained, before = make_trainable(wide.model, wide.spec, "lora"), wide.weights
    with torch.no_grad():
        next(iter(own_parameters(trained, POLICY).values())).mul_(1 + 1e-5)
    assert wide.weights != before
