"""Configuration: every number may be written as YAML 1.1 reads it, every key is documented, every
mistake is a sentence.
"""

import re
import runpy
import shutil
from operator import attrgetter
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from tables import table

from alphazero_llm_trainer.config import load
from alphazero_llm_trainer.config.load import (
    Config,
    load_answering,
    load_config,
    load_training,
    parse_override,
    read_yaml,
    shipped_path,
    split_key,
    validate_config,
)
from alphazero_llm_trainer.config.refusals import read_refusals, split_condition
from alphazero_llm_trainer.config.sections import (
    BudgetConfig,
    ModelShape,
    SearchConfig,
    TeachersConfig,
)
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.learning.methods.by_name import METHODS
from alphazero_llm_trainer.runs import plan

CASES = table("config")
CHECKOUT = Path(__file__).resolve().parents[3]


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


def keys(raw, path=()):
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from keys(value, (*path, name))
        else:
            yield (*path, name)


# -- numbers ---------------------------------------------------------------------------------------


def at(config, key):
    """The value of a dotted key; a student's or tier's name may have dots."""
    for part in split_key(key):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


def check(config, wanted):
    """Values of a configuration by dotted key."""
    assert {key: at(config, key) for key in wanted} == wanted


def test_every_float_may_be_written_with_an_exponent():
    for path in FLOATS:
        value = at(load_config(overrides=[f"{'.'.join(path)}=2e-2"]), ".".join(path))
        assert type(value) is float and value == 0.02


# -- shipped files ---------------------------------------------------------------------------------


def test_training_yaml_is_made_of_the_sections():
    made = runpy.run_path(str(CHECKOUT / "scripts" / "training_yaml.py"))["training_yaml"]()
    assert shipped_path("training.yaml").read_text(encoding="utf-8") == made
    assert set(keys(read_yaml(shipped_path("training.yaml")))) == set(LEAVES)
    assert all("# " in line for line in made.splitlines() if line and line[-1] != ":")
    # Sections by themselves have its values.
    config = load_config()
    assert SearchConfig(simulations=6) == config.search.with_values(simulations=6)
    assert BudgetConfig() == TeachersConfig().budget == config.teachers.budget
    # An edit of a student's shape is told by the values of `ModelShape`.
    assert config.models["small"].shape == ModelShape()


SECTIONS = set(load_config().model_dump())


def test_refusals_are_of_keys_that_there_are_and_are_asked_for():
    """A condition or sentence with a key that is gone, or a place that nobody names, says so."""
    config = load_config()
    code = "".join(
        file.read_text("utf-8") for file in (CHECKOUT / "alphazero_llm_trainer").rglob("*.py")
    )
    for place, refusals in read_refusals().items():
        family = re.sub(r"^(method|command) .*", r'f"\1 ', place)
        assert family in code if family != place else f'"{place}"' in code, place
        for refusal in refusals:
            conditions = [*refusal["where"], *refusal.get("each", {}).values()]
            keys = {split_condition(each)[0] for all_of in conditions for each in all_of.split("|")}
            keys |= set(re.findall(r"(?<!{){([\w.]+)", refusal["says"]))
            for key in keys:
                if key.partition(".")[0] in SECTIONS:
                    attrgetter(key)(config)
        assert all("{setting}" not in each["says"] or "each" in each for each in refusals)


def test_a_value_guides_alone_unless_rollouts_or_a_rule_are_named():
    check(load_answering(guided=True), {"search.rollout": "none", "search.select": "puct"})
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
    validate_config(config.model_dump(mode="json")).refuse(unread)  # a run that goes on


# -- order of precedence ---------------------------------------------------------------------------


