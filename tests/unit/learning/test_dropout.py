"""A policy that is weighed against what drew its rows is trained without dropout, wherever its
model has it, and computed again in the backward pass all the same.
"""

from copy import deepcopy

import pytest
import torch
from support import grpo_config, library_scores
from transformers import AutoModelForCausalLM, FalconConfig, GPT2Config, LlamaConfig, OPTConfig

from alphazero_llm_trainer.config.sections import LoraConfig, StudentModel
from alphazero_llm_trainer.errors import TrainingError
from alphazero_llm_trainer.learning.learner import Learner, RateSchedule
from alphazero_llm_trainer.learning.methods.distill import Distill
from alphazero_llm_trainer.learning.methods.expert_iteration import Likelihood
from alphazero_llm_trainer.learning.methods.grpo import Grpo
from alphazero_llm_trainer.learning.methods.ppo import make_objective as ppo
from alphazero_llm_trainer.learning.models import MemoryOptions, checkpoint_layers, make_trainable
from alphazero_llm_trainer.learning.train_row import TrainRow

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
MODELS = {
    "opt": OPTConfig(
        **SMALL, **WORDS, ffn_dim=16, word_embed_proj_dim=16, max_position_embeddings=64,
        dropout=0.3, attention_dropout=0.3, layerdrop=0.5,
    ),
    "gpt2": GPT2Config(
        **WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.3, embd_pdrop=0.3,
        attn_pdrop=0.3,
    ),
    "falcon": FalconConfig(**SMALL, **WORDS, hidden_dropout=0.3, attention_dropout=0.3),
    "llama": LlamaConfig(**SMALL, **WORDS, intermediate_size=16, attention_dropout=0.3),
}  # fmt: skip
OBJECTIVES = {
    "grpo": Grpo,
    "ppo": lambda train, model: ppo(train, model, None),
    "distill": Distill,
}


def model_of(kind):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(MODELS[kind]).eval()


def rows_of(model, shift=0.0):
    """Rows as the model drew them; `shift` nats from that."""
    rows = []
    for i in range(4):
        ids = tuple((7 * i + 3 * j) % 50 + 1 for j in range(12))
        old = tuple(x - shift for x in library_scores(model, ids[:4], ids[4:]))
        own = (1.0 - i % 2 * 2,) * 8
        rows.append(TrainRow(ids[:4], ids[4:], old, own, draws=(1.0,) * 8, weights=own, index=i))
    return rows


def learner_of(model, objective, checkpointing):
    settings = grpo_config().train.optimizer.with_values(batch_size=4, weight_decay=0.0)
    memory = MemoryOptions(2, checkpointing)
    return Learner(model, objective, memory, RateSchedule(1e-3, 0, 10), settings)


def updated(kind, name, checkpointing, shift=0.0):
    """The figures of a round of one update, and the weights after it."""
    model, train = model_of(kind), grpo_config().train.with_values(pack="off")
    rows = rows_of(model, shift)
    learner = learner_of(model, OBJECTIVES[name](train, model), checkpointing)
    learner.begin(0, [rows])
    figures = learner.update(rows)
    assert not any(module.training for module in model.modules())
    return figures | learner.end(0.0), deepcopy(model.state_dict())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", MODELS)
def test_updates_are_of_what_the_engine_computes(kind, name):
    found = [updated(kind, name, checkpointing) for checkpointing in (False, True)]
    for figures, _ in found:
        assert figures["engine_logprob_gap_mean"] <= figures["engine_logprob_gap"] < 1e-5
        assert figures["clip_fraction"] == 0.0
    torch.testing.assert_close(found[0][1], found[1][1])


def test_layers_are_computed_again_while_nothing_is_dropped():
    model, calls = model_of("opt"), []
    train = grpo_config().train.with_values(pack="off")
    rows = rows_of(model)
    learner = learner_of(model, Grpo(train, model), True)
    model.model.decoder.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    learner.update(rows)
    assert len(calls) == 2 * 2  # forwards of two rows, each computed again
    calls.clear()
    with torch.no_grad():
        model(input_ids=torch.tensor([rows[0].prompt_ids]))
    assert calls == [1] and not any(module.training for module in model.modules())


def test_an_adapters_dropout_is_off_too():
    model = model_of("llama")
    lora = LoraConfig(rank=2, alpha=2, dropout=0.5, targets=["q_proj", "v_proj"])
    make_trainable(model, StudentModel(path="tiny", lora=lora), "lora")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_()
    rows = rows_of(model.eval())
    learner = learner_of(model, Grpo(grpo_config().train.with_values(pack="off"), model), False)
    learner.begin(0, [rows])
    learner.update(rows)
    assert learner.end(0.0)["engine_logprob_gap"] < 1e-5


def test_supervised_training_has_the_models_own():
    model = model_of("gpt2")
    rows = rows_of(model)
    learner, modes = learner_of(model, Likelihood(), True), []
    model.transformer.drop.register_forward_hook(lambda drop, *_: modes.append(drop.training))
    learner.update(rows)
    assert modes and all(modes)


def test_rows_of_another_policy_end_the_run():
    with pytest.raises(TrainingError, match=r"differ from the learner's by 0\.3 nats in the mean"):
        updated("llama", "grpo", False, shift=0.3)
    assert updated("llama", "grpo", False, shift=0.02)[0]["engine_logprob_gap_mean"] > 0.01


@pytest.mark.parametrize("other", ["gradient_checkpointing_enable", None])
def test_checkpointing_goes_by_the_name_that_is_there(other, monkeypatch):
    """transformers 6 has `activation_checkpointing_enable` alone."""
    model = model_of("llama")
    enable = type(model).gradient_checkpointing_enable
    monkeypatch.setattr(type(model), "activation_checkpointing_enable", enable, raising=False)
    if other is not None:
        monkeypatch.delattr(owner(model, other), other)
    assert len(checkpoint_layers(model)) == 2
    assert all(layer.gradient_checkpointing for layer in model.model.layers)


def owner(model, name):
    """The class that defines a method."""
    return next(kind for kind in type(model).__mro__ if name in vars(kind))
