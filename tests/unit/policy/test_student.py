"""Students: the shipped one, its tokenizer, other architectures and formats, and damaged
folders.
"""

import asyncio
import hashlib
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tables import read_json, table
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    ViTConfig,
    ViTModel,
)

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import StudentModel
from alphazero_llm_trainer.engine.device import tell_once
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.errors import CheckpointError, ConfigError, RequestError
from alphazero_llm_trainer.eval.greedy import answer_tasks
from alphazero_llm_trainer.files import write_json
from alphazero_llm_trainer.grading.answers import extract
from alphazero_llm_trainer.learning.models import make_trainable, save_adapter
from alphazero_llm_trainer.policy import fetch
from alphazero_llm_trainer.policy import student as student_module
from alphazero_llm_trainer.policy.adapters import activate_adapter, load_adapter, own_parameters
from alphazero_llm_trainer.policy.chat import check_prompts
from alphazero_llm_trainer.policy.critic import read_network
from alphazero_llm_trainer.policy.folders import find_model, stored_bytes
from alphazero_llm_trainer.policy.kernel_model import KernelModel, read_kernel_model
from alphazero_llm_trainer.policy.public_prm import load_public
from alphazero_llm_trainer.policy.student import (
    PACKAGED,
    check_device,
    load_student,
    load_tokenizer,
    make_student,
)
from alphazero_llm_trainer.problems.embedded_source import Embedded
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.source import DEFAULT_LEVELS
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.runs.sft import QUESTION_WEIGHT, sft_rows, student_from_scratch
from alphazero_llm_trainer.types import Opening

MANIFEST = read_json(PACKAGED / "manifest.json")


CASES = table("students")


@pytest.fixture
def student():
    return load_student(load_config(overrides=["student=embedded"]))


def test_it_was_trained_on_the_demonstrations_that_the_configuration_names(student):
    tasks = load_tasks("embedded", "train", load_config().train.demonstrations)
    rows = sft_rows(tasks, student, QUESTION_WEIGHT)
    data = json.dumps([[*row.prompt_ids, *row.completion_ids] for row in rows])
    assert hashlib.sha256(data.encode()).hexdigest() == MANIFEST["data_sha256"]
    assert MANIFEST["rows"] == len(rows) and MANIFEST["levels"] == list(DEFAULT_LEVELS)


@pytest.mark.slow
def test_it_reproduces_its_recorded_accuracy(student):
    recorded = MANIFEST["test_greedy"]
    answers = answer_tasks(
        student, load_tasks("embedded", "test", recorded["problems"]), max_tokens=160
    )
    accuracy = sum(answers.first) / len(answers.first)
    # Greedy answers are exact; only a tie within rounding error can fall otherwise on another
    # processor.
    assert abs(accuracy - recorded["value"]) <= 0.005
    assert 0.45 <= accuracy <= 0.61
    assert recorded["low"] < accuracy < recorded["high"]


def test_its_tokenizer_is_the_generators_own(student):
    assert student.tokenizer.get_vocab() == build_tokenizer(Embedded(DEFAULT_LEVELS)).get_vocab()
    question = load_tasks("embedded", "test", 1)[0].problem.question
    assert student.decode(student.prompt_ids(question)) == question + "\n"


# -- chat models -----------------------------------------------------------------------------------


def test_all_of_a_models_end_tokens_end_a_response_and_stay_its_last(student):
    """Llama 3 has three. A token that the student samples often is made the second one."""
    prompt = student.prompt_ids(load_tasks("embedded", "test", 1)[0].problem.question)
    request = GenerateRequest(prompt, max_new_tokens=60, temperature=0.0)
    [[whole]] = asyncio.run(student.engine.generate([request]))
    ids, end = whole.token_ids, student.tokenizer.eos_token_id
    assert whole.finish == "eos" and ids[-1] == end
    ends = student.model.generation_config.eos_token_id = [end, ids[2]]
    parts = (student.model, student.tokenizer, student.spec, load_config(), Opening())
    again = make_student("two ends", *parts)
    assert again.engine.eos_ids == {*ends}
    [[cut]] = asyncio.run(again.engine.generate([request]))
    assert (cut.finish, cut.token_ids) == ("eos", ids[: ids.index(ids[2]) + 1])


