"""A 4-bit student on the CPU, for real: one base with many adapters, exact gradients, merging,
training and resuming.
"""

import asyncio
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import tiny_llama
from tables import read_json, read_jsonl
from transformers import AutoModelForCausalLM

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import CheckpointError, ConfigError
from alphazero_llm_trainer.learning.critic import CriticNetwork
from alphazero_llm_trainer.learning.models import (
    RECOMPUTE,
    attach,
    make_optimizer,
    make_trainable,
    save_adapter,
)
from alphazero_llm_trainer.learning.rows import TrainRow
from alphazero_llm_trainer.policy import adapters
from alphazero_llm_trainer.policy.folders import mirrored, weights_of
from alphazero_llm_trainer.policy.student import (
    PACKAGED,
    check_device,
    frozen_student,
    load_model,
    load_student,
)
from alphazero_llm_trainer.runs.critic_run import new_critic
from alphazero_llm_trainer.runs.merging import bare, merged

pytest.importorskip("bitsandbytes")

FOUR_BITS = [
    {"student": "embedded", "models": {"embedded": {"quantization": "nf4", "adapter": "lora"}}}
]
FLAGS = """
    --set student=embedded
    --set models.embedded.quantization=nf4 --set models.embedded.adapter=lora
""".split()
SMALL = (
    """
    --set train.method=grpo --num-examples 16 --save-every 8 --eval-size 8
    --set train.questions_per_round=8 --set train.validation_size=8 --set train.keep_best=false
    --set train.rows_per_round=8 --set train.demonstrations=20
    --set train.optimizer.batch_size=5 --set train.optimizer.epochs=2
""".split()
    + FLAGS
)
QUESTION, ANSWER = "Ana has 3 pens. She buys 4 more pens.", "3 + 4 = 7"


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def config():
    return load_config(overrides=FOUR_BITS)


@pytest.fixture
def student(config):
    return load_student(config)


def randomise(model, adapter, seed, size=0.03):
    """An adapter that changes something, at about the size that training gives one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in adapters.own_parameters(model, adapter).items():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * size


def logprobs(model, student):
    """Every next-token log-probability along an answer."""
    ids = torch.tensor([[*student.prompt_ids(QUESTION), *student.encode(ANSWER)]])
    with torch.no_grad():
        return model(ids).logits[0].log_softmax(-1)


def difference(found, expected):
    """The largest difference in nats. Logits span 40 nats here: fp32 sums in another order are 2e-5
    apart.
    """
    return float((found - expected).abs().max())


def in_64_bits(student, adapter):
    """The 4-bit base's own numbers with the adapter beside them, unmerged, computed in fp64."""
    model = bare(student.model, torch.float32)
    adapters.load_adapter(model, adapter, adapters.POLICY)
    adapters.activate(model, adapters.POLICY)
    return model.double()


def engine_scores(student):
    [found] = asyncio.run(
        student.engine.score([(student.prompt_ids(QUESTION), tuple(student.encode(ANSWER)))])
    )
    return found


def storages(model):
    """Where the numbers of a model's base lie."""
    return {p.data_ptr() for name, p in model.named_parameters() if not adapters.is_adapted(name)}


# -- 4 bits ----------------------------------------------------------------------------------------


def test_inference_leaves_a_4_bit_model_differentiable_and_as_it_was(student):
    """On CPUs with AVX512-BF16 bitsandbytes repacks weights at the first inference, and no gradient
    passes them then.
    """
    before = adapters.fingerprint(student.model)
    logprobs(student.model, student)
    assert adapters.fingerprint(student.model) == before
    plain = bare(student.model)
    ids = torch.tensor([student.prompt_ids(QUESTION)])
    gradients = []
    for model in (student.model, plain):
        embedded = model.get_input_embeddings()(ids).detach().requires_grad_(True)
        model(inputs_embeds=embedded).logits.logsumexp(-1).sum().backward()
        gradients.append(embedded.grad)
    assert gradients[0].abs().max() > 1e-3
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def test_merging_is_exact_and_the_folder_is_plain(student, tmp_path):
    make_trainable(student.model, student.spec, "lora")
    randomise(student.model, adapters.POLICY, 0)
    student.model.eval()
    trained = logprobs(student.model, student)
    save_adapter(student.model, tmp_path / "adapter")
    merged(bare(student.model), tmp_path / "adapter").save_pretrained(tmp_path)
    student.tokenizer.save_pretrained(tmp_path)
    assert "quantization_config" not in read_json(tmp_path / "config.json")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {p.dtype for p in plain.parameters()} == {torch.float32}
    # 4-bit kernel and fp32 rounding included
    assert difference(logprobs(plain, student), trained) < 5e-5
    exact = in_64_bits(student, tmp_path / "adapter")
    assert difference(logprobs(plain.double(), student), logprobs(exact, student)) < 1e-5
    # And the 4-bit model is as it was.
    torch.testing.assert_close(logprobs(student.model, student), trained)
    # A merge into the weights before quantisation is another model.
    other = load_student(load_config(overrides=["student=embedded"]))
    make_trainable(other.model, other.spec, "lora")
    randomise(other.model, adapters.POLICY, 0)
    wrong = make_trainable(other.model, other.spec, "lora").eval()
    assert difference(logprobs(wrong, student), trained) > 0.1
    rounded = merged(bare(student.model, torch.bfloat16), tmp_path / "adapter")
    assert {p.dtype for p in rounded.parameters()} == {torch.bfloat16}


