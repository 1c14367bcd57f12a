"""Configuration: every number may be written as YAML 1.1 reads it, every key is documented, every
mistake is a sentence.
"""

import shutil
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from tables import table

from alphazero_llm_trainer.config import load
from alphazero_llm_trainer.config.load import (
    Config,
    flat,
    load_answering,
    load_config,
    load_training,
    parse_override,
    parts_of,
    read_yaml,
    shipped,
    validate,
)
from alphazero_llm_trainer.config.sections import (
    BudgetConfig,
    SearchConfig,
    TeachersConfig,
)
from alphazero_llm_trainer.config.shipped import shipped_section
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.learning.methods.registry import METHODS
from alphazero_llm_trainer.runs import plan

CASES = table("config")


def leaves(section, path=()):
    """Every field of the configuration that is not itself a section. `models` and `teacher_tiers`
    have own files.
    """
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, (*path, name))
        elif name not in ("models", "teacher_tiers"):
            yield (*path, name), field


LEAVES = dict(leaves(Config))


def plain_types(annotation):
    """The types inside unions and Annotated."""
    inner = get_args(annotation)
    return {annotation} if not inner else {kind for part in inner for kind in plain_types(part)}


FLOATS = [path for path, field in LEAVES.items() if float in plain_types(field.annotation)]


def value_at(config, path):
    for part in path:
        config = getattr(config, part)
    return config


def keys(raw, path=()):
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from keys(value, (*path, name))
        else:
            yield (*path, name)


def refused(caught, *words):
    """One sentence that names what is wrong."""
    text = str(caught.value)
    assert "\n" not in text and 10 < len(text) < 400, text
    for word in words:
        assert word in text, (word, text)


# -- numbers ---------------------------------------------------------------------------------------


def test_every_float_may_be_written_with_an_exponent():
    for path in FLOATS:
        value = value_at(load_config(overrides=[f"{'.'.join(path)}=2e-2"]), path)
        assert type(value) is float and value == 0.02


# -- shipped files ---------------------------------------------------------------------------------


def test_training_yaml_documents_every_key_and_no_other():
    written = set(keys(read_yaml(shipped("training.yaml"))))
    assert written == set(LEAVES)


def test_a_configuration_survives_json():
    config = load_config(overrides=["search.exploration=2.5", "problems.levels=[1,2]"])
    assert validate(config.model_dump(mode="json")) == config


def test_a_value_guides_alone_unless_rollouts_or_a_rule_are_named():
    search = load_answering(guided=True).search
    assert (search.rollout, search.select) == ("none", "puct")
    named = {"search": {"rollout": "sample", "select": "ucb1"}}
    search = load_answering(overrides=[named], guided=True).search
    assert (search.rollout, search.select) == ("sample", "ucb1")


def test_what_a_recipe_or_the_student_says_is_nobody_s_own():
    """A key that nothing reads is refused where it is the user's, and differs."""
    unread = {"search.simulations": "unread", "search.samples": "unread"}
    for overrides in ([], ["search.simulations=3", "student=embedded", "search.samples=4"]):
        load_training(overrides=["train.method=grpo", *overrides]).refuse(unread)
    load_config("grpo_correctness").refuse(unread)
    config = load_config(overrides=["search.samples=8"])
    with pytest.raises(ConfigError, match=r"search\.samples is 8, unread"):
        config.refuse(unread)
    validate(config.model_dump(mode="json")).refuse(unread)  # a run that goes on


# -- order of precedence ---------------------------------------------------------------------------