def test_templates_are_asked_for_no_hidden_monologue_and_always_the_same_day(student):
    student.tokenizer.chat_template = """
        {{- messages[0]['content'] }}
        {%- if enable_thinking is defined and not enable_thinking %} 3{% else %} 4{% endif %}
        {%- if date_string is defined %} + 3{% endif %}
        {{- strftime_now('%d %B %Y') }}
    """.strip()
    question = {"role": "user", "content": "Ana has 2 pens."}
    assert student.render([question]) == "Ana has 2 pens. 3 + 326 July 2024"


@pytest.mark.parametrize("content", ["{{ m['content'] }}", "{{ m['content'] | trim }}"])
def test_a_chat_that_goes_on_ends_as_its_last_message_does(content, student):
    template = f"{{% for m in messages %}}{content}{{{{ '\n' }}}}{{% endfor %}}"
    student.tokenizer.chat_template = template
    said = {"user": "Ana has 2 pens.", "assistant": "3 + 4 = 7\n"}
    begun = [{"role": role, "content": text} for role, text in said.items()]
    ids = student.chat_ids(begun, going_on=True)
    assert ids == (*student.encode("Ana has 2 pens.\n"), *student.encode("3 + 4 = 7\n"))
    student.tokenizer.chat_template = "{{ messages[0]['content'] }}"  # the last message is lost
    with pytest.raises(RequestError, match="chat template refuses"):
        student.chat_ids(begun, going_on=True)


def test_the_last_number_of_a_response_that_was_cut_is_no_answer(student):
    tasks = load_tasks("embedded", "test", 120)
    found, lucky = answer_tasks(student, tasks, max_tokens=9), 0
    for task, [text], right in zip(tasks, found.responses, found.first, strict=True):
        if "####" not in text and extract(text) == task.gold:
            lucky += 1
            assert not right
    assert lucky


@pytest.mark.parametrize("kind", ["Qwen2TokenizerFast", "LlamaTokenizer"])
def test_a_folder_that_names_another_class_is_read_as_its_file_says(kind, folder, tmp_path):
    """For training transformers' own class was taken, which made `314?` of a question."""
    file = folder / "tokenizer_config.json"
    write_json(file, {**read_json(file), "tokenizer_class": kind})
    expected, found = (load_tokenizer(str(place)) for place in (PACKAGED, folder))
    found.save_pretrained(tmp_path / "again")
    text = "Ana has 314 pens. How many?\n"
    for one in (found, load_tokenizer(str(tmp_path / "again"))):
        assert one(text)["input_ids"] == expected(text)["input_ids"]
    assert found.eos_token_id == expected.eos_token_id
    assert found.chat_template == expected.chat_template


APPLES = "How many apples are in 3 boxes of 14 apples?"
SMALL_SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48
}  # fmt: skip


def saved(folder, model, shape, dtype="float32"):
    """A random model's folder with the embedded student's tokenizer; `shape` makes its config."""
    tokenizer = AutoTokenizer.from_pretrained(PACKAGED)
    torch.manual_seed(0)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    ids |= {"vocab_size": len(tokenizer), "bos_token_id": tokenizer.eos_token_id}
    model(shape(ids)).to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


OTHERS = {
    GPT2LMHeadModel: (
        lambda ids: GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **ids),
        {"c_attn", "c_proj", "c_fc"},
    ),
    Phi3ForCausalLM: (
        lambda ids: Phi3Config(**SMALL_SHAPE, num_key_value_heads=2, **ids),
        {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"},
    ),
}


def logits(student):
    ids = torch.tensor([student.prompt_ids(APPLES)])
    with torch.no_grad():
        return student.model(input_ids=ids).logits


