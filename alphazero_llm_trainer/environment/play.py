"""`vf-eval` without verifiers' own evaluation command: its flags, its folder of a run and its loop,
over `verifiers.load_environment`. No dashboard and no upload.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import verifiers.v1 as vf
from pydantic import AliasChoices, Field, SerializeAsAny, model_validator
from pydantic_config import BaseConfig
from verifiers.v1.utils.eval import plan_rollouts
from verifiers.v1.utils.logging import setup_logging
from verifiers.v1.utils.trace_store import append_episode

from ..errors import ConfigError
from ..files import make_folder, read_lines, read_object, write_json, write_whole
from ..live import Progress
from .frozen import EMBEDDED_MODEL
from .rollouts import CONFIG, TRACES


class RunConfig(BaseConfig):
    """`--run.*`"""

    name: str | None = None
    """Unset: made of the taskset, the model and eight letters."""
    dir: str | None = None
    """The run's folder in `output_dir` (unset: its name)."""


class EvalConfig(BaseConfig):
    """The options of `vf-eval`."""

    env: SerializeAsAny[vf.EnvConfig] = vf.SingleAgentEnvConfig()
    """Taskset, agents and the rest of the environment, under `--env.*`."""
    run: RunConfig = Field(default_factory=RunConfig)
    model: str = Field(EMBEDDED_MODEL, validation_alias=AliasChoices("model", "m"))
    client: vf.ClientConfig = vf.EvalClientConfig()
    sampling: vf.SamplingConfig = vf.SamplingConfig()
    select: vf.SelectCLIConfig = vf.SelectCLIConfig()
    num_rollouts: int = Field(1, ge=1, validation_alias=AliasChoices("num_rollouts", "r"))
    """Rollouts of each problem."""
    max_concurrent: int | None = Field(
        128, ge=1, validation_alias=AliasChoices("max_concurrent", "c")
    )
    """Rollouts at once, None for all."""
    verbose: bool = Field(False, validation_alias=AliasChoices("verbose", "v"))
    """verifiers' log on the terminal too."""
    push: Literal[False] = False
    output_dir: Path = Field(Path("outputs"), validation_alias=AliasChoices("output_dir", "o"))
    dry_run: bool = Field(False, exclude=True)
    """Write the configuration and end."""
    clean: bool = Field(False, exclude=True)
    """Delete what the run's folder has."""
    resume: bool = Field(False, exclude=True)
    """Play what is missing or failed in the run's folder."""

    @model_validator(mode="before")
    @classmethod
    def _narrow(cls, data: Any) -> Any:
        return vf.resolve_env_field(data, vf.narrowed_env_annotation(cls))

    @model_validator(mode="after")
    def _name_the_run(self) -> EvalConfig:
        name = f"{self.env.env_id}--{self.model}--{uuid4().hex[:8]}".replace("/", "--").lower()
        self.run.name = self.run.name or name
        self.run.dir = self.run.dir or self.run.name
        return self


def play_rollouts(config: EvalConfig) -> None:
    """Play the rollouts of a configuration; each is a line of the run's traces as it ends.

    Raises:
        ConfigError: the folder has another run's results, or none to resume.
    """
    assert config.run.dir is not None
    folder = config.output_dir / config.run.dir
    traces, saved = folder / TRACES, folder / CONFIG
    settings = config.model_dump(mode="json")
    if config.clean and not config.resume and folder.exists():
        if config.output_dir.resolve() not in folder.resolve().parents:
            raise ConfigError(f"--clean would delete {folder}: name a folder below --output-dir")
        shutil.rmtree(folder)
    if config.resume:
        if not saved.is_file():
            raise ConfigError(f"--resume: {folder} has no {CONFIG}, so there is no run to resume")
        other = sorted(key for key, own in settings.items() if read_object(saved).get(key) != own)
        if other:
            raise ConfigError(
                f"--resume: {', '.join(other)} differ from what the run of {folder} began with: "
                f"run `vf-eval @ {saved} --resume`"
            )
    elif traces.exists() and traces.stat().st_size:
        raise ConfigError(f"{folder} has results: add --resume or --clean, or name another run")
    if not config.resume:
        make_folder(saved.parent)
        write_json(saved, settings)
    if config.dry_run:
        print(f"configuration: {saved}")
        return
    level = "DEBUG" if config.verbose else "INFO"
    setup_logging(level, str(folder / "logs" / "eval.log"), console=config.verbose)
    try:
        asyncio.run(play_missing(config, folder))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


async def play_missing(config: EvalConfig, folder: Path) -> None:
    """Every rollout that the run's folder lacks."""
    env = vf.load_environment(config.env)
    tasks = list(env.taskset.select(config.select))
    rows = {}
    ended = []
    for row in read_lines(folder / TRACES):
        episode = vf.WireEpisode.model_validate(row)
        if env.complete(episode):
            rows[episode.id] = row
            ended.append(episode)
    plan = plan_rollouts(tasks, config.num_rollouts, ended)
    counted = [json.dumps(rows[episode.id]) + "\n" for _, kept, _ in plan for episode in kept]
    write_whole(folder / TRACES, "".join(counted))
    slots = [slot for task, _, owed in plan if owed for slot in env.slots(task, owed)]
    ctx = vf.ModelContext(client=config.client, model=config.model, sampling=config.sampling)
    gate = asyncio.Semaphore(config.max_concurrent) if config.max_concurrent else None
    lock, run = asyncio.Lock(), vf.EvalRunInfo(id=str(config.run.name), name=config.run.name)
    with Progress() as progress:
        progress.start(len(slots), 0, "rollout", "evaluating")

        async def ends(episode: vf.Episode) -> None:
            episode.record_run(run)
            await append_episode(folder, episode, lock)
            progress.advance()

        async with env.serving():
            await asyncio.gather(*(env.run_slot(slot, ctx, gate, ends) for slot in slots))
