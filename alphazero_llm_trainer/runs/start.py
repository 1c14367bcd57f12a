"""What a training begins with, and what keeps it from beginning: all that shows before a model is
loaded.

`train`, `train --dry-run` and `az.train` call `prepare` (rows, reward, folders, settings) and then
`check_start` (keys, libraries, device, token), each once, so that what passes the one passes the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..chat.teachers import checker_model, is_remote, open_remote
from ..config.load import Config, check_read, load_training, resolve_name, user_layers, vllm_here
from ..config.refusals import refuse_conflicts
from ..config.sections import StudentModel
from ..errors import ConfigError, DataError
from ..learning.collector import scripted_teacher
from ..learning.earned import measures_perplexity
from ..learning.methods.by_name import METHODS, method_of
from ..learning.prepared import Prepared
from ..learning.size import RunSize, rank_and_size, replay_share
from ..policy.folders import (
    ADAPTER_CONFIG,
    check_critic,
    check_folder,
    read_note,
    weights_of,
)
from ..problems.load import asked, demonstrations_of, tasks_of, with_context
from ..problems.registry import open_source, with_worlds
from ..rewards.custom import JUDGE, open_reward
from ..types import Facts
from .tracking import check_tracker
from .upload import check_hub


def prepare(config: Config) -> Prepared:
    """What the run begins with: tasks that are disjoint by split.

    Raises AlphaZeroError, one sentence, where it can't begin: settings, folders, reward, rows,
    splits or gold answers.
    """
    config = check_run(config)
    train, source = config.train, open_source(config)
    config = with_context(config, source)
    # Demonstrations are the first tasks of the train split unless the source has others; questions
    # are the ones after them.
    replay = demonstrations_of(config, train.demonstrations if replay_share(config) else 0)
    start = len(replay)
    if start and not asked(source, "train", 1, start):
        raise ConfigError(
            f"train.demonstrations is {train.demonstrations:,} and source {source.name} has "
            f"{start:,} training rows, of which none is left to ask: lower it, or set "
            "train.demonstration_share=0"
        )
    questions = tasks_of(config, "train", train.num_examples, start)
    if len(questions) < train.num_examples:
        raise ConfigError(
            f"train.num_examples is {train.num_examples:,} and source {config.problems.source} has "
            f"{len(questions):,} training questions from number {start:,} on: "
            f"ask for --num {len(questions)} or fewer"
        )
    held_out = []
    for split, key in (("test", "eval_size"), ("validation", "validation_size")):
        count = getattr(train, key)
        if count and not asked(source, split, 1):
            raise DataError(
                f"{source.name} has no {split} problems: name a source with more (15% of its "
                f"questions are test, 5% validation), or ask for none (--set train.{key}=0)"
            )
        held_out.append(tasks_of(config, split, count))
    method = method_of(train.method)
    size = RunSize(config, method.supervised)
    return Prepared(config, method, size, replay, questions, *held_out)


def check_searches(config: Config, command: str) -> Config:
    """`config` as training searches have it. Raises ConfigError for settings that contradict each
    other.
    """
    method, valued = method_of(config.train.method), config.search.value is not None
    config = with_worlds(config, command, measures_perplexity(config, method), method)
    refuse_conflicts(config, "training searches", method=method, valued=valued)
    return config


def check_run(config: Config) -> Config:
    """`config` as its run has it. Raises AlphaZeroError, one sentence, where it can't begin."""
    refuse_conflicts(config, "train")
    open_reward(config.rewards, config.teachers)
    config = check_searches(config, "train")
    train = config.train
    tier = config.teacher_tiers[config.teachers.tier] if config.teachers.tier != "none" else None
    if tier is not None and tier.base_url is None:
        scripted_teacher(config)
    if config.teachers.terminal_checker:
        checker_model(config)
    check_method(config)
    method = method_of(train.method)
    refuse_conflicts(config, f"method {method.name}")
    method.check(config)
    for key, kind, folder in (
        ("train.prm", "prm", train.prm),
        ("search.value", "value", config.search.value),
    ):
        if folder is not None:
            check_critic(Path(folder), kind, f"{key} {folder}")
    value = config.search.value
    if value is not None and read_note(Path(value), "critic.json").get("head"):
        raise ConfigError(
            f"search.value {value} is a head over the states of one student, which training "
            "changes: name a value with layers of its own, as `value` trains it"
        )
    if train.student is not None:
        check_folder(Path(train.student))
    if train.push_to_hub is not None:
        check_hub(train.push_to_hub)
    # A judge's server takes seconds to answer: it is asked last, and by one process.
    if config.rewards.custom == JUDGE and rank_and_size()[0] == 0:
        open_reward(config.rewards, config.teachers, greet=True)
    return config