@pytest.mark.parametrize("kind", OTHERS)
def test_lora_is_on_all_linear_layers_of_an_unknown_architecture(kind, tmp_path):
    shape, names = OTHERS[kind]
    config = mine(saved(tmp_path / "model", kind, shape))
    student = load_student(config)
    assert set(student.spec.lora.targets) == names
    before = logits(student)
    make_trainable(student.model, student.spec, "lora")
    adapted = own_parameters(student.model, "default")
    assert {key.split(".lora_")[0].rpartition(".")[2] for key in adapted} == names
    torch.manual_seed(1)
    for parameter in adapted.values():
        parameter.data += torch.randn_like(parameter) * 0.1
    student.model.eval()
    changed = logits(student)
    assert (changed - before).abs().max() > 1e-3
    save_adapter(student.model, tmp_path / "adapter")
    fresh = load_student(config)
    load_adapter(fresh.model, tmp_path / "adapter", "default")
    activate_adapter(fresh.model, "default")
    torch.testing.assert_close(logits(fresh), changed)
    with pytest.raises(ConfigError, match=f"q_porj.*{min(names)}"):
        load_student(mine(tmp_path / "model", lora={"targets": ["q_porj"]}))


def test_a_gguf_file_is_a_model_that_transformers_reads(tmp_path, monkeypatch):
    path = tmp_path / "Tiny.gguf"
    path.write_bytes(b"GGUF")
    found, folder = find_model(str(path), load_config())
    assert folder is None and found["student"] == "tiny-gguf"
    assert student_module.find_pretrained(str(path)) == (str(tmp_path), {"gguf_file": "Tiny.gguf"})
    monkeypatch.setattr(student_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="gguf"):
        load_student(load_config(overrides=[found]))
    with pytest.raises(ConfigError, match="no folder or GGUF file"):
        find_model(str(tmp_path / "gone.gguf"), load_config())