def test_an_adapter_comes_back_exactly_and_knows_its_base(student, config, tmp_path):
    make_trainable(student.model, student.spec, "lora")
    randomise(student.model, adapters.POLICY, 0)
    save_adapter(student.model, tmp_path)
    student.model.eval()
    again = load_student(config, path=tmp_path)
    assert torch.equal(logprobs(again.model, again), logprobs(student.model, student))
    assert adapters.fingerprint(again.model) == adapters.fingerprint(student.model)
    assert adapters.fingerprint(again.model) != adapters.fingerprint(again.model, None)
    assert engine_scores(again) == pytest.approx(
        logprobs(student.model, student)[len(student.prompt_ids(QUESTION)) - 1 : -1]
        .gather(1, torch.tensor(student.encode(ANSWER))[:, None])[:, 0].tolist(), abs=1e-4,
    )  # fmt: skip
    # Training goes on from it.
    trainable = make_trainable(again.model, again.spec, "lora")
    again.model.eval()
    assert torch.equal(logprobs(trainable, again), logprobs(student.model, student))
    assert all("lora_" in name for name, p in trainable.named_parameters() if p.requires_grad)
    # The adapter knows that its base was loaded in 4 bits.
    assert (
        load_student(load_config(overrides=["student=embedded"]), path=tmp_path).spec.quantization
        == "nf4"
    )


LORA = [{"student": "embedded", "models": {"embedded": {"adapter": "lora"}}}]  # without 4 bits


