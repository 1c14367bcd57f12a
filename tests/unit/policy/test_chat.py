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
from tables import read_json, write_jsonl

import alphazero_llm_trainer as alphazero
from alphazero_llm_trainer.api.settings import configured
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_answering, load_config, load_training
from alphazero_llm_trainer.config.sections import SearchConfig
from alphazero_llm_trainer.engine.protocol import Generated, Limits
from alphazero_llm_trainer.engine.step_ends import response_steps
from alphazero_llm_trainer.environment.calls import ChatSteps
from alphazero_llm_trainer.errors import CheckpointError, ConfigError, DataError, RequestError
from alphazero_llm_trainer.grading.answers import is_final, thinks, without_thinking
from alphazero_llm_trainer.learning.critic import CriticNetwork, save_critic
from alphazero_llm_trainer.learning.models import make_trainable, save_adapter
from alphazero_llm_trainer.mcts.extract import shortfall
from alphazero_llm_trainer.mcts.steps import verdict
from alphazero_llm_trainer.policy import folders
from alphazero_llm_trainer.policy.adapters import POLICY, fingerprint, own_parameters
from alphazero_llm_trainer.policy.answering import answering_student
from alphazero_llm_trainer.policy.critic import load_critic
from alphazero_llm_trainer.policy.engine_steps import EngineSteps
from alphazero_llm_trainer.policy.engine_tokens import EngineTokens
from alphazero_llm_trainer.policy.folders import PACKAGED, find_model, trained_with, write_facts
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import opening, tasks_of
from alphazero_llm_trainer.problems.prompts import SYSTEM_PROMPTS
from alphazero_llm_trainer.rewards.combined import steps_of
from alphazero_llm_trainer.runs.merging import bare
from alphazero_llm_trainer.types import NOTHING, Direction, Opening, Problem, Step

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
    student.opening, student.spec = opening, student.spec.changed(**spec)
    return student


def prompt(student):
    """What the student's prompt was before it became tokens: its own vocabulary has few of these
    words.
    """
    seen = []
    encode = type(student).encode
    type(student).encode = lambda self, text: seen.append(text) or encode(self, text)
    try:
        student.prompt_ids(QUESTION)
    finally:
        type(student).encode = encode
    return seen[-1]


SHOTS = Opening("Be brief.", (("1 + 1?", "1 + 1 = 2"), ("2 + 2?", "2 + 2 = 4")), 2)


@pytest.mark.parametrize("template", [GEMMA, MISTRAL, SILENT])
def test_a_system_text_goes_into_the_first_question_where_the_role_is_refused(student, template):
    text = prompt(with_template(student, template, SHOTS))
    assert text.count("Be brief.") == 1 and "Be brief.\n\n1 + 1?" in text
    assert (
        text.index("1 + 1 = 2")
        < text.index("2 + 2?")
        < text.index("2 + 2 = 4")
        < text.index(QUESTION)
    )
    assert f"Be brief.\n\n{QUESTION}" in prompt(
        with_template(student, template, Opening("Be brief."))
    )
    assert "Be brief" not in prompt(with_template(student, template))
    begun = [
        *SHOTS.messages("?"),
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "2 + 3 = "},
    ]
    assert student.chat_ids(begun, going_on=True)[-3:] == tuple(student.encode("2 + 3 = "))[-3:]


def test_a_system_role_that_is_shown_stays_and_the_embedded_student_leaves_it_out(
    student,
):
    assert prompt(replace(student, opening=SHOTS)).startswith("1 + 1?\n")
    assert prompt(with_template(student, QWEN3, SHOTS)).startswith(
        "<|system|>Be brief.\n<|user|>1 + 1?\n"
    )