def test_a_float16_folder_is_computed_as_it_is(tmp_path):
    """By the kernels in float32, which holds its numbers; training all of its weights is
    refused.
    """
    folder = saved_llama(tmp_path / "student", "float16")
    student = load_student(mine(folder, dtype="float16", adapter="lora"), trained=False)
    assert student.model.dtype == torch.float16
    prompt = student.prompt_ids(APPLES)
    [scores] = asyncio.run(student.engine.score([(prompt[:5], prompt[5:])]))
    right = logits(student)[0].float().log_softmax(-1)[4:-1]
    right = right.gather(1, torch.tensor(prompt[5:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(scores), right, rtol=0, atol=0.02)
    with pytest.raises(ConfigError, match="dtype is float16, in which updates are lost"):
        make_trainable(student.model, student.spec, "full")


@pytest.mark.parametrize("kind", ["Llama", "tied Llama", "Qwen2", "Qwen3"])
def test_without_transformers_a_student_is_the_same(tmp_path, kind):
    """Names, numbers and what is computed of them; None where transformers has to say what is
    wrong.
    """
    *tied, name = kind.split()
    shape = getattr(transformers, f"{name}Config")
    folder = saved(
        tmp_path / "student",
        getattr(transformers, f"{name}ForCausalLM"),
        lambda ids: shape(
            **SMALL_SHAPE | {"num_hidden_layers": 12},  # a file has the tenth behind the first
            **ids,
            tie_word_embeddings=bool(tied),
            head_dim=24,
            num_key_value_heads=2,
        ),
    )
    whole, lean = (
        load_student(mine(folder), inference=alone, trained=False) for alone in (False, True)
    )
    assert isinstance(lean.model, KernelModel) and not isinstance(whole.model, KernelModel)
    assert (repr(lean), lean.weights) == (repr(whole), whole.weights)
    pair = (whole.prompt_ids(APPLES), (5, 6, 7))
    same = [asyncio.run(student.engine.score([pair])) for student in (whole, lean)]
    assert same[0] == same[1]

    def read():
        return read_kernel_model(str(folder), lean.spec, load_config().engine)

    file = folder / "model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(file).items()}
    name, weight = min(weights.items())
    for other in ({name: weight * math.nan}, {"more": weight.clone()}, {name: weight[:1].clone()}):
        save_file(weights | other, file)
        assert read() is None
    save_file({key: one for key, one in weights.items() if key != name}, file)
    assert read() is None
    save_file(weights, file)
    assert read() is not None
    facts = read_json(folder / "config.json")
    stretched = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    for change in ({"hidden_act": "gelu"}, {"rope_parameters": stretched}, {"rms_norm_eps": None}):
        write_json(folder / "config.json", facts | change)
        assert read() is None


def test_attention_is_what_the_entry_names_or_a_sentence(tmp_path, monkeypatch):
    folder, key = saved_llama(tmp_path / "student"), "attn_implementation"
    for name, expected in (("eager", "eager"), (None, "sdpa")):
        found = load_student(mine(folder, **{key: name})).model.config
        assert found._attn_implementation == expected
    for name, said in CASES["attention"]:
        with pytest.raises(CheckpointError, match=rf"^models\.mine\..*{said}.* or set it to null$"):
            load_student(mine(folder, **{key: name}))
    # An answer needs none of its kernels: such a student answers on a CPU.
    flash = mine(folder, **{key: "flash_attention_2"})
    assert load_student(flash, inference=True).spec.attn_implementation is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    flex = StudentModel(path="package", attn_implementation="flex_attention")
    with pytest.raises(ConfigError, match=rf"^models\.a\.{key} "):
        check_device("a", "package", flex)
    scratch = load_config(overrides=["student=embedded", f"models.embedded.{key}=eager"])
    with pytest.raises(ConfigError, match="made from scratch: leave it out"):
        student_from_scratch(scratch, load_student(load_config()).tokenizer)


LAYER, NORM, OWN = "model.layers.0.self_attn.", "model.norm.weight", "model.embed_tokens.weight"


def saved_llama(folder, dtype="float32"):
    return saved(folder, LlamaForCausalLM, lambda ids: LlamaConfig(**SMALL_SHAPE, **ids), dtype)


def mine(folder, **entry):
    """The configuration of a student of one's own in this folder."""
    entry = {"path": str(folder), **entry}
    return load_config(overrides=[{"student": "mine", "models": {"mine": entry}}])


@pytest.fixture
def folder(tmp_path):
    """A copy of the embedded student, to be damaged."""
    return Path(shutil.copytree(PACKAGED, tmp_path / "student"))


def change_weights(folder, out, more):
    file = folder / "model.safetensors"
    weights = load_file(file) | more
    kept = {name: tensor for name, tensor in weights.items() if name not in out}
    save_file(kept, file, {"format": "pt"})


def whole(folder):
    return load_student(load_config(overrides=["student=embedded"]), path=folder)


FAULTS = {
    f"lacks {LAYER}q_proj.weight, {NORM}: copy its files": ([f"{LAYER}q_proj.weight", NORM], {}),
    f"lacks lm_head.weight, {OWN}": ([OWN], {}),
    f"has another shape than config.json says for {NORM}": ([], {NORM: torch.ones(128)}),
    f"has numbers that are not finite in {NORM}": ([], {NORM: torch.full((64,), math.nan)}),
    **{
        f"has no place in its config.json for {key}": ([], {key: torch.ones(4)})
        for key in (
            "model.layers.2.input_layernorm.weight",
            f"{LAYER}q_proj.bias",
            f"{LAYER}q_norm.weight",
            f"base_model.model.{LAYER}q_proj.lora_A.weight",
        )
    },
}


@pytest.mark.parametrize("words", FAULTS)
def test_faulty_weights_are_refused(folder, words):
    whole(folder)  # its tied output layer is not missing
    change_weights(folder, *FAULTS[words])
    with pytest.raises(CheckpointError, match=f"^.*{folder}.*{re.escape(words)}.*$"):
        whole(folder)


def test_weights_that_change_no_text_are_left_out(folder):
    kept = whole(folder).weights
    keys = (f"{LAYER}rotary_emb.inv_freq", "v_head.summary.weight", "mtp.norm.weight")
    change_weights(folder, [], {key: torch.ones(4) for key in keys})
    assert whole(folder).weights == kept


@pytest.mark.parametrize("name, change, words", CASES["damaged"])
def test_a_folder_that_is_no_student_is_one_sentence(folder, name, change, words):
    file = folder / name
    kept = read_json(file) if file.exists() and "model_type" not in change else {}
    write_json(file, kept | change)
    with pytest.raises((CheckpointError, ConfigError), match=rf"^.*{words}.*$"):
        whole(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_is_no_object_is_named(folder, name, text):
    (folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=rf"^.*{folder}.* broken {name} .*$"):
        whole(folder)


def test_copies_of_weights_are_not_counted(folder):
    size = (folder / "model.safetensors").stat().st_size
    for copy in ("consolidated.safetensors", "pytorch_model.bin"):
        shutil.copy(folder / "model.safetensors", folder / copy)
    assert stored_bytes(str(folder)) == size


@pytest.mark.parametrize("way", ["bin", "shards", "an index that is out of date"])
def test_weights_are_read_however_they_lie(way, folder):
    student = whole(folder)
    file = folder / "model.safetensors"
    if way == "bin":
        torch.save(load_file(file), folder / "pytorch_model.bin")
        file.unlink()
    elif way == "shards":
        file.unlink()
        student.model.save_pretrained(folder, max_shard_size="100KB")
        assert len([*folder.glob("model-*-of-*.safetensors")]) > 2
    else:
        of = {name: "model-00001-of-00002.safetensors" for name in load_file(file)}
        write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": of})
    assert whole(folder).weights == student.weights


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0]['content'] }}", None])
def test_a_prompt_opens_once(template, folder):
    """Whether the template or the tokenizer puts the token that opens texts."""
    tokenizer = load_tokenizer(str(folder))
    bos = tokenizer.convert_ids_to_tokens(5)
    tokenizer.bos_token, tokenizer.chat_template = bos, template
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 5)]
    )
    (folder / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(folder)
    student = whole(folder)
    assert student.tokenizer("Ana")["input_ids"][0] == 5
    assert student.prompt_ids("Ana has 2 pens.").count(5) == 1
    assert student.prompt_ids("Ana has 2 pens.")[0] == 5


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
open(MARK, "w")
class Shape(LlamaConfig):
    model_type = "own"
class Model(LlamaForCausalLM):
    config_class = Shape
class Words(PreTrainedTokenizerFast):
    pass
"""


@pytest.mark.parametrize("kind", ["model", "known", "tokenizer", "critic", "rlhflow", "qwen-prm"])
def test_code_in_a_folder_never_runs(kind, folder, tmp_path, monkeypatch):
    """transformers asks on stdin whether it may."""
    asked = []
    monkeypatch.setattr("builtins.input", lambda *_: asked.append(1) or "y")
    (folder / "own.py").write_text(OWN_CODE.replace("MARK", repr(str(tmp_path / "ran"))))
    autos = {
        "AutoConfig": "own.Shape",
        "AutoModel": "own.Model",
        "AutoModelForCausalLM": "own.Model",
    }
    file, more = folder / "config.json", {"auto_map": autos}
    if kind == "tokenizer":
        file, autos = folder / "tokenizer_config.json", {"AutoTokenizer": ["own.Words"] * 2}
        more = {"auto_map": autos, "tokenizer_class": "Words"}
    elif kind == "critic":  # a kind that transformers has, though not as a language model
        small = {"hidden_size": 8, "intermediate_size": 8, "image_size": 4, "patch_size": 4}
        ViTModel(ViTConfig(num_hidden_layers=1, num_attention_heads=1, **small)).save_pretrained(
            folder
        )
    elif kind != "known":
        more["model_type"] = "own"
    write_json(file, read_json(file) | more)
    if kind == "known":  # a kind that transformers has is computed by its own classes
        assert type(whole(folder).model) is LlamaForCausalLM
    elif kind == "critic":
        with pytest.raises(ConfigError, match=rf"{folder} is no causal language model"):
            read_network(folder, whole(PACKAGED), {})
    elif kind in ("rlhflow", "qwen-prm"):
        with pytest.raises(CheckpointError, match="custom code"):
            load_public(folder, kind, load_config())
    else:
        with pytest.raises((CheckpointError, ConfigError), match="code of its own, which never"):
            whole(folder)
    assert not asked and not (tmp_path / "ran").exists()


def sampling(folder, **more):
    """Change what says how to sample."""
    file = folder / "generation_config.json"
    write_json(file, read_json(file) | more)


def test_a_model_and_an_adapter_in_one_folder_are_refused(folder):
    """transformers would lay the adapter over the model, and a run's reference would be without."""
    write_json(folder / "adapter_config.json", {"peft_type": "LORA"})
    for load in (
        lambda: load_student(mine(folder)),
        lambda: find_model(str(folder), load_config()),
    ):
        with pytest.raises(CheckpointError, match="is a model and an adapter: move"):
            load()


def test_what_says_how_to_sample_is_saved_as_it_says_it(folder, tmp_path):
    """Llama 2's file has a temperature without do_sample: it loads, and is not saved."""
    sampling(folder, temperature=0.6, top_p=0.9)
    whole(folder).model.save_pretrained(tmp_path / "saved")
    saved = read_json(tmp_path / "saved" / "generation_config.json")
    assert (saved["temperature"], saved["top_p"], saved["do_sample"]) == (0.6, 0.9, True)
    assert "_from_model_config" not in saved


@pytest.mark.parametrize("asked", CASES["samples"])
def test_what_no_engine_does_of_it_is_named(folder, asked, caplog):
    tell_once.cache_clear()
    sampling(folder, **{"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.0} | asked)
    whole(folder)
    said = [line for line in caplog.messages if "generation_config.json asks for" in line]
    assert len(said) == bool(asked)
    for key, value in asked.items():
        assert f"{key}={value}" in said[0] and "repetition_penalty=1.0" not in said[0]


@pytest.mark.parametrize("context, limit", CASES["contexts"])
def test_a_prompt_beyond_a_limit_names_that_limit(folder, context, limit):
    student = load_student(mine(folder).with_values(engine={"max_context": context}))
    question = "Ana has 2 pens. " * 300
    prompt = student.prompt_ids(question)
    for ask in (
        lambda: student.engine.generate([GenerateRequest(prompt)]),
        lambda: student.engine.score([(prompt, prompt[:1])]),
    ):
        with pytest.raises(RequestError, match=limit):
            asyncio.run(ask())
    with pytest.raises(ConfigError, match=limit):
        check_prompts(student, [question])


@pytest.mark.parametrize("command", ["train", "sft"])
def test_what_can_not_be_saved_is_told_before_a_training(command, folder, tmp_path, capsys):
    sampling(folder, length_penalty=2.0)
    out = tmp_path / "out"
    assert main(f"{command} --model {folder} --out {out} -q".split()) == 2
    said = capsys.readouterr().err
    assert "can be read and not written" in said and "length_penalty" in said
    assert said.count("\n") == 1 and not out.exists()


def test_four_bits_are_read_in_the_folder(folder):
    """All of such weights can't be trained, whatever the entry says."""
    pytest.importorskip("bitsandbytes")
    packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    AutoModelForCausalLM.from_pretrained(PACKAGED, quantization_config=packed).save_pretrained(
        folder
    )
    student = whole(folder)
    assert student.spec.quantization == "nf4"
    with pytest.raises(ConfigError, match="the student is quantised"):
        make_trainable(student.model, student.spec, "full")
    (folder / "chat_template.jinja").unlink()  # by which it is the embedded student's
    [entry] = find_model(str(folder), load_config())[0]["models"].values()
    assert entry["adapter"] == "lora"


# -- the tokenizer ---------------------------------------------------------------------------------


def test_fetch_says_where_a_model_is(monkeypatch, capsys):
    monkeypatch.setattr(fetch, "from_hub", lambda repository: f"/cache/{repository}")
    assert (
        main(["fetch", "qwen3-0.6b"]) == 0 and "/cache/Qwen/Qwen3-0.6B" in capsys.readouterr().out
    )
