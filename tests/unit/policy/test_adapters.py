"""Adapters that peft knows: computed beside a base as peft computes them, merged by peft, or
refused by their field.
"""

import asyncio
import json
import shutil

import peft
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from support import tiny_engine, tiny_llama
from tables import read_json
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.sections import LoraConfig as OurLora
from alphazero_llm_trainer.config.sections import StudentModel
from alphazero_llm_trainer.engine.vllm_weights import write_adapter
from alphazero_llm_trainer.errors import CheckpointError, ConfigError
from alphazero_llm_trainer.learning.models import attach, save_adapter
from alphazero_llm_trainer.policy.adapters import (
    POLICY,
    activate,
    fit_lora,
    load_adapter,
    shape_of,
    under,
)
from alphazero_llm_trainer.policy.folders import write_facts
from alphazero_llm_trainer.policy.student import PACKAGED
from alphazero_llm_trainer.policy.weights import load_weights
from alphazero_llm_trainer.runs.merging import bare, merged, read_back

IDS = (5, 3, 17, 8, 3, 40, 11)
PARTS = ["q_proj", "v_proj"]


def lora(**options):
    return LoraConfig(**{"target_modules": PARTS, "r": 4, "lora_alpha": 8, **options})


# LoRA of linear layers, which is computed beside a base
PLAIN = {
    "lora": lora,
    "rslora": lambda: lora(use_rslora=True, lora_alpha=16),
    "patterns": lambda: lora(
        rank_pattern={"q_proj": 2}, alpha_pattern={"layers.0.self_attn.v_proj": 32}
    ),
    "some layers": lambda: lora(layers_to_transform=[1]),
}
# what is not, with the field that says so
OTHERS = {
    "dora": ("use_dora", lambda: lora(use_dora=True)),
    "biases": ("bias", lambda: lora(bias="all")),
    "pissa": ("init_lora_weights", lambda: lora(init_lora_weights="pissa")),
    "embedding": ("target_modules", lambda: lora(target_modules=["embed_tokens", "q_proj"])),
    "head": ("target_modules", lambda: lora(target_modules=["lm_head", "q_proj"])),
    "whole head": ("modules_to_save", lambda: lora(modules_to_save=["lm_head"])),
    "whole both": ("modules_to_save", lambda: lora(modules_to_save=["embed_tokens", "lm_head"])),
    "whole tied": (
        "modules_to_save",
        lambda: lora(modules_to_save=["embed_tokens"], ensure_weight_tying=True),
    ),
    "tokens": ("trainable_token_indices", lambda: lora(trainable_token_indices=[3, 5])),
    "ia3": ("peft_type", lambda: peft.IA3Config(target_modules=PARTS, feedforward_modules=[])),
    "adalora": (
        "peft_type",
        lambda: peft.AdaLoraConfig(target_modules=PARTS, init_r=4, target_r=2, total_step=9),
    ),
}
# and what peft can't merge either
NEVER = {
    "prompt": (
        "peft_type",
        lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    ),
    "lora_bias": ("lora_bias", lambda: lora(lora_bias=True)),
}


def base(tied=False):
    """A base with a head of its own, or one that shares the embedding's weights."""
    model = tiny_llama()
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    return model


def logprobs(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS])).logits[0].log_softmax(-1)


def made(config, folder, tied=False, model=None):
    """A trained adapter in a folder, as peft writes one; returns what peft's own model says with
    it.
    """
    torch.manual_seed(1)
    adapted = get_peft_model(base(tied) if model is None else model, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += torch.randn(parameter.shape) * 0.2
    adapted.eval().save_pretrained(folder)
    return logprobs(adapted)


def adapted(folder, tied=False):
    model = base(tied)
    load_adapter(model, folder, POLICY)
    activate(model, POLICY)
    return model


@pytest.mark.parametrize("kind", PLAIN)
def test_lora_is_computed_beside_its_base_and_goes_on_as_it_is(kind, tmp_path):
    expected = made(PLAIN[kind](), tmp_path / "theirs")
    before = logprobs(base())
    assert (expected - before).abs().max() > 0.01
    model = adapted(tmp_path / "theirs")
    torch.testing.assert_close(logprobs(model), expected)
    with under(model, None):
        torch.testing.assert_close(logprobs(model), before)
    scores = expected[:-1].gather(1, torch.tensor(IDS[1:])[:, None])[:, 0].tolist()
    for native in ("auto", "off"):  # the kernels' own packing, and torch
        engine = tiny_engine(model, native=native)
        [found] = asyncio.run(engine.score([(IDS[:1], IDS[1:])]))
        assert found == pytest.approx(scores, abs=1e-4)
    # Training goes on from it, beside it a critic that begins as it, and all of it is in the
    # folders that are written.
    spec = shape_of(model, OurLora())
    attach(model, spec, POLICY)
    attach(model, spec, "value")
    for name in (POLICY, "value"):
        with under(model.eval(), name):
            torch.testing.assert_close(logprobs(model), expected)
        save_adapter(model, tmp_path / name, name)
        torch.testing.assert_close(logprobs(adapted(tmp_path / name)), expected)
        torch.testing.assert_close(logprobs(merged(base(), tmp_path / name)), expected)


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS])
def test_a_merged_folder_says_what_peft_says(kind, tied, tmp_path):
    config = PLAIN[kind]() if kind in PLAIN else OTHERS[kind][1]()
    expected = made(config, tmp_path / "adapter", tied)
    sum_of_both = merged(bare(base(tied)), tmp_path / "adapter")
    sum_of_both.save_pretrained(tmp_path / "merged")
    read_back(tmp_path / "merged", sum_of_both)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logprobs(again), expected, atol=1e-4, rtol=1e-4)
    apart = not torch.equal(
        again.get_input_embeddings().weight, again.get_output_embeddings().weight
    )
    assert again.config.tie_word_embeddings is (tied and not apart)
    assert apart or tied