def test_all_weights_under_an_adapter_are_not_trained(tmp_path, capsys):
    config = load_config(overrides=LORA)
    first = load_student(config)
    make_trainable(first.model, first.spec, "lora")
    randomise(first.model, adapters.POLICY, 0)
    save_adapter(first.model, tmp_path / "adapter")
    first.model.eval()
    flags = [
        *SMALL,
        *f"--model {tmp_path / 'adapter'} --checkpoint-dir {tmp_path / 'runs'}".split(),
    ]
    whole = "--set models.embedded.quantization=none --set models.embedded.adapter=full".split()
    assert train_main([*flags, *whole]) == 2
    error = capsys.readouterr().err
    assert "folder is a LoRA adapter" in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_cut_adapter_is_one_sentence(tmp_path):
    config = load_config(overrides=LORA)
    student = load_student(config)
    make_trainable(student.model, student.spec, "lora")
    save_adapter(student.model, tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="can't be loaded over this student"):
        load_student(config, path=tmp_path)
    (tmp_path / "base.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"has a broken base\.json"):
        load_student(config, path=tmp_path)


# -- one base --------------------------------------------------------------------------------------


def test_policy_reference_value_and_critic_share_one_base(student, config):
    base = storages(student.model)
    apart = {name: load_student(config) for name in ("policy", "value", "critic")}
    frozen = frozen_student(student, config, shared=True)
    reference, before = logprobs(student.model, student), engine_scores(frozen)
    make_trainable(student.model, student.spec, "lora")
    network = new_critic(student, config, "value")
    critic = CriticNetwork(student.model, student.spec.lora)
    assert not [
        name
        for name, p in student.model.named_parameters()
        if p.requires_grad and not adapters.is_adapted(name)
    ]
    for model in (student.model, network, critic, frozen.model.model):
        assert storages(model) - storages(getattr(model, "score", torch.nn.Identity())) == base
    names = {"policy": adapters.POLICY, "value": "value", "critic": adapters.CRITIC}
    student.model.eval()
    for seed, (who, name) in enumerate(names.items()):
        randomise(student.model, name, seed)
        make_trainable(apart[who].model, apart[who].spec, "lora")
        state = {k.replace(f".{name}.", f".{adapters.POLICY}."): p
                 for k, p in adapters.own_parameters(student.model, name).items()}  # fmt: skip
        for key, parameter in adapters.own_parameters(apart[who].model, adapters.POLICY).items():
            parameter.data = state[key].detach().clone()
        apart[who].model.eval()
    student.engine.set_policy(None, 1)
    with adapters.under(student.model, None):
        assert torch.equal(logprobs(student.model, student), reference)
    found = {}
    for who, name in names.items():
        with adapters.under(student.model, name):
            found[who] = logprobs(student.model, student)
        assert torch.equal(found[who], logprobs(apart[who].model, student)), who
    assert not torch.allclose(found["policy"], found["value"], atol=1e-2)
    # Outside, the policy's own is active.
    assert torch.equal(logprobs(student.model, student), found["policy"])
    assert engine_scores(frozen) == pytest.approx(before, abs=1e-6)
    ids = torch.tensor([student.prompt_ids(QUESTION)])
    with torch.no_grad():
        asked = student.prompt_ids(QUESTION)
        for name, own in (("value", network), ("critic", critic)):
            hidden = apart[name].model.base_model(ids).last_hidden_state
            own.score.weight.fill_(0.01)
            values = own([TrainRow(asked[:-4], asked[-4:], (), ())])
            assert torch.allclose(values[0], own.score(hidden)[0, -5:-1, 0], atol=1e-4)


def test_an_optimiser_of_8_bits_keeps_embeddings_in_32():
    model = tiny_llama()
    optimizer = make_optimizer(model, (), 1e-3, 0.0, eight_bit=True)
    optimizer.check_overrides()
    embeddings = model.get_input_embeddings().weight
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            bits = optimizer.get_config(number, place, group)["optim_bits"]
            assert bits == (32 if parameter is embeddings else 8)


def test_checkpointing_recomputes_under_the_adapter_of_the_forward(student):
    make_trainable(student.model, student.spec, "lora")
    attach(student.model, student.spec.lora, adapters.CRITIC)
    for seed, name in enumerate((adapters.POLICY, adapters.CRITIC)):
        randomise(student.model, name, seed)
    ids = torch.tensor([student.prompt_ids(QUESTION)])

    def gradients():
        student.model.zero_grad(set_to_none=True)
        loss = student.model(ids).logits.logsumexp(-1).sum()
        with adapters.under(student.model, adapters.CRITIC):
            loss = loss + student.model(ids).logits.square().mean()
        loss.backward()
        return {
            n: p.grad.clone() for n, p in student.model.named_parameters() if p.grad is not None
        }

    student.model.train()
    plain = gradients()
    student.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=RECOMPUTE)
    again = gradients()
    assert plain.keys() == again.keys()
    assert any(f".{adapters.CRITIC}." in name for name in plain) and any(
        ".default." in name for name in plain
    )
    for name, gradient in plain.items():
        torch.testing.assert_close(gradient, again[name], rtol=1e-4, atol=1e-6, msg=name)


# -- the whole path --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("qlora")
    assert train_main([*SMALL, "--checkpoint-dir", str(directory)]) == 0
    return directory / "run-001"


