"""prime-rl's own classes over what this package hands it; skipped where prime-rl isn't installed.

Tried with prime-rl 559b4477 (0.8.0) and the verifiers that it pins, a60a606e, not with its trainer:
`PYTHONPATH=PRIME/src:PRIME/packages/prime-rl-configs/src` over a checkout PRIME, in an environment
with that verifiers, msgspec and orjson beside this package's own dependencies.
"""

import asyncio
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from itertools import islice

import pytest
import verifiers.v1 as vf
from completion_server import CompletionServer
from faults import a_job
from renderers import DefaultRendererConfig
from tables import CHECKOUT
from verifiers.v1.episode import WireEpisode
from verifiers.v1.serve import EnvServer

from alphazero_llm_trainer.environment.env import AlphaZeroEnvConfig
from alphazero_llm_trainer.policy.folders import PACKAGED
from alphazero_llm_trainer.runs.export import export_rows
from alphazero_llm_trainer.runs.sample import run_sample

pytest.importorskip("prime_rl", reason="prime-rl is not installed")
EXAMPLES = CHECKOUT / "examples"
PLAIN, TREES = "prime_rl.toml", "prime_rl_trees.toml"


@pytest.fixture(scope="module", autouse=True)
def registered():
    sys.path.insert(0, str(EXAMPLES))  # where `id = "prime_rl_trees"` is
    runpy.run_path(str(EXAMPLES / "prime_rl_trees.py"))["register"]()


def configured(folder, *names, **changes):
    """The files laid over each other, with other values for some of their keys."""
    from prime_rl.configs.rl import RLConfig
    from prime_rl.utils.config import cli

    words = []
    for name in names:
        text = (EXAMPLES / name).read_text("utf-8")
        for key, value in changes.items():
            text = re.sub(f"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        (folder / name).write_text(text, "utf-8")
        words += ["@", str(folder / name)]
    return cli(RLConfig, args=words)


async def trained(config, client, tasks):
    """(tokens so far, log-probability, advantage) of each token of the batch that prime-rl's
    trainer gets of the first tasks of the one train source.
    """
    from prime_rl.orchestrator.envs import TrainEnvs
    from prime_rl.orchestrator.train_sink import TrainSink
    from prime_rl.orchestrator.types import Progress

    [source] = config.orchestrator.train.source
    server = EnvServer(source.env, "tcp://127.0.0.1:0")
    running = asyncio.create_task(server.run())
    envs = TrainEnvs([source], {("train", source.name): server.address}, policy_pool=None)
    await envs.start()
    [env] = envs
    sink = TrainSink(
        config.orchestrator, tokenizer=None, train_envs=envs, mm_token_type_ids_mapping=None,
        progress=Progress(), batch_size=tasks * source.group_size, token_batch_size=None,
    )  # fmt: skip
    batch = None
    try:
        for number, task in enumerate(islice(env.tasks, tasks)):
            for _ in range(source.group_size):
                data = task.data.model_dump(mode="json")
                episode = await env.run(client, "student", None, data)
                assert episode.ok and episode.task.key == task.key, episode.errors
                episode.env.name, episode.group = env.name, vf.GroupInfo(id=str(number))
                work = vf.TrainWorkInfo(step=1, policy=vf.PolicySpan(start=0, end=0))
                episode.record_run(vf.TrainRunInfo(id="run", work=work))
                batch = await sink.add(episode)
    finally:
        await env.env_client.close()
        running.cancel()
        await running
    return Counter(
        (tuple(one.token_ids[: at + 1]), one.logprobs[at], one.advantages[at])
        for one in batch.samples
        for at, counts in enumerate(one.mask)
        if counts and (one.rl_weights is None or one.rl_weights[at])
    )


def test_the_files_are_prime_rls(tmp_path):
    from prime_rl.configs.orchestrator import OrchestratorConfig
    from prime_rl.utils.config import dump_resolved_config

    [source] = configured(tmp_path, PLAIN).orchestrator.train.source
    assert isinstance(source.env, AlphaZeroEnvConfig) and source.algo.type == "grpo"
    trees = configured(tmp_path, PLAIN, TREES).orchestrator
    again = OrchestratorConfig.model_validate(dump_resolved_config(trees))  # by the launcher
    [source] = again.train.source
    assert (source.env.taskset.id, source.algo.type) == ("prime_rl_trees", "tree")


def test_the_launcher_starts_an_orchestrator_that_knows_the_algorithm(
    monkeypatch,
):
    import prime_rl.entrypoints.rl

    def launch():
        words = "orchestrator --algo.type other".split()
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode and "'tree'" in done.stdout + done.stderr

    monkeypatch.setattr(prime_rl.entrypoints.rl, "main", launch)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"])
    runpy.run_path(str(EXAMPLES / "prime_rl_trees.py"), run_name="__main__")


def test_tokens_train_with_the_advantages_of_their_trees(tmp_path):
    """Each node counts once, with the file's log-probabilities and advantages."""
    run_sample(a_job(12), tmp_path / "data")
    file = tmp_path / "rollouts.jsonl"
    count = export_rows(tmp_path / "data", "rollouts", file)
    wanted = Counter()
    for line in file.read_text().splitlines():
        [trace] = WireEpisode.model_validate_json(line).traces
        paths = []
        for node in trace.nodes:
            before = () if node.parent is None else paths[node.parent]
            paths.append((*before, *node.token_ids))
            for at, advantage in enumerate(node.advantages or ()):
                seen = paths[-1][: len(before) + at + 1]
                wanted[seen, node.logprobs[at], advantage] += bool(advantage)
    config = configured(tmp_path, PLAIN, TREES, file=f"'{file}'")
    got = asyncio.run(trained(config, vf.EvalClientConfig(), count))
    assert got == +wanted and len(got) > 100
    file.write_text(file.read_text().replace('"advantages"', '"other"'))
    with pytest.raises(ValueError, match="sampled tokens without an advantage"):
        asyncio.run(trained(config, vf.EvalClientConfig(), 1))


def test_whole_responses_train_by_grpo(monkeypatch, tmp_path):
    """The taskset without search, behind the training client."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    config = configured(tmp_path, PLAIN, source="'embedded'\nlevels = [4]", group_size="4")
    server = CompletionServer()
    client = vf.TrainClientConfig(
        base_url=server.url, renderer=DefaultRendererConfig(), renderer_model_name=str(PACKAGED)
    )
    try:
        got = asyncio.run(trained(config, client, 4))
        engine = server.students["student"].engine
        for ids, logprob, advantage in got:
            [[own]] = server.wait(engine.score([(ids[:-1], ids[-1:])]))
            assert logprob == pytest.approx(own, abs=1e-4) and abs(advantage) > 0.1
    finally:
        server.close()
    assert got