def test_a_head_of_its_own_stays_whatever_config_json_says(tmp_path):
    """`tie_word_embeddings: true` over a file with both: transformers reads both."""
    own = base()
    own.config.tie_word_embeddings = True
    own.save_pretrained(tmp_path / "base")
    assert read_json(tmp_path / "base" / "config.json")["tie_word_embeddings"]
    model = load_weights(AutoModelForCausalLM, str(tmp_path / "base"))
    before = logprobs(model)
    torch.testing.assert_close(before, logprobs(own))
    torch.testing.assert_close(logprobs(bare(model)), before)
    expected = made(lora(), tmp_path / "adapter", model=model)
    plain = load_weights(AutoModelForCausalLM, str(tmp_path / "base"))
    merged(bare(plain), tmp_path / "adapter").save_pretrained(tmp_path / "merged")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not again.config.tie_word_embeddings
    torch.testing.assert_close(logprobs(again), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(CheckpointError, match=r"without its adapters is .* nats from"):
        bare(own)  # its configuration was never set right


@pytest.mark.parametrize("kind", [*OTHERS, *NEVER])
def test_other_kinds_are_one_sentence_with_their_field_and_the_way_out(kind, tmp_path):
    field, config = {**OTHERS, **NEVER}[kind]
    made(config(), tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load_adapter(base(), tmp_path, POLICY)
    said = str(caught.value)
    assert (
        field in said
        and "adapter_config.json" in said
        and "`merge --adapter" in said
        and "\n" not in said
    )


def test_a_field_that_nobody_knows_yet_is_refused(tmp_path):
    """peft itself ignores it with a warning."""
    made(lora(), tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**read_json(file), "use_xora": {"scale": 2}}))
    with pytest.raises(CheckpointError, match="use_xora"):
        load_adapter(base(), tmp_path, POLICY)


