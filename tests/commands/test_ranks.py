"""A run of several processes: the weights of one, resumed with another number of them, and refused
in one sentence.
"""

import itertools
import os
import time

import pytest
import torch
from faults import trees_in
from processes import TRAIN, Started
from safetensors.torch import load_file
from support import grpo_config
from tables import CHECKOUT, free_port, table

from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.files import read_lines
from alphazero_llm_trainer.learning.losses import mask_of, pad_rows
from alphazero_llm_trainer.learning.methods.by_name import method_of
from alphazero_llm_trainer.learning.ranks import Ranks, check_ranks, shard_rows
from alphazero_llm_trainer.learning.train_row import TrainRow
from alphazero_llm_trainer.policy.folders import PACKAGED

CASES = table("ranks")

NUMBERS = itertools.count()
SMALL = """
    --model embedded --eval-size 0 --quiet
    --set problems.levels=[1,2] --set search.temperature=1.2 --set search.concurrent=8
    --set train.questions_per_round=8 --set train.save_every=8 --set train.demonstrations=16
    --set train.validation_size=0 --set rewards.use_student_model=false
""".split()
FEW = """
    --set train.updates_per_round=3
    --set train.optimizer.batch_size=4 --set train.optimizer.warmup=0
""".split()
GRPO = """
    --set search.simulations=3 --set train.optimizer.batch_size=8 --set train.rows_per_round=12
    --set train.optimizer.epochs=2 --set train.demonstration_share=0.25
    --set train.optimizer.warmup=0
""".split()
TRIED = """
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.learning import learner

learner.LARGE = 1
raise SystemExit(train_main())
"""
METHODS = {"alphazero": FEW, "grpo": GRPO}
# What `accelerate launch --config_file examples/accelerate_fsdp.yaml` tells its processes.
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}


def set_fsdp(monkeypatch, **changes):
    """Have the processes that a test starts from here on train under FSDP."""
    for name, value in {**FSDP, **changes}.items():
        monkeypatch.setenv(name, value)


def start(count, out, *flags):
    """`count` processes of one run, as a launcher starts them."""
    port = str(free_port())
    ours = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = []
    for rank in map(str, range(count)):
        named = ours | {"RANK": rank, "LOCAL_RANK": rank} if count > 1 else {}
        folder = out.with_name(f"{out.name}-{next(NUMBERS)}")
        processes.append(Started(folder, TRAIN, "--out", str(out), *flags, **named))
    return processes


def finish(processes):
    """Exit code, standard output and error of each."""
    return [(one.wait(), one.said(), one.said("stderr")) for one in processes]


def train(count, out, *flags):
    return finish(start(count, out, *SMALL, *flags))


def kill_after_a_checkpoint(out, flags):
    """Start two processes, and kill both once their first checkpoint is sealed."""
    processes = start(2, out, *SMALL, *flags)
    sealed = out / "run-001" / "checkpoint-8" / "alphazero.json"
    while not sealed.exists():
        assert all(process.runs for process in processes), finish(processes)
        time.sleep(0.02)
    for process in processes:
        process.kill()
    assert not (out / "run-001" / "student").exists(), "it was over before it was killed"


def weights(run):
    return load_file(run / "run-001" / "student" / "model.safetensors")


def apart(one, other):
    """The distance of two sets of weights (2-norm)."""
    return sum(float((one[name] - other[name]).double().square().sum()) for name in one) ** 0.5


def journal(run):
    found = trees_in(run / "run-001").items()
    return {key: (record["tree"]["token_ids"], record["tree"]["N"]) for key, record in found}


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, sharding",
    # A killed run is RFT's.
    [("alphazero", "ddp"), ("grpo", "ddp"), ("grpo", "fsdp")],
)
def test_two_processes_end_with_the_weights_of_one(method, sharding, tmp_path, monkeypatch):
    flags = [*f"--set train.method={method} --num-examples 16".split(), *METHODS[method]]
    fsdp, runs = sharding == "fsdp", [tmp_path / "one", tmp_path / "two"]
    if fsdp:  # with an adapter, which most of the sharded weights are no part of
        flags += "--set train.adapter=lora --set train.optimizer.learning_rate=0.003".split()
    [(code, _, error)] = train(1, runs[0], *flags)
    assert code == 0, error
    if fsdp:
        set_fsdp(monkeypatch)
    # The two try an update first, as of a large student, of which nothing may be left.
    script = tmp_path / "train.py"
    script.write_text(TRIED)
    monkeypatch.setitem(globals(), "TRAIN", str(script))
    (code, said, error), (other, quiet, _) = train(2, runs[1], *flags)
    assert (code, other) == (0, 0), error
    assert "student, metrics and report.html" in said and quiet == ""  # rank 0 alone speaks
    sharded = [*(runs[1] / "run-001").glob("checkpoint-*/pytorch_model_fsdp.bin")]
    assert bool(sharded) == fsdp
    # The same trees, each once, of whole weights.
    assert journal(runs[0]) == journal(runs[1])
    # Figures of the first round's rows are those of all processes' rows.
    told = [read_lines(run / "run-001" / "metrics.jsonl")[0] for run in runs]
    for name in ("advantage_mean", "advantage_std") if method == "grpo" else ():
        assert told[0][name] == pytest.approx(told[1][name], abs=1e-4)
    if method == "alphazero":
        file = "run-001/student/value/critic.safetensors"
        value, other = (load_file(run / file) for run in runs)
        size = apart(value, {name: torch.zeros_like(number) for name, number in value.items()})
        assert value["weight"].any() and apart(value, other) < 1e-3 * size
    one, two = map(weights, runs)
    assert {name: one[name].shape for name in one} == {name: two[name].shape for name in two}
    moved = apart(one, load_file(PACKAGED / "model.safetensors"))
    # Shards add up in another order, and Adam's first steps are the signs of small numbers.
    assert moved > 1e-2 and apart(one, two) < (5e-3 if fsdp else 1e-3) * moved