def check_method(config: Config) -> None:
    """Raise ConfigError where a key of `train` is the user's own, and the method, or the credit,
    doesn't read it.
    """
    train, method = config.train, method_of(config.train.method)
    unread = {}
    for name in sorted(frozenset().union(*(each.reads for each in METHODS.values()))):
        if name not in method.reads:
            flags = " or ".join(each.flag for each in METHODS.values() if name in each.reads)
            unread[f"train.{name}"] = (
                f"and train.method is {train.method}, which doesn't read it: "
                f"add {flags}, or leave it out"
            )
    if method.credits and train.credit not in method.credits:
        raise ConfigError(
            f"train.credit is {train.credit} and train.method is {train.method}: "
            f"set it to one of {', '.join(method.credits)}"
        )
    if config.rewards.pre_weight and not measures_perplexity(config, method):
        unread["rewards.pre_weight"] = (
            "and this run measures no perplexity: add --use-grpo with train.reward=combined and "
            "rewards.use_student_model=true, or leave it out"
        )
    if train.demonstrations and train.demonstration_share is None and not replay_share(config):
        unread["train.demonstrations"] = (
            "and nothing is replayed of this source: set train.demonstration_share, or leave it out"
        )
    check_read(config, command="train", searches="yes")
    config.refuse(unread)


LEAST_HELD_OUT = 100  # problems, from which on an interval says something


def load_run(path: str | Path | None = None, overrides: Iterable[str | Facts] = ()) -> Config:
    """`load_training`; where nothing that is given says `train.num_examples`, it is no more than
    the questions there are, and else the held-out sizes that nothing says follow it.
    """
    overrides = [*overrides]
    config = load_training(path, overrides)
    given = {key for layer in user_layers(path, overrides) for key in layer.get("train", {})}
    if "num_examples" in given:
        questions = max(config.train.num_examples, LEAST_HELD_OUT)
        sizes = {
            key: min(getattr(config.train, key), questions)
            for key in ("eval_size", "validation_size")
            if key not in given
        }
        return config.with_values(train=sizes)
    source, train = open_source(config), config.train
    if source.endless:
        return config
    first = train.demonstrations if replay_share(config) else 0
    there = len(asked(source, "train", train.num_examples, first))
    if not there:  # which `prepare` explains
        return config
    return config.with_values(train={"num_examples": there})


def start_of(config: Config, spec: StudentModel) -> str:
    """Where a run reads the base's weights: `train.student`, or the student's own path, also below
    an adapter.

    Raises CheckpointError where `train.student` is no student's folder.
    """
    if config.train.student is None:
        return weights_of(spec)
    started = Path(config.train.student)
    if (started / ADAPTER_CONFIG).is_file():
        return weights_of(spec)
    check_folder(started)
    return str(started)


# -- the machine -----------------------------------------------------------------------------------


def check_start(config: Config, loading: Callable[[], None] = lambda: None) -> None:
    """Raise ConfigError where `train` can't start: no key of the teachers, a library that isn't
    there, no device for the student, no memory for its weights. `loading` is called before PyTorch
    is loaded.
    """
    if is_remote(config):
        open_remote(config)
    if config.engine.backend == "vllm" and not vllm_here():
        raise ConfigError(
            "engine.backend is vllm, which is not installed: install alphazero-llm-trainer[gpu]"
        )
    check_tracker(config.train.track)
    loading()
    from ..policy.student import check_device

    name = resolve_name(config)
    spec = config.models[name]
    check_device(name, start_of(config, spec), spec)