@pytest.mark.parametrize("fault", ["lacking", "unexpected", "shape"])
def test_weights_that_do_not_fit_are_no_adapter(fault, tmp_path):
    made(lora(), tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    weights = load_file(file)
    name = sorted(weights)[-1]
    if fault == "lacking":
        del weights[name]
    elif fault == "unexpected":
        weights[name.replace("layers.1", "layers.7")] = weights[name].clone()
    else:
        weights[name] = torch.cat([weights[name], weights[name]], dim=1)
    save_file(weights, file, {"format": "pt"})
    for take in (lambda: load_adapter(base(), tmp_path, POLICY), lambda: merged(base(), tmp_path)):
        with pytest.raises(CheckpointError) as caught:
            take()
        assert "\n" not in str(caught.value)


def test_16_bits_are_merged_too_and_a_wrong_sum_is_seen(tmp_path, monkeypatch):
    for dtype in (torch.bfloat16, torch.float16):
        made(lora(modules_to_save=["lm_head"]), tmp_path / str(dtype), model=base().to(dtype))
        assert {p.dtype for p in merged(base().to(dtype), tmp_path / str(dtype)).parameters()} == {
            dtype
        }
    made(lora(use_dora=True), tmp_path / "dora")
    made(lora(), tmp_path / "large", model=loud())  # its rounding alone is .2 nats
    merged(loud(), tmp_path / "large")
    monkeypatch.setattr(
        "peft.tuners.lora.model.LoraModel.merge_and_unload", lambda self: self.unload()
    )
    for model, name in ((base(), "dora"), (loud(), "large")):
        with pytest.raises(CheckpointError, match="nats from the model in memory"):
            merged(model, tmp_path / name)


def loud():
    """A base in bfloat16 with large logits."""
    model = base()
    model.lm_head.weight.data *= 10
    return model.bfloat16()


def test_vllm_is_told_no_ranks_by_layer(tmp_path):
    made(PLAIN["patterns"](), tmp_path / "adapter")
    with pytest.raises(ConfigError, match="rank_pattern"):
        write_adapter(adapted(tmp_path / "adapter"), tmp_path / "vllm")


def test_the_command_merges_leaves_nothing_half_and_names_the_field(tmp_path, capsys, monkeypatch):
    shipped = AutoModelForCausalLM.from_pretrained(PACKAGED)
    expected = made(
        lora(use_dora=True, target_modules=["lm_head", "q_proj"]), tmp_path / "dora", model=shipped
    )
    flags = f"--model embedded --adapter {tmp_path / 'dora'} --out {tmp_path / 'out'}".split()
    capsys.readouterr()
    assert main(f"eval --model {tmp_path / 'dora'} --set student=embedded".split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "use_dora" in error and "merge" in error
    with monkeypatch.context() as patch:
        broken = "alphazero_llm_trainer.runs.merging.load_weights"
        patch.setattr(broken, lambda *_, **__: AutoModelForCausalLM.from_pretrained(PACKAGED))
        assert main(["merge", *flags]) == 2
    assert "nats from" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["dora"]
    assert main(["merge", *flags]) == 0
    torch.testing.assert_close(
        logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "out")),
        expected,
        atol=1e-3,
        rtol=1e-3,
    )
    shutil.rmtree(tmp_path / "out")
    made(
        NEVER["prompt"][1](),
        tmp_path / "prompt",
        model=AutoModelForCausalLM.from_pretrained(PACKAGED),
    )
    flags[3] = str(tmp_path / "prompt")
    assert main(["merge", *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "PROMPT_TUNING" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dora", "prompt"]


def test_without_a_model_an_adapter_is_merged_into_the_base_that_it_names(tmp_path):
    own = AutoModelForCausalLM.from_pretrained(PACKAGED)
    with torch.no_grad():
        own.model.norm.weight.mul_(1.5)
    shutil.copytree(PACKAGED, tmp_path / "base")
    own.save_pretrained(tmp_path / "base")
    expected = made(lora(), tmp_path / "adapter", model=own)
    write_facts(
        tmp_path / "adapter", "own", StudentModel(path=str(tmp_path / "base")), adapter=True
    )
    assert main(f"merge --adapter {tmp_path / 'adapter'} --out {tmp_path / 'out'}".split()) == 0
    torch.testing.assert_close(
        logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "out")),
        expected,
        atol=1e-3,
        rtol=1e-3,
    )


def test_the_tokenizer_beside_an_adapter_is_the_merged_models(tmp_path):
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    made(lora(), adapter, model=AutoModelForCausalLM.from_pretrained(PACKAGED))
    template = "{% for m in messages %}{{ m['content'] }}!{% endfor %}"
    for name in ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json"):
        (adapter / "chat_template.jinja").write_text(template)  # alone at first
        assert main(f"merge --model embedded --adapter {adapter} --out {out}".split()) == 0
        assert (out / "chat_template.jinja").read_text() == template
        assert AutoTokenizer.from_pretrained(out).chat_template == template
        shutil.rmtree(out)
        if name != "chat_template.jinja":
            shutil.copy(PACKAGED / name, adapter / name)


def test_beside_a_mixtures_experts_lora_is_of_linear_layers_and_all_that_is_saved_stays(
    tmp_path,
):
    shape = CONFIG_MAPPING["glm4_moe"](
        vocab_size=61, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, n_routed_experts=4, num_experts_per_tok=2,
        n_shared_experts=1, first_k_dense_replace=1, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape).eval()
    model.model.layers[1].mlp.gate.e_score_correction_bias.normal_()  # a buffer that is saved
    with pytest.raises(ConfigError, match="down_proj"):
        fit_lora(model, OurLora(targets=("down_proj",)), "x")
    attach(model, fit_lora(model, OurLora(), "x"), POLICY)
    activate(model, POLICY)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data.normal_(std=0.2)
    save_adapter(model, tmp_path / "adapter")
    load_adapter(bare(model), tmp_path / "adapter", POLICY)  # no field beyond LoRA's
    whole = merged(bare(model), tmp_path / "adapter")
    whole.save_pretrained(tmp_path / "whole")
    read_back(tmp_path / "whole", whole)
    torch.testing.assert_close(
        logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "whole")), logprobs(model)
    )