@pytest.mark.parametrize(
    "template, said",
    [
        ("{{ messages[0]['content'] }}", "leaves out the"),
        (
            "{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}",
            "leaves out the user message",
        ),
        (
            "{{ raise_exception('This model needs tools.') }}",
            r"refuses these messages \(This model needs tools\)",
        ),
        ("{{ tools | length }}{{ messages[-1]['content'] }}", "refuses these messages"),
        (
            "{% for t in tools %}{{ t.name }}{% endfor %}{{ messages[-1]['content'] }}",
            "refuses these messages",
        ),
        ("{{ nothing.at.all }}{{ messages[-1]['content'] }}", "refuses these messages"),
    ],
)
def test_a_template_that_takes_no_question_is_one_sentence(student, template, said):
    with pytest.raises(RequestError, match=said) as caught:
        with_template(student, template, SHOTS).prompt_ids(QUESTION)
    assert "\n" not in str(caught.value)


# -- thinking --------------------------------------------------------------------------------------


def test_thinking_is_switched_by_the_students_entry(student):
    none = "<think>\n\n</think>\n\n"
    assert prompt(with_template(student, QWEN3)).endswith(f"<|assistant|>{none}")
    assert prompt(with_template(student, QWEN3, thinking="off")).endswith(f"<|assistant|>{none}")
    assert (
        prompt(with_template(student, QWEN3, thinking="on")).endswith("<|assistant|>")
        and student.lead() == ""
    )
    assert (
        prompt(with_template(student, OPENED, thinking=None)).endswith("<think>\n")
        and student.lead() == "<think>\n"
    )
    assert prompt(with_template(student, OPENED, thinking="on")).endswith("<think>\n")
    assert (
        prompt(with_template(student, OPENED, thinking="off")).endswith(f"<|assistant|>{none}")
        and student.lead() == ""
    )


@pytest.mark.parametrize("value", ["on", "true"])
def test_its_tokens_come_on_top(value):
    config = load_config(overrides=["student=qwen3-0.6b", f"models.qwen3-0.6b.thinking={value}"])
    assert config.models["qwen3-0.6b"].thinking == "on"
    assert config.search.max_tokens == 1400 and config.search.max_depth == 140
    assert config.search.verify.reserve == 1250
    more = load_config(overrides=[config.model_dump(), "models.qwen3-0.6b.thinking_tokens=50"])
    assert more.models["qwen3-0.6b"].thinking_tokens == 50
    explicit = load_config(
        overrides=["student=qwen3-0.6b", "models.qwen3-0.6b.thinking=on", "search.max_tokens=99"]
    )
    assert explicit.search.max_tokens == 99
    off = load_config(overrides=["student=qwen3-0.6b", "models.qwen3-0.6b.thinking=off"])
    assert off.models["qwen3-0.6b"].thinking == "off" and off.search.max_tokens == 400


def test_a_trained_folder_goes_on_thinking(tmp_path):
    folder = tiny_chat(tmp_path / "chat")
    found, _ = find_model(str(folder), load_config())
    student = load_student(load_config(overrides=[found, f"models.{found['student']}.thinking=on"]))
    write_facts(folder, "tiny-chat", trained_with(student, "embedded"))
    assert read_json(folder / "student.json")["thinking"] == "on"
    assert find_model(str(folder), load_config())[0]["models"]["tiny-chat"]["thinking"] == "on"


THOUGHT = "<think>\n1 + 1 = 2\n#### 5\nWait.\n</think>\n\n1 + 2 = 3\n#### 3\n"


def test_thinking_is_no_step_of_the_penalty_and_ends_nothing():
    assert (
        steps_of(THOUGHT)
        == steps_of(THOUGHT.removeprefix("<think>\n"))
        == steps_of("1 + 2 = 3\n#### 3")
        == 2
    )
    assert steps_of("<think>\nStill at it.\n#### 5\n") == 0
    assert without_thinking("plain\n#### 1") == "plain\n#### 1"
    assert thinks("<think>\nso") and not thinks(THOUGHT) and not thinks("2 < 3")
    assert (
        is_final("#### 3\n")
        and is_final("#### 3\n", "<think>\nso\n</think>\n")
        and is_final("</think>\n#### 3", "<think>")
    )
    assert not is_final("#### 3\n", "<think>\nso\n") and not is_final("<think>#### 3\n")
    assert not is_final("#### 3 </think>", "<think>\n")


