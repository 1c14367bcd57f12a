"""The last layer on a CPU: TRL's numbers and gradients, at the labels alone."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import add_fused_lm_head

from alphazero_llm_trainer.training.head import LabelLogProbs, project_labels_only, token_logprobs


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def batch(rows: int = 3, length: int = 70) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 97, (rows, length), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :20] = -100
    labels[0, 50:] = -100
    return {"input_ids": ids, "labels": labels}


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_numbers_and_gradients_are_trls(model: LlamaForCausalLM, temperature: float, shifted: bool) -> None:
    theirs, ours = copy.deepcopy(model), model
    wanted = ("log_probs", "entropy", "is_top1")
    for one in (theirs, ours):
        add_fused_lm_head(one, temperature, outputs=wanted)
    project_labels_only(ours, temperature)
    given = batch()
    if shifted:
        given["shift_labels"] = given.pop("labels")
    found = []
    for one in (theirs, ours):
        outputs = one(**given, fused_lm_head=True)
        (1.3 * outputs.log_probs.square().sum() + 0.4 * outputs.entropy.square().sum()).backward()
        found.append((outputs, [p.grad for p in one.parameters()]))
    (expected, slopes), (outputs, gradients) = found
    assert torch.equal(outputs.label_mask, expected.label_mask)
    assert torch.equal(outputs.is_top1, expected.is_top1)
    for name in ("log_probs", "entropy", "loss"):
        torch.testing.assert_close(outputs[name], expected[name])
    for own, other in zip(gradients, slopes, strict=True):
        torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-4)


def test_a_batch_without_labels_is_a_zero_with_a_gradient(model: LlamaForCausalLM) -> None:
    add_fused_lm_head(model)
    project_labels_only(model)
    given = batch()
    given["labels"][:] = -100
    outputs = model(**given, fused_lm_head=True)
    outputs.log_probs.sum().backward()
    assert outputs.loss == 0
    assert all((p.grad == 0).all() for p in model.parameters() if p.grad is not None)


def test_the_last_layer_is_computed_at_labels_alone(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    plain = LabelLogProbs.apply
    monkeypatch.setattr(LabelLogProbs, "apply", lambda hidden, *rest: rows.append(len(hidden)) or plain(hidden, *rest))
    add_fused_lm_head(model)
    project_labels_only(model)
    given = batch()
    model(**given, fused_lm_head=True)
    assert rows == [int((given["labels"][:, 1:] != -100).sum())]


def test_a_probability_of_zero_has_no_entropy() -> None:
    hidden, weight = torch.tensor([[1.0]], requires_grad=True), torch.tensor([[0.0], [float("-inf")]])
    logprobs, entropy, best = LabelLogProbs.apply(hidden, weight, torch.tensor([0]), 1.0)
    assert (logprobs.item(), entropy.item(), best.item()) == (0.0, 0.0, True)


def test_a_word_that_cannot_be_has_no_share_of_the_entropys_gradient() -> None:
    ours, exact = (torch.tensor([[1.0]], requires_grad=True) for _ in range(2))
    weight = torch.tensor([[0.0], [1.0], [-3e38]])
    _, entropy, _ = LabelLogProbs.apply(ours, weight, torch.tensor([0]), 0.7)
    (3 * entropy.sum()).backward()
    (3 * torch.distributions.Categorical(logits=exact @ weight[:2].T / 0.7).entropy().sum()).backward()
    torch.testing.assert_close(ours.grad, exact.grad)


def test_a_head_that_does_more_keeps_trls(model: LlamaForCausalLM) -> None:
    add_fused_lm_head(model)
    model.config.logit_scale = 2.0
    before = model.forward
    project_labels_only(model)
    assert model.forward == before


@pytest.mark.parametrize("bias", [False, True])
def test_single_tokens_of_any_head_have_their_log_probability(model: LlamaForCausalLM, bias: bool) -> None:
    if bias:  # more than a product
        head = model.get_output_embeddings()
        head.bias = torch.nn.Parameter(torch.linspace(-2, 2, 97))
    hidden, tokens = torch.randn(5, 16, generator=torch.Generator().manual_seed(2)), torch.tensor([3, 96, 0, 3, 40])
    expected = model.get_output_embeddings()(hidden).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(token_logprobs(model, hidden, tokens), expected, atol=1e-5, rtol=1e-5)