def test_later_settings_win(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "seed: 1\ntrain:\n  clip_low: 0.1\n  optimizer:\n    epochs: 9\nmodels:\n  mine:\n    "
        "path: ./somewhere\n"
    )
    assert load_config().seed == 7
    from_file = load_config(file)
    assert (from_file.seed, from_file.train.optimizer.epochs, from_file.train.clip_low) == (
        1,
        9,
        0.1,
    )
    # Beside it nothing changed.
    assert from_file.train.optimizer.batch_size == load_config().train.optimizer.batch_size
    assert set(from_file.models) == {*load_config().models, "mine"}
    over = load_config(
        file,
        [
            "train.optimizer.epochs=2",
            {"train": {"optimizer": {"epochs": 3}}},
            "seed=5",
            "student=mine",
        ],
    )
    assert (over.seed, over.train.optimizer.epochs, over.train.clip_low, over.student) == (
        5,
        3,
        0.1,
        "mine",
    )
    assert load_config(overrides=["seed=2", "seed=0"]).seed == 0  # an explicit 0 is a value
    assert (
        load_config(
            overrides=["search.budget_tokens=5", "search.budget_tokens=null"]
        ).search.budget_tokens
        is None
    )


TEXTS = [
    "Solve it. End with #### N", "Answer: 42", "a: b # c", "#", "yes", "off", "12", "1e3", "[1, 2]", "{x}", "- a", "'it'",
    '"quoted"', "@me *all* &amp | > !", " spaces ", "2024-01-01", "~", "one\ntwo: three", "x=y", "%", "None",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_taken_as_it_is_written(text):
    keys = """
        problems.system_prompt problems.path models.llama-3.2-3b.system_prompt
        models.embedded.prompts.gsm8k teacher_tiers.free.key_variable
    """.split()
    whole = load_config(overrides=[f"{key}={text}" for key in keys])
    for key in keys:
        config = whole
        for part in parts_of(key):
            config = config[part] if isinstance(config, dict) else getattr(config, part)
        assert config == text


def test_comments_of_a_file_stay_comments(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        '# mine\nseed: 3 # of all\nproblems: # rows\n  system_prompt: "Be #1, please" # why\n  '
        "source: gsm8k # real\n"
    )
    config = load_config(file)
    assert (config.seed, config.problems.system_prompt, config.problems.source) == (
        3,
        "Be #1, please",
        "gsm8k",
    )


@pytest.mark.parametrize(
    "text, value",
    CASES["numbers"],
)
def test_numbers_of_yaml_are_numbers(text, value):
    [found] = parse_override(f"seed={text}").values()
    assert found == value and type(found) is type(value)


def test_overrides_are_yaml():
    assert parse_override("a.b=[1, 2]") == {"a": {"b": [1, 2]}} and parse_override("a=x=y") == {
        "a": "x=y"
    }
    assert parse_override("a=") == {"a": None} and parse_override("a=false") == {"a": False}
    assert parse_override("models.llama-3.2-3b.path=x") == {
        "models": {"llama-3.2-3b": {"path": "x"}}
    }


def test_a_methods_recipe_lies_between_the_shipped_values_and_what_is_given(tmp_path):
    config = load_training()
    assert (config.train.method, config.train.groups, config.search.enough_correct) == (
        "expert_iteration",
        "verified",
        1,
    )
    (tmp_path / "own.yaml").write_text(
        "train: {num_examples: 12, method: ppo}\nsearch: {samples: 3}"
    )
    own = load_training(tmp_path / "own.yaml", ["train.credit=step"])
    assert (own.train.method, own.train.groups, own.train.num_examples, own.search.samples) == (
        "ppo",
        "chain",
        12,
        3,
    )
    for method in ("expert_iteration", "rft", "grpo", "ppo", "legacy"):
        named = load_training(overrides=[f"train.method={method}"])
        assert named.train.method == method and named == load_config(recipe=f"{method}.yaml")


# -- a user's edits of the shipped files -----------------------------------------------------------


NO_RECIPES = ("training", "models", "teacher_models", "replaced", "grpo_correctness")  # by name


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """Replaces a text in a copy of a shipped file, which is read from then on."""
    copy = tmp_path / "alphazero_llm_trainer" / "config_files"
    shutil.copytree(shipped("training.yaml").parent, copy)

    def edit(text, other, name="training.yaml"):
        file = copy / name
        before = file.read_text()
        assert text in before
        file.write_text(before.replace(text, other, 1))
        shipped_section.cache_clear()
        return file

    fake = copy.parent / "config" / "shipped.py"
    monkeypatch.setattr("alphazero_llm_trainer.config.shipped.__file__", str(fake))
    yield edit
    shipped_section.cache_clear()


def test_edits_are_told_by_the_values_that_recipes_replace():
    came = dict(flat(read_yaml(shipped("replaced.yaml"))))
    files = read_yaml(shipped("training.yaml")) | {"models": read_yaml(shipped("models.yaml"))}
    now = dict(flat(files))
    assert {key: now[key] for key in came} == came, "replaced.yaml has the files' own values"
    files = shipped("training.yaml").parent.glob("*.yaml")
    recipes = [file for file in files if file.stem not in NO_RECIPES and "gpu" not in file.stem]
    layers = [*map(read_yaml, recipes), load.GUIDED]
    replaced = {key for layer in layers for key, _ in flat(layer)}
    assert replaced - {"train.method"} == set(came), "replaced.yaml has the keys of all recipes"


def test_an_edited_shape_wins_over_a_recipe_as_a_whole(edited):
    recipe = load_config(recipe="sft_pancake.yaml").models["small"].shape
    own = load_config().models["small"].shape
    assert recipe != own is not None
    edited("  shape: *tiny", f"  shape: {own.model_dump() | {'hidden': 128}}", "models.yaml")
    again = load_config(recipe="sft_pancake.yaml").models["small"].shape
    assert again == own.changed(hidden=128)


def test_an_edit_of_training_yaml_wins_over_a_recipe(edited, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "key")
    edited("tier: none", "tier: production")
    edited("kl_coefficient: 0.0", "kl_coefficient: 0.01")
    edited("simulations: 60", "simulations: 9")
    edited("batch_size: 16", "batch_size: 24")
    config = load_training(overrides=["train.method=grpo", "student=qwen2.5-0.5b"])
    train = config.train
    assert (config.teachers.tier, config.search.simulations) == ("production", 9)
    assert (train.kl_coefficient, train.optimizer.batch_size) == (0.01, 24)
    assert (train.method, train.reward, train.optimizer.warmup) == ("grpo", "combined", 4)
    # What is named on a command line wins over both.
    named = load_config("grpo_correctness", ["search.simulations=5"], "grpo.yaml")
    assert (named.teachers.tier, named.search.simulations) == ("none", 5)
    edited("rollout: null", "rollout: sample")
    edited("select: null", "select: ucb1")
    search = load_answering(guided=True).search
    assert (search.rollout, search.select) == ("sample", "ucb1")


@pytest.mark.parametrize(
    "text, other, words",
    CASES["slips"],
)
def test_a_slip_in_training_yaml_is_one_sentence(edited, text, other, words):
    edited(text, other)
    for load_it in (load_training, load_answering):
        with pytest.raises(ConfigError) as caught:
            load_it()
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_slip_in_models_yaml_is_one_sentence(edited):
    edited("dtype: float32 # ", "dtyp: float32 # ", "models.yaml")
    with pytest.raises(ConfigError, match=r"models\.embedded\.dtyp: did you mean dtype\?"):
        load_config()
    file = edited("dtyp: float32", "dtype: float32\n  dtype: float16", "models.yaml")
    with pytest.raises(ConfigError, match=f"{file}, line .*dtype comes twice"):
        load_config()


@pytest.mark.parametrize("method", ["grpo", "legacy"])
def test_grpo_and_legacy_are_the_design_documents_methods(method, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    config = load_training(overrides=[f"train.method={method}", "student=embedded"])
    rewards = config.rewards
    assert config.train.reward == "combined" and rewards.use_student_model
    assert (rewards.hre_weight, rewards.pre_weight) == (0.4, 0.6)
    assert (config.train.kl_coefficient > 0) == (method == "grpo")
    assert (config.search.simulations, config.teachers.tier) == (3, "none")
    chat = load_training(overrides=[f"train.method={method}", "student=qwen2.5-0.5b"])
    assert chat.search.simulations == 60
    assert (
        load_training(
            overrides=[f"train.method={method}", "search.simulations=5"]
        ).search.simulations
        == 5
    )


def test_a_shipped_recipe_is_named_by_config(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "key")
    monkeypatch.chdir(tmp_path)
    config = load_training("grpo_correctness", ["student=qwen2.5-0.5b"])
    assert (config.train.method, config.train.reward, config.train.kl_coefficient) == (
        "grpo",
        None,
        0,
    )
    assert (config.search.simulations, config.teachers.tier, config.rewards.use_student_model) == (
        3,
        "none",
        False,
    )
    Path("grpo_correctness").write_text("seed: 3")  # a user's own file of that name wins
    assert load_training("grpo_correctness").seed == 3


def test_teachers_auto_are_of_the_free_tier_where_its_key_is_set(
    monkeypatch,
):
    asked = ["train.method=grpo", "student=embedded"]
    for key, more, tier in (
        ("", [], "none"),
        ("key", [], "free"),
        ("key", ["teachers.tier=none"], "none"),
        ("key", ["search.mode=token"], "none"),
        ("key", ["train.groups=verified"], "none"),
    ):
        monkeypatch.setenv("OPENROUTER_API_KEY", key)
        assert load_training(overrides=[*asked, *more]).teachers.tier == tier
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert load_training(overrides=asked).teachers.tier == "none"


# -- mistakes --------------------------------------------------------------------------------------


def test_learning_rates_go_by_size_unless_they_are_named():
    settings = load_config().train.optimizer
    for method, adapter, small, large in (
        ("grpo", 5e-4, 5e-4, 1e-5),
        ("ppo", 3e-4, 3e-4, 1e-5),
        ("rft", 5e-4, 5e-4, 5e-5),
        ("alphazero", 5e-4, 2e-3, 5e-5),
    ):
        rates = METHODS[method].rates
        assert settings.rate(rates, 660_000, "full") == small
        assert settings.rate(rates, 135_000_000, "full") == large
        assert settings.rate(rates, 3_000_000_000, "lora") == adapter
    named = load_config(overrides=["train.optimizer.learning_rate=2e-6"]).train.optimizer
    assert {named.rate(rates, size, "full") for size in (660_000, 135_000_000)} == {2e-6}


def test_a_section_by_itself_has_the_shipped_values():
    config = load_config()
    assert SearchConfig(simulations=6) == config.search.changed(simulations=6)
    assert BudgetConfig() == TeachersConfig().budget == config.teachers.budget


@pytest.mark.parametrize(
    "overrides, cuda, vllm, ranks, backend",
    CASES["engines"],
)
def test_the_engine_is_vllm_where_it_serves_best(
    overrides,
    cuda,
    vllm,
    ranks,
    backend,
    monkeypatch,
):
    monkeypatch.setattr(load, "cuda_here", lambda: cuda)
    for module in (load, plan):
        monkeypatch.setattr(module, "vllm_here", lambda: vllm)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    config = load_config(overrides=overrides)
    assert config.engine.backend == backend
    told = plan.engine(config)
    assert ("alphazero-llm-trainer[gpu]" in told) == (cuda and not vllm)


@pytest.mark.parametrize(
    "student, cuda, source",
    [
        ("auto", False, "embedded"),
        ("auto", True, "gsm8k"),
        ("qwen3-4b", True, "gsm8k"),
        ("qwen3-4b", False, "embedded"),
        ("embedded", True, "embedded"),
    ],
)
def test_the_problems_of_a_language_model_on_cuda_are_gsm8k(student, cuda, source, monkeypatch):
    monkeypatch.setattr(load, "cuda_here", lambda: cuda)
    student_is = f"student={student}"
    assert load_config(overrides=[student_is]).problems.source == source
    asked = load_config(overrides=[student_is, "problems.source=math"])
    assert asked.problems.source == "math"


def test_sft_from_scratch_on_cuda_is_the_embedded_student_on_its_problems(
    monkeypatch,
):
    monkeypatch.setattr(load, "cuda_here", lambda: True)
    config = load_config(recipe="sft_scratch.yaml")
    limits = config.search.max_tokens, config.search.max_depth
    assert (config.student, config.problems.source, *limits) == ("embedded", "embedded", 160, 12)