def test_a_step_inside_it_is_a_step_of_search(student, monkeypatch):
    """One token a line here, so that the cut is at every line and what it reads is the text
    above.
    """
    texts = [
        "<think>\n",
        "1 + 1 = 2\n",
        "#### 5\n",
        "</think>\n",
        "1 + 2 = 3\n",
        "#### 3\n",
        "and more\n",
    ]
    monkeypatch.setattr(type(student), "decode", lambda self, ids: "".join(texts[i] for i in ids))
    ends = replace(
        student.engine.step_ends,
        tokens=frozenset(range(9)),
        blanks=frozenset(),
        texts=(),
        goes_on=None,
    )
    student.engine.step_ends = ends
    cutter = EngineSteps(student, 1.0)

    def cut(ids, before=()):
        return cutter.cut(Generated(ids, (0.0,) * len(ids), "stop"), before)

    whole = cut((0, 1, 2, 3, 4, 5, 6))
    # Thinking's #### 5 ended nothing, the answer's did.
    assert [step.text for step in whole.steps] == texts[:6]
    assert verdict(whole, Limits(40, 400)) == "answer"
    inside = cut((0, 1, 2))
    assert verdict(inside, Limits(40, 400)) == "length"
    assert verdict(cut((2,), inside.steps[:2]), Limits(1, 400), inside.steps[:2]) == "depth"
    later = cut((2, 3, 4, 5, 6), inside.steps[:2])
    assert [step.text for step in later.steps] == texts[2:6]
    # A template that opened thinking itself: the first step says so, its tokens are as they were.
    with_template(student, OPENED)
    cutter = EngineSteps(student, 1.0)
    [first, second, third] = cut((1, 2, 4)).steps
    assert (first.text, first.token_ids) == (
        "<think>\n1 + 1 = 2\n",
        (1,),
    ) and second.text == "#### 5\n"
    assert third.text == "1 + 2 = 3\n"
    with pytest.raises(ConfigError, match=r"search\.mode is 'token'.*thinking=off"):
        EngineTokens(student, 1.0, 1)


def test_tags_are_read_where_they_are_special_tokens(student):
    marks = ["<think>", "</think>", "[THINK]", "<|channel|>", "<|message|>", "<|start|>"]
    student.tokenizer.add_special_tokens({"extra_special_tokens": marks})
    for text in ("<think>1 + 1 = 2\n", "[THINK]2", "<|channel|>2<|message|>3"):
        ids = [*student.encode(text), student.engine.eos_id]
        assert student.decode(ids).replace(" ", "") == text.replace(" ", "")
    assert "start" not in student.decode(student.encode("<|start|>2"))


async def adopted(student, steps):
    continuation, _ = await EngineSteps(student, 1.0).adopt(
        Problem("a", QUESTION, "embedded"), steps, "#### 5", "teacher:x", Direction.RIGHT
    )
    return continuation


def test_a_teachers_answer_inside_it_ends_nothing(student):
    thought = Step(tuple(student.encode("1 + 1 = 2\n")), (), "<think>\n1 + 1 = 2\n")
    assert asyncio.run(adopted(student, ())).ended
    assert not asyncio.run(adopted(student, (thought,))).ended
    first = asyncio.run(adopted(with_template(student, OPENED), ()))
    assert not first.ended and thinks(first.steps[0].text)


def test_a_servers_answer_inside_it_ends_nothing():
    reply = "#### 5\nso\n</think>\n#### 3\nmore\n"
    texts, read = response_steps(reply, "line", "<think>\n")
    assert texts == ["#### 5\n", "so\n", "</think>\n", "#### 3\n"] and not read
    config = load_config(overrides=["search.step=line"])
    calls = ChatSteps(None, [], config.search, None)
    step = (Step((), (), "<think>\nso\n"),)
    problem = Problem("a", QUESTION, "embedded")
    inside, _ = asyncio.run(calls.adopt(problem, step, "#### 5", "teacher:x", Direction.RIGHT))
    assert not inside.ended


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return tiny_chat(tmp_path_factory.mktemp("models") / "Tiny-Chat", dtype=torch.bfloat16)