LONG = ["--use-rft", "--num-examples", "48", *FEW]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "one"
    [(code, _, error)] = train(1, out, *LONG)
    assert code == 0, error
    return out


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_killed_run_goes_on_and_ends_as_it_would_have(
    sharding, undisturbed, tmp_path, monkeypatch
):
    """With another number of processes: a checkpoint is whole."""
    count = 4 if sharding == "fsdp" else 1
    again = (tmp_path / "two", "--resume", "--quiet")
    if sharding == "fsdp":
        set_fsdp(monkeypatch)
    kill_after_a_checkpoint(tmp_path / "two", LONG)
    if sharding == "fsdp":
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
        (code, said, error), (other, *quiet) = finish(start(2, *again))
        assert (code, other) == (2, 2) and said == "" and quiet == ["", ""]
        assert error.startswith("error: checkpoint") and error.count("\n") == 1
        assert "launch as it was written, with FSDP or without" in error
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    ended = finish(start(count, *again))
    assert [code for code, _, _ in ended] == [0] * count, ended[0]
    one, two = weights(undisturbed), weights(tmp_path / "two")
    assert apart(one, two) < 1e-3 * apart(one, load_file(PACKAGED / "model.safetensors"))
    assert journal(undisturbed).keys() == journal(tmp_path / "two").keys()


def check_shared(config, size):
    check_ranks(config, method_of(config.train.method), size)


@pytest.mark.parametrize(
    "override, fsdp, words",
    CASES["shares"],
)
def test_what_two_processes_can_not_share_is_said(override, fsdp, words, monkeypatch):
    if fsdp:
        set_fsdp(monkeypatch, FSDP_VERSION="1", FSDP_CPU_RAM_EFFICIENT_LOADING="true")
    check_shared(grpo_config(["student=embedded"]), 2)
    if fsdp:  # accelerate is set right
        assert (
            os.environ["FSDP_VERSION"] == "2"
            and os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"
        )
        with pytest.raises(ConfigError, match="start 2 or more"):
            check_shared(grpo_config(["student=embedded"]), 1)
    with pytest.raises(ConfigError, match=words):
        check_shared(grpo_config(["student=embedded", override]), 2)


def test_the_example_says_what_fsdp_needs(monkeypatch):
    """accelerate's launcher reads it, and what it hands on is what the tests here start with."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    example = CHECKOUT / "examples" / "accelerate_fsdp.yaml"
    arguments = launch_command_parser().parse_args(f"--config_file {example} train_vllm.py".split())
    handed_on = prepare_multi_gpu_env(_validate_launch_command(arguments)[0])
    assert {name: handed_on[name] for name in FSDP} == FSDP
    for name in FSDP:
        monkeypatch.setenv(name, handed_on[name])
    check_shared(grpo_config(), 2)


def test_a_minibatchs_rows_are_sharded_evenly_in_number_and_tokens():
    rows = [TrainRow((1, 2), (5,) * (1 + i * 7 % 40), (), (), reward=float(i)) for i in range(16)]
    parts = [shard_rows(rows, Ranks(rank, 4)) for rank in range(4)]
    assert [len(part) for part in parts] == [4] * 4
    assert sorted(row.reward for part in parts for row in part) == [float(i) for i in range(16)]
    tokens = [sum(len(row.completion_ids) for row in part) for part in parts]
    assert max(tokens) < 1.2 * min(tokens)


def test_rows_that_can_not_be_shared_evenly_are_padded_with_what_no_loss_sees():
    rows = [TrainRow((1, 2), (5,) * n, (-1.0,) * n, (1.0,) * n, index=n) for n in (3, 1, 4, 2, 5)]
    parts = [shard_rows(rows, Ranks(rank, 4)) for rank in range(4)]
    assert [len(part) for part in parts] == [2] * 4
    own = [row for part in parts for row in part if row.kind == "policy"]
    assert sorted(row.index for row in own) == [1, 2, 3, 4, 5]
    like = torch.zeros(2, 5)
    tokens = sum(mask_of(part, like).sum() for part in parts)
    assert tokens == sum(len(row.completion_ids) for row in rows)
    assert sum(pad_rows([row.advantages for row in part], like).sum() for part in parts) == tokens