def test_later_settings_win(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(CASES["file"])
    own = {"seed": 1, "train.clip_low": 0.1, "train.optimizer.epochs": 9}
    own["problems.system_prompt"] = "Be #1, please"  # comments of a file stay comments
    # Beside it nothing changed.
    usual = {"train.optimizer.batch_size": load_config().train.optimizer.batch_size}
    from_file = load_config(file)
    check(from_file, own | usual)
    assert set(from_file.models) == {*load_config().models, "mine"}
    layers = ["train.optimizer.epochs=2", {"train": {"optimizer": {"epochs": 3}}}, "seed=0"]
    over = load_config(
        file, [*layers, "student=mine", "search.budget_tokens=5", "search.budget_tokens=null"]
    )
    # An explicit 0 is a value.
    set_so = {
        "train.optimizer.epochs": 3,
        "seed": 0,
        "student": "mine",
        "search.budget_tokens": None,
    }
    check(over, own | set_so)
    card = over.model_dump(mode="json")
    assert validate_config(card).model_dump(mode="json") == card


TEXTS = [
    "Solve it. End with #### N", "Answer: 42", "a: b # c", "#", "yes", "off", "12", "1e3", "[1, 2]",
    "{x}", "- a", "'it'", '"quoted"', "@me *all* &amp | > !", " spaces ", "2024-01-01", "~",
    "one\ntwo: three", "x=y", "%", "None",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_taken_as_it_is_written(text):
    keys = """
        problems.system_prompt problems.path models.llama-3.2-3b.system_prompt
        models.embedded.prompts.gsm8k teacher_tiers.free.key_variable
    """.split()
    check(load_config(overrides=[f"{key}={text}" for key in keys]), dict.fromkeys(keys, text))


@pytest.mark.parametrize("text, value", CASES["numbers"])
def test_overrides_are_yaml(text, value):
    [found] = parse_override(f"seed={text}").values()
    assert found == value and type(found) is type(value)


def test_a_methods_recipe_lies_between_the_shipped_values_and_what_is_given(tmp_path):
    wanted = {"train.method": "expert_iteration", "train.groups": "verified"}
    check(load_training(), wanted | {"search.enough_correct": 1})
    file = tmp_path / "own.yaml"
    file.write_text("train: {num_examples: 12, method: ppo}\nsearch: {samples: 3}")
    wanted = {"train.method": "ppo", "train.groups": "chain", "train.num_examples": 12}
    check(load_training(file, ["train.credit=step"]), wanted | {"search.samples": 3})
    for method in ("expert_iteration", "rft", "grpo", "ppo", "legacy"):
        named = load_training(overrides=[f"train.method={method}"])
        assert named.train.method == method and named == load_config(recipe=f"{method}.yaml")


# -- a user's edits of the shipped files -----------------------------------------------------------


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """Replaces a text in a copy of a shipped file, which is read from then on."""
    copy = tmp_path / "alphazero_llm_trainer" / "config_files"
    shutil.copytree(shipped_path("training.yaml").parent, copy)

    def edit(text, other, name="training.yaml"):
        file = copy / name
        before = file.read_text()
        assert text in before
        file.write_text(before.replace(text, other, 1))
        return file

    fake = copy.parent / "config" / "shipped.py"
    monkeypatch.setattr("alphazero_llm_trainer.config.shipped.__file__", str(fake))
    return edit


def test_an_edit_of_training_yaml_wins_over_a_recipe(edited, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "key")
    for text, other in (
        ("tier: none", "tier: production"),
        ("kl_coefficient: 0.0", "kl_coefficient: 0.01"),
        ("simulations: 60", "simulations: 9"),
        ("batch_size: 16", "batch_size: 24"),
        ("rollout: null", "rollout: sample"),
        ("select: null", "select: ucb1"),
    ):
        edited(text, other)
    config = load_training(overrides=["train.method=grpo", "student=qwen2.5-0.5b"])
    own = {"teachers.tier": "production", "search.simulations": 9, "train.kl_coefficient": 0.01}
    recipe = {"train.method": "grpo", "train.reward": "combined", "train.optimizer.warmup": 4}
    check(config, own | recipe | {"train.optimizer.batch_size": 24})
    # What is named on a command line wins over both.
    named = load_config("grpo_correctness", ["search.simulations=5"], "grpo.yaml")
    check(named, {"teachers.tier": "none", "search.simulations": 5})
    check(load_answering(guided=True), {"search.rollout": "sample", "search.select": "ucb1"})
    # A shape as a whole.
    own = load_config().models["small"].shape.model_dump() | {"hidden": 128}
    assert load_config(recipe="sft_pancake.yaml").models["small"].shape.model_dump() != own
    edited("  shape: *tiny", f"  shape: {own}", "models.yaml")
    assert load_config(recipe="sft_pancake.yaml").models["small"].shape.model_dump() == own


@pytest.mark.parametrize("file, text, other, words", CASES["slips"])
def test_a_slip_in_a_shipped_file_is_one_sentence(edited, file, text, other, words):
    edited(text, other, file)
    for load_it in (load_training, load_answering):
        with pytest.raises(ConfigError, match=f"^.*{words}"):
            load_it()


@pytest.mark.parametrize("method", ["grpo", "legacy"])
def test_grpo_and_legacy_are_the_design_documents_methods(method, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    asked = [f"train.method={method}"]
    config = load_training(overrides=[*asked, "student=embedded"])
    weights = {"use_student_model": True, "hre_weight": 0.4, "pre_weight": 0.6}
    wanted = {f"rewards.{key}": value for key, value in weights.items()}
    wanted |= {"train.reward": "combined", "search.simulations": 3, "teachers.tier": "none"}
    check(config, wanted)
    assert (config.train.kl_coefficient > 0) == (method == "grpo")
    for more, count in (("student=qwen2.5-0.5b", 60), ("search.simulations=5", 5)):
        assert load_training(overrides=[*asked, more]).search.simulations == count


def test_a_shipped_recipe_is_named_by_config(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "key")
    monkeypatch.chdir(tmp_path)
    config = load_training("grpo_correctness", ["student=qwen2.5-0.5b"])
    wanted = {"train.method": "grpo", "train.reward": None, "train.kl_coefficient": 0}
    wanted |= {"search.simulations": 3, "teachers.tier": "none", "rewards.use_student_model": False}
    check(config, wanted)
    Path("grpo_correctness").write_text("seed: 3")  # a user's own file of that name wins
    assert load_training("grpo_correctness").seed == 3


@pytest.mark.parametrize("key, asked, ranks, tier", CASES["teachers"])
def test_teachers_auto_are_of_the_free_tier_where_its_key_is_set(
    key, asked, ranks, tier, monkeypatch
):
    monkeypatch.setenv("OPENROUTER_API_KEY", key)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    asked = ["train.method=grpo", "student=embedded", *asked]
    assert load_training(overrides=asked).teachers.tier == tier


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method, adapter, small, large", CASES["rates"])
def test_learning_rates_go_by_size_unless_they_are_named(method, adapter, small, large):
    rates = METHODS[method].rates
    settings = load_config().train.optimizer
    named = load_config(overrides=["train.optimizer.learning_rate=2e-6"]).train.optimizer
    sizes = (
        (660_000, "full", small),
        (135_000_000, "full", large),
        (3_000_000_000, "lora", adapter),
    )
    for size, trained, rate in sizes:
        assert settings.rate(rates, size, trained) == rate
        assert named.rate(rates, size, trained) == 2e-6


@pytest.mark.parametrize("overrides, cuda, vllm, ranks, backend", CASES["engines"])
def test_the_engine_is_vllm_where_it_serves_best(
    overrides, cuda, vllm, ranks, backend, monkeypatch
):
    monkeypatch.setattr(load, "cuda_here", lambda: cuda)
    for module in (load, plan):
        monkeypatch.setattr(module, "vllm_here", lambda: vllm)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    config = load_config(overrides=overrides)
    assert config.engine.backend == backend
    assert ("alphazero-llm-trainer[gpu]" in plan.describe_engine(config)) == (cuda and not vllm)


@pytest.mark.parametrize("student, cuda, source", CASES["problems"])
def test_the_problems_of_a_language_model_on_cuda_are_gsm8k(student, cuda, source, monkeypatch):
    monkeypatch.setattr(load, "cuda_here", lambda: cuda)
    student_is = f"student={student}"
    assert load_config(overrides=[student_is]).problems.source == source
    asked = load_config(overrides=[student_is, "problems.source=math"])
    assert asked.problems.source == "math"
    wanted = {"student": "embedded", "problems.source": "embedded", "search.max_tokens": 160}
    check(load_config(recipe="sft_scratch.yaml"), wanted | {"search.max_depth": 12})