def printed(capsys, *argv):
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# -- what a folder is ------------------------------------------------------------------------------


def test_a_folder_is_a_student_of_its_own(chat, capsys):
    student = printed(capsys, "info", "--model", str(chat))["student"]
    assert student == printed(capsys, "train", "--dry-run", "--model", str(chat))["student"]
    assert (student["name"], student["path"], student["trained"]) == (
        "tiny-chat",
        str(chat),
        "full",
    )
    assert student["numbers"] == "float32"  # what is trained whole is trained in it


def test_a_large_folder_gets_adapters(chat, monkeypatch):
    monkeypatch.setattr(folders, "LORA_FROM", 10_000)
    found, folder = find_model(str(chat), load_config())
    assert folder is None and found["student"] == "tiny-chat"
    spec = load_config(overrides=[found]).models["tiny-chat"]
    assert (spec.adapter, spec.dtype, spec.quantization, spec.path) == (
        "lora",
        "bfloat16",
        "none",
        str(chat),
    )


def test_folders_of_the_embedded_kind_and_of_a_named_student_stay_what_they_are(chat):
    assert find_model(str(PACKAGED), load_config()) == ({"student": "embedded"}, PACKAGED)
    assert find_model(str(chat), load_config(overrides=["student=smollm2-135m"])) == ({}, chat)


TRAINED = ["train.num_examples=4", "train.preflight=0", "train.questions_per_round=4", "train.eval_size=2",
           "train.validation_size=0", "search.samples=2", "train.requeue_limit=0",
           "train.updates_per_round=1", "search.max_tokens=12", "engine.max_context=512", "train.demonstrations=8"]  # fmt: skip


def test_what_a_run_wrote_goes_on_as_what_it_is(chat, tmp_path, capsys):
    settings = [part for text in TRAINED for part in ("--set", text)]
    assert (
        main([*f"train --use-rft --model {chat} --out {tmp_path}".split(), *settings, "--quiet"])
        == 0
    )
    run = tmp_path / "run-001"
    card = read_json(run / "run.json")
    assert (
        card["student"] == "tiny-chat" and "rft on tiny-chat" in (run / "report.html").read_text()
    )
    assert (run / "student" / "README.md").read_text().count("# tiny-chat, trained by search") == 1
    capsys.readouterr()
    student = printed(capsys, "info", "--model", str(run / "student"))["student"]
    assert (student["name"], student["path"]) == ("tiny-chat", str(run / "student"))


def test_a_broken_note_is_one_sentence(tmp_path):
    folder = tiny_chat(tmp_path / "broken")
    (folder / folders.FACTS).write_text("[]")
    with pytest.raises(CheckpointError, match=r"broken student\.json"):
        find_model(str(folder), load_config())


# -- limits ----------------------------------------------------------------------------------------


def limits(*overrides):
    search = load_config(overrides=overrides).search
    return search.max_tokens, search.max_depth


def test_answers_are_drawn_at_the_students_temperature_and_training_at_1(chat):
    def drawn(load, model, **given):
        found, _ = find_model(model, load_config())
        return float(
            load(
                overrides=[found, *({key: value} for key, value in given.items())]
            ).search.temperature
        )

    assert (drawn(load_answering, str(chat)), drawn(load_answering, "embedded")) == (0.6, 1.0)
    # A ratio of 1 to what is trained.
    assert (drawn(load_training, str(chat)), drawn(load_config, str(chat))) == (1.0, 1.0)
    assert drawn(load_answering, str(chat), search={"temperature": 0.9}) == 0.9
    own, same, other = (
        alphazero.search(
            "What is 1 + 1?", model=str(chat), simulations=2, max_tokens=12, **given
        ).tree.token_ids
        for given in ({}, {"temperature": 0.6}, {"temperature": 1.0})
    )
    assert own == same != other


