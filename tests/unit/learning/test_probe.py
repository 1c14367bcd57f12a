"""The update that is tried before a run: it fits or is refused, and nothing of it is left."""

import resource
from dataclasses import replace

import pytest
import torch
from support import grpo_config

from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.engine import device
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.learning import probe
from alphazero_llm_trainer.learning.methods.expert_iteration import Likelihood
from alphazero_llm_trainer.learning.size import rows_of_a_forward
from alphazero_llm_trainer.runs.fit import fit, plan_updates
from alphazero_llm_trainer.runs.run import Run
from alphazero_llm_trainer.runs.start import prepare

LIMITS = resource.getrlimit(resource.RLIMIT_AS)


@pytest.fixture
def large(monkeypatch):
    """As if the embedded student were a large one."""
    monkeypatch.setattr(probe, "LARGE", 1)


def loaded(*overrides):
    run = Run(prepare(grpo_config(["student=embedded", *overrides])))
    run.load()
    return run


DROPOUT = {"models": {"embedded": {"lora": {"dropout": 0.1}}}, "train": {"adapter": "lora"}}


@pytest.mark.parametrize(
    "method",
    ["grpo", "ppo",
     *(pytest.param(name, marks=pytest.mark.slow) for name in ("alphazero", "expert_iteration"))],
)  # fmt: skip
def test_a_tried_update_is_the_longest_and_leaves_nothing(large, method):
    more = [DROPOUT] if method == "grpo" else []
    run = loaded(f"train.method={method}", "train.micro_batch=4", "search.max_tokens=50", *more)
    made, asked = run.learner, max((t.problem.question for t in run.prepared.questions), key=len)
    before = {name: p.detach().clone() for name, p in made.checkpoint_tensors().items()}
    random, shapes = torch.get_rng_state(), []
    hook = run.student.model.model.register_forward_pre_hook(
        lambda module, given, named: shapes.append(tuple(named["input_ids"].shape)),
        with_kwargs=True,
    )
    probe.try_update(made, run.longest_rows())
    hook.remove()
    # Two forwards, for a second one has the gradients of the first beside it.
    assert shapes[:2] == [(4, len(run.student.prompt_ids(asked)) + 50)] * 2
    assert len(shapes) == 2
    for name, p in made.checkpoint_tensors().items():
        assert torch.equal(p, before[name]) and p.grad is None, name
    assert not made.optimizer.state and made.updates == 0 and not made.scorer.training
    assert torch.equal(torch.get_rng_state(), random)


def test_an_update_beyond_memory_is_refused_before_a_folder_is_made(
    large, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(device, "device_memory", lambda: ("cpu", 32 << 20, 1 << 40))
    rows = "--set train.optimizer.batch_size=4096 --set train.micro_batch=4096".split()
    assert train_main(["-q", "--model", "embedded", *rows, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and "train.micro_batch" in said
    assert list(tmp_path.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_AS) == LIMITS


def test_supervised_training_tries_its_longest_rows(large, monkeypatch):
    run, size = loaded(), 1600
    train = plan_updates(run.config, size, 1e-3)
    rows = [[row] for row in run.longest_rows() * (size // 16)]
    short = [[replace(row, completion_ids=(1,), weights=(1.0,))] for [row] in rows]
    monkeypatch.setattr(device, "device_memory", lambda: ("cpu", 32 << 20, 1 << 40))
    with pytest.raises(ConfigError, match=r"train\.micro_batch"):
        fit(
            run.student.model,
            Likelihood(),
            [*rows, *short],
            train.with_values(optimizer={"batch_size": size}),
            7,
        )


def test_what_fits_and_other_errors_pass():
    with device.within_memory("a table", "shrink it"):
        torch.empty(1 << 20)
    with pytest.raises(RuntimeError, match="memory location"), device.within_memory("", ""):
        torch.ones(3).expand(2, 3).add_(1)
    with (
        pytest.raises(ConfigError, match="a table takes more memory"),
        device.within_memory("a table", "shrink it"),
    ):
        torch.empty(1 << 50)
    assert resource.getrlimit(resource.RLIMIT_AS) == LIMITS


def test_a_forward_on_a_cpu_takes_what_two_gibibytes_hold():
    embedded, smollm2 = (3, 128, 384), (30, 576, 1536)
    assert rows_of_a_forward(20, 256, *embedded) == 20
    found = {batch: rows_of_a_forward(batch, 352, *smollm2) for batch in (16, 20, 7, 1)}
    assert found == {16: 4, 20: 4, 7: 1, 1: 1}