def test_a_run_searches_trains_merges_and_is_evaluated(whole_run, config):
    card = read_json(whole_run / "run.json")
    assert card["adapter"] == "lora" and card["after"]["problems"] == 8
    lines = read_jsonl(whole_run / "metrics.jsonl")
    gaps = [line["engine_logprob_gap"] for line in lines if "engine_logprob_gap" in line]
    assert len(gaps) == 2 and max(gaps) < 1e-4
    state = load_file(whole_run / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert any("lora_B" in name and tensor.abs().max() > 0 for name, tensor in state.items())
    trained = load_student(config, path=whole_run / "adapter")
    plain = AutoModelForCausalLM.from_pretrained(whole_run / "student")
    assert difference(logprobs(plain, trained), logprobs(trained.model, trained)) < 5e-5
    assert (
        difference(
            logprobs(plain.double(), trained),
            logprobs(in_64_bits(trained, whole_run / "adapter"), trained),
        )
        < 1e-5
    )
    # The merged folder is a student too, and answers as the trained one did.
    unquantised = load_student(
        load_config(overrides=["student=embedded"]), path=whole_run / "student"
    )
    assert engine_scores(unquantised) == pytest.approx(engine_scores(trained), abs=1e-4)


# -- what a user trips over ------------------------------------------------------------------------


def test_a_model_of_a_gpus_size_is_refused_without_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spec = load_config().models["llama-3.2-3b"]
    with pytest.raises(ConfigError, match=r"llama-3\.2-3b .* CUDA .* --model embedded.*cpu=true"):
        check_device("llama-3.2-3b", spec.path, spec)
    check_device("llama-3.2-3b", spec.path, spec.changed(cpu=True))
    check_device("embedded", str(PACKAGED), spec)


def test_the_mirror_takes_a_gated_model_s_place(monkeypatch, caplog):
    mirrored.cache_clear()  # it is said once a process
    spec = load_config().models["llama-3.2-3b"]
    for token, source in ((None, spec.mirror), ("hf_x", spec.path)):
        monkeypatch.setattr("huggingface_hub.get_token", lambda token=token: token)
        assert weights_of(spec) == source
    assert "unsloth/Llama-3.2-3B-Instruct takes its place" in caplog.text


def test_a_model_that_does_not_come_from_the_hub_says_what_to_do(
    monkeypatch,
):
    def refuse(*args, **kwargs):
        raise OSError("You are trying to access a gated repo.\nMore of it.")

    spec = load_config().models["llama-3.2-3b"]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # whatever ran before
    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", refuse)
    with pytest.raises(CheckpointError) as caught:
        load_model(spec.path, spec, "llama-3.2-3b")
    message = str(caught.value)
    assert (
        "\n" not in message
        and "path=unsloth/Llama-3.2-3B-Instruct" in message
        and "path=DIR" in message
    )
    for word in (
        "access a gated repo)",
        "https://huggingface.co/meta-llama/Llama-3.2-3B-Instruct",
        "HF_TOKEN",
    ):
        assert word in message


# -- merging and uploading -------------------------------------------------------------------------


class Hub:
    """FAKE hub: what `HfApi` is asked to make and to upload."""

    def __init__(self):
        self.made = []
        self.files = {}

    def create_repo(self, repository, **given):
        self.made.append({"repository": repository, **given})
        return f"https://hub/{repository}"

    def upload_folder(self, folder_path, path_in_repo, **_):
        for file in folder_path.iterdir():
            self.files[str(Path(path_in_repo or "") / file.name)] = file.read_bytes()


def test_merge_writes_a_plain_folder_and_uploads_it(
    whole_run,
    tmp_path,
    monkeypatch,
    capsys,
):
    hub, out = Hub(), tmp_path / "merged"
    monkeypatch.setattr("alphazero_llm_trainer.runs.hub.HfApi", lambda: hub)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    given = f"--adapter {whole_run / 'adapter'} --out {out} --push-to-hub me/student".split()
    assert main(["merge", "--model", "embedded", *given]) == 0, (
        "the adapter knows that its base has 4 bits"
    )
    assert "uploaded to" in capsys.readouterr().out
    assert hub.made == [{"repository": "me/student", "private": True, "exist_ok": True}]
    weights = (out / "model.safetensors").read_bytes()
    assert (
        hub.files["model.safetensors"]
        == weights
        == (whole_run / "student" / "model.safetensors").read_bytes()
    )
    assert "quantization_config" not in json.loads(hub.files["config.json"])


@pytest.mark.parametrize(
    "flags, wanted",
    [
        ("--adapter {adapter} --out {run}".split(), "is there already"),
        (
            "--adapter {adapter} --out x --model {run}/student".split(),
            "trained over other weights",
        ),
    ],
)
def test_merge_refuses_what_is_wrong(flags, wanted, whole_run, capsys):
    given = [flag.format(adapter=whole_run / "adapter", run=whole_run) for flag in flags]
    assert main(["merge", *FLAGS, *given]) == 2
    assert wanted in capsys.readouterr().err


def test_sft_goes_on_in_4_bits(tmp_path):
    out = tmp_path / "sft"
    flags = "--eval-size 8 --set train.demonstrations=24 --set train.validation_size=8".split()
    flags += """
        --set train.sft_steps=6 --set train.optimizer.learning_rate=5e-3 --set
        train.micro_batch=8
    """.split()
    assert main(["sft", *FLAGS, *f"--model {PACKAGED} --out {out}".split(), *flags]) == 0
    manifest = read_json(out / "manifest.json")
    assert manifest["adapter"] == "lora" and manifest["steps"] == 6
    assert manifest["test_before"]["problems"] == manifest["test_greedy"]["problems"] == 8
    config = load_config(overrides=FOUR_BITS)
    adapted, base = load_student(config, path=out / "adapter"), load_student(config, path=PACKAGED)
    plain = load_student(load_config(overrides=["student=embedded"]), path=out)
    prompt = adapted.prompt_ids("Zoe has 3 bags with 4 coins each. How many coins does Zoe have?")
    pair = (prompt, tuple(adapted.encode("3 * 4 = 12\n#### 12")))

    def scores(student):
        [found] = asyncio.run(student.engine.score([pair]))
        return torch.tensor(found)

    # The merged folder is the trained student.
    assert torch.allclose(scores(adapted), scores(plain), atol=1e-3)
    assert (scores(adapted) - scores(base)).abs().max() > 1e-2  # and training moved it