def test_limits_are_the_students_and_explicit_ones_win(chat):
    assert limits("student=embedded") == limits("student=small") == (160, 12)
    found, _ = find_model(str(chat), load_config())
    assert limits(found) == limits("student=smollm2-135m") == (400, 40)
    assert limits("student=smollm2-135m", "search.max_tokens=99") == (99, 40)
    assert limits("student=embedded", "models.embedded.max_tokens=70") == (70, 12)
    assert limits(found, {"search": {"max_tokens": None, "max_depth": 3}}) == (400, 3)
    kept = [
        load_config(overrides=one).search.verify.reserve for one in (["student=embedded"], [found])
    ]
    assert (*kept, SearchConfig().verify.reserve) == (40, 250, 40)
    assert load_config(overrides=[found, "search.verify.reserve=7"]).search.verify.reserve == 7
    resolved, folder = configured(alphazero.load(chat), None, {})  # a loaded student brings its own
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
    found, _ = find_model(str(chat), load_config())
    config = load_config(
        overrides=[found, f"problems.source={rows}", "engine.max_context=1024", *overrides]
    )
    return load_student(config, opening=opening(config)), config


def test_whose_prompt_a_student_is_told(chat, rows, tmp_path):
    student, _ = told(chat, rows)
    assert student.opening.system_prompt == SYSTEM_PROMPTS["numbers"]
    assert (
        told(chat, rows, "models.tiny-chat.system_prompt=Own.")[0].opening.system_prompt == "Own."
    )
    both = ("models.tiny-chat.system_prompt=Own.", "problems.system_prompt=Asked.")
    assert told(chat, rows, *both)[0].opening.system_prompt == "Asked."
    # What a folder was trained with, it goes on with: for that source.
    folder = tiny_chat(tmp_path / "trained")
    student.opening = Opening("Trained.")
    write_facts(folder, "tiny-chat", trained_with(student, rows))
    assert told(folder, rows)[0].opening.system_prompt == "Trained."
    assert told(folder, "embedded")[0].opening.system_prompt == SYSTEM_PROMPTS["numbers"]


def test_shots_are_turns_of_the_train_split_and_never_the_question_itself(chat, rows):
    student, config = told(chat, rows, "problems.shots=2")
    shown = tasks_of(config, "train", 3)
    first = student.opening.messages("What now?")
    assert [message["role"] for message in first] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert first[1]["content"] == shown[0].problem.question and first[2]["content"].endswith(
        f"#### {shown[0].gold}"
    )
    mine = student.opening.messages(shown[0].problem.question)
    assert [message["content"] for message in mine[1::2]] == [
        task.problem.question for task in shown[1:]
    ]
    held_out = {
        task.problem.question
        for split in ("validation", "test")
        for task in tasks_of(config, split, 9)
    }
    assert not held_out & {pair[0] for pair in student.opening.worked}


def test_a_source_without_worked_solutions_refuses_shots(tmp_path):
    file = tmp_path / "bare.jsonl"
    write_jsonl(file, ({"question": row["question"], "answer": row["answer"]} for row in ROWS))
    config = load_config(
        overrides=["student=embedded", f"problems.source={file}", "problems.shots=2"]
    )
    with pytest.raises(DataError, match=r"problems\.shots is 2"):
        opening(config)


def test_a_fifth_of_cut_responses_is_told_with_the_key_that_helps():
    assert shortfall({"answer": 80, "length": 20}) is None and shortfall({}) is None
    assert shortfall({"answer": 70, "length": 5, "depth": 25}) == (
        "of 100 responses 30 were cut and 0 stated no answer: raise search.max_depth"
    )
    assert "3 stated no answer: raise problems.shots" in str(
        shortfall({"answer": 5, "no answer": 3})
    )


@pytest.mark.parametrize("quick", [False, True])
def test_an_adapter_is_trained_in_float32_where_bfloat16_has_no_quick_products(
    chat, tmp_path, quick, monkeypatch
):
    monkeypatch.setattr(folders, "LORA_FROM", 10_000)
    monkeypatch.setattr(folders, "multiplies", lambda dtype: quick or dtype == "float32")
    found, _ = find_model(str(chat), load_config())
    config = load_config(overrides=[found])
    student = load_student(config)
    widths = {p.dtype for p in student.model.parameters()}
    assert widths == {torch.bfloat16 if quick else torch.float32}
    answering = load_student(config, inference=True)
    assert {p.dtype for p in answering.model.parameters()} == {torch.bfloat16}
    # It is the same base, whose adapters go either way, and what is written has its precision.
    assert student.weights == answering.weights
    assert bare(student.model).dtype == torch.bfloat16
    words = [part for text in TRAINED for part in ("--set", text)]
    run = tmp_path / "run-001"
    words += f"--out {tmp_path} --quiet".split()
    assert main([*f"train --use-rft --model {chat}".split(), *words]) == 0
    found, folder = find_model(str(run / "adapter"), load_config())  # it knows its base
    assert folder == run / "adapter"
    assert load_config(overrides=[found]).models["tiny-chat"].path == str(chat)
    monkeypatch.setattr(folders, "multiplies", lambda dtype: not quick or dtype == "float32")
    assert load_student(config, path=run / "adapter").adapter == run / "adapter"
    written = load_file(run / "student" / "model.safetensors")
    assert {weights.dtype for weights in written.values()} == {torch.bfloat16}


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_head_over_an_adapter_is_known_whether_weights_are_widened_or_not(
    chat, tmp_path, quantization, monkeypatch
):
    if quantization == "nf4":
        pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(folders, "LORA_FROM", 10_000)
    found, _ = find_model(str(chat), load_config())
    more = [f"models.tiny-chat.quantization={quantization}", "models.tiny-chat.cpu=true"]
    config = load_config(overrides=[found, *more])
    monkeypatch.setattr(folders, "multiplies", lambda dtype: False)
    student = load_student(config)
    model = make_trainable(student.model, student.spec, "lora")
    for name, parameter in own_parameters(model, POLICY).items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.03)
    save_adapter(model, tmp_path / "adapter")
    wide = load_student(config, path=tmp_path / "adapter")
    monkeypatch.setattr(folders, "multiplies", lambda dtype: True)
    narrow = load_student(config, path=tmp_path / "adapter")
    assert torch.bfloat16 not in {p.dtype for p in wide.model.parameters()}
    assert wide.weights == narrow.weights != fingerprint(wide.model, None)
    head, card = (
        CriticNetwork(wide.model, start=0.0, head=True),
        {"kind": "value", "rollout_weight": 1.0},
    )
    save_critic(tmp_path / "head", head, card, wide, config)
    assert load_critic(tmp_path / "head", narrow, config, "value").engine is narrow.engine
    # What is trained is another student with every update, however small.
    trained = make_trainable(wide.model, wide.spec, "lora")
    before = wide.weights
    with torch.no_grad():
        next(iter(own_parameters(trained, POLICY).values())).mul_(1 + 1e-5)
    assert wide.weights != before


def test_what_only_answers_keeps_its_precision(chat, monkeypatch):
    monkeypatch.setattr(folders, "LORA_FROM", 10_000)
    monkeypatch.setattr(folders, "multiplies", lambda dtype: dtype == "float32")
    config = load_config(overrides=[find_model(str(chat), load_config())[0]])

    def widths(student):
        return {p.dtype for p in student.model.parameters()}

    for alone in (True, False):  # beside critics too
        assert widths(answering_student(config, inference=alone)) == {torch.bfloat16}
    assert widths(alphazero.load(str(chat))) == {torch.float32}  # which may be trained
    monkeypatch.setattr("alphazero_llm_trainer.policy.student.widen", pytest.fail)
    sizes = {"search.max_tokens": 8, "search.simulations": 2, "engine.max_context": 512}
    assert len(alphazero.collect("embedded", str(chat), num=1, config=sizes)) == 1
