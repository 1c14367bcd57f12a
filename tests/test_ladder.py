"""The ladder: its recipe, its stages as commands, and what is read off their results."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import Config, load_config, read_yaml, shipped
from alphazero_llm_trainer.errors import TrainingError
from alphazero_llm_trainer.report.ladder import picture, result_markdown
from alphazero_llm_trainer.training.ladder import LadderStopped, Seed, climb, rung_names
from alphazero_llm_trainer.training.ladder_report import collect, mean_over_seeds


def recipe(**ladder: Any) -> Config:
    return load_config(overrides=[read_yaml(shipped("ladder.yaml")), {"ladder": ladder}])


def a_seed(path: Path, seed: int, config: Config, said: list[str] | None = None, stop: bool = False) -> Seed:
    file = path / "recipe.json"
    file.write_text(json.dumps(config.model_dump(mode="json")))
    folder = path / f"seed-{seed}"
    folder.mkdir(exist_ok=True)
    return Seed(folder, seed, config, file, [].append if said is None else said.append, lambda: stop)


def test_the_recipe_is_for_problems_of_4_to_6_steps_and_a_budget_that_is_compared() -> None:
    config = recipe()
    assert config.problems.levels == (3, 4) and config.train.grpo.credit == "process"
    assert config.ladder.budget_tokens in config.ladder.budgets and config.ladder.num >= 500
    assert {"mcts", "greedy", "majority", "best-of-n", "adaptive-best-of-n", "early-abort"} <= {*config.ladder.methods}


@pytest.mark.parametrize("key", ["train.prm.collect.questions", "train.prm.questions"])
def test_what_is_set_goes_over_the_recipe_by_its_name_of_today_and_of_before(key: str) -> None:
    assert load_config(recipe="ladder.yaml").train.prm.collect.questions == 1000
    assert load_config(None, [f"{key}=48"], "ladder.yaml").train.prm.collect.questions == 48


def test_a_stage_runs_once_and_leaves_its_log(tmp_path: Path) -> None:
    said: list[str] = []
    seed = a_seed(tmp_path, 7, recipe(), said)
    out = seed.path / "tables"
    # A real command that ends quickly with an error: its last line is what the user reads.
    with pytest.raises(TrainingError, match=r"stage broken of seed 7 ended with exit code 2.*no-such-folder"):
        seed.stage(
            "broken", ["export", "--kind", "all", "--data", "no-such-folder", "--out", str(out)], out, configured=False
        )
    assert said == ["seed 7: broken"] and "no-such-folder" in (seed.path / "broken.log").read_text()
    done = seed.path / "done.json"
    done.write_text("{}")
    seed.stage("finished", ["no such command"], done)
    assert said == ["seed 7: broken"]


def children(parent: int) -> list[int]:
    """The processes that `parent` has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended just now
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
def test_a_ladder_that_is_killed_takes_its_stage_along(tmp_path: Path) -> None:
    words = ["ladder", "--out", str(tmp_path / "ladder"), "--seeds", "7", "--jobs", "1"]
    driver = subprocess.Popen(
        [sys.executable, "-m", "alphazero_llm_trainer", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 120
    while not (stages := children(driver.pid)) and driver.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    assert stages
    time.sleep(3)  # it asks for the signal as one of the first things it does
    driver.kill()
    driver.wait()
    while any(map(alive, stages)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(alive, stages))


def test_where_a_base_is_kept_rungs_are_adapters_and_base_is_the_student_as_it_comes(tmp_path: Path) -> None:
    served = load_config(
        overrides=[
            read_yaml(shipped("ladder.yaml")),
            "student=mine",
            "models.mine.path=folder",
            "models.mine.quantization=none",
            "train.adapter=lora",
            "engine.backend=vllm-server",
        ]
    )
    seed, plain = a_seed(tmp_path, 7, served), a_seed(tmp_path, 8, recipe())
    assert [seed.student(rung) for rung in range(4)] == [
        None,
        seed.path / "sft" / "adapter",
        seed.run_folder("ppo") / "adapter",
        seed.run_folder("grpo") / "adapter",
    ]
    assert plain.student(0) == plain.path / "base" and plain.student(3) == plain.run_folder("grpo") / "student"
    # From nothing there is no adapter yet, whatever comes of it later.
    quantised = ["models.embedded.quantization=nf4", "models.embedded.adapter=lora"]
    embedded = a_seed(tmp_path, 9, load_config(overrides=[read_yaml(shipped("ladder.yaml")), *quantised]))
    assert embedded.student(1) == embedded.path / "sft"
    needs = {stage.name: stage.needs for stage in seed.stages()}
    assert "base" not in needs and needs["eval base"] == ()
    assert {stage.name: stage.needs for stage in plain.stages()}["eval base"] == ((8, "base"),)


def test_a_quantised_students_prm_is_over_its_own_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(Seed, "stage", lambda self, name, arguments, finished, configured=True: ran.append(arguments))
    for quantization, own in (("nf4", True), ("none", False)):
        mine = ["student=mine", "models.mine.path=folder", f"models.mine.quantization={quantization}"]
        one, other = (
            a_seed(tmp_path, n, load_config(overrides=[read_yaml(shipped("ladder.yaml")), *mine])) for n in (1, 2)
        )
        one.partner = other
        [prm] = [stage for stage in one.stages() if stage.name == "prm"]
        prm.run()
        assert prm.needs == (((1, "sft"),) if own else ((1, "sft"), (2, "sft")))
        assert str(one.path / "sft" / "adapter" if own else one.path / "sft") in ran[-1]
        assert (f"train.prm.base={other.path / 'sft'}" in ran[-1]) != own


def test_a_stop_runs_nothing_more_and_a_failure_stops_the_other_seeds(tmp_path: Path) -> None:
    with pytest.raises(LadderStopped):
        climb([a_seed(tmp_path, 7, recipe(), stop=True)], 1)
    seeds = [a_seed(tmp_path, n, recipe()) for n in (1, 2)]
    seeds[0].recipe = tmp_path / "missing.json"
    seeds[1].recipe = tmp_path / "missing.json"
    with pytest.raises(TrainingError, match=r"missing\.json"):
        climb(seeds, 1)
    assert not [*seeds[1].path.glob("*.log")]


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def row(method: str, budget: int, outcomes: str, sampled: float = 40.0, scored: float = 0.0) -> dict[str, Any]:
    return {
        "method": method, "budget": budget, "outcomes": outcomes, "sampled_tokens": sampled, "scored_tokens": scored
    }  # fmt: skip


@pytest.fixture
def climbed(tmp_path: Path) -> list[Seed]:
    """Two seeds of four problems with hand-made results."""
    config = recipe(
        num=4, budgets=[100], budget_tokens=100, verifiers=["calculator"], methods=["greedy", "majority", "mcts"]
    )
    seeds = [a_seed(tmp_path, n, config) for n in (7, 8)]
    for seed in seeds:
        for name, outcomes in (("base", "0000"), ("sft", "1000"), ("ppo", "1000")):
            write(seed.evaluation(name) / "results.json", {"rows": [row("greedy", 100, outcomes)]})
        rows = [row("greedy", 100, "1100"), row("majority", 100, "1111"), row("mcts", 100, "1110", 50.0, 20.0)]
        write(seed.evaluation("calculator") / "results.json", {"rows": rows})
        write(seed.prm / "prm.json", {"cost": {"sampled_tokens": 1000}, "test": {}})
        write(seed.path / "times.json", {"base": 1.0})
        for method in ("grpo", "ppo"):
            run = seed.run_folder(method)
            write(run / "run.json", {"search_cost": {"sampled_tokens": 3000}})
            (run / "metrics.jsonl").write_text('{"samples": 60}\n{"validation_accuracy": 0.5}\n{"samples": 40}\n')
    return seeds


def test_rungs_are_paired_with_the_one_below_and_what_is_not_reached_says_so(climbed: list[Seed]) -> None:
    ladder = collect(climbed, "alphazero-llm-trainer ladder", 60.0)
    assert [rung["name"] for rung in ladder["rungs"]] == list(rung_names(climbed[0].config))
    assert [rung["accuracy"][0] for rung in ladder["rungs"]] == [0.0, 0.25, 0.25, 0.5, 0.75]
    assert ladder["rungs"][2]["gain"] == [0.0, 0.0, 0.0]
    assert ladder["rungs"][4]["tokens"] == 70.0 and ladder["rungs"][3]["training_tokens"] == 4000
    assert ladder["rungs"][0]["accuracy"][2] > 0  # none of 4 right is no certainty
    text = result_markdown(ladder)
    # The interval of four problems leaves out 0 for none of the gains.
    assert text.startswith("0 of 4 rungs are clearly above the one below; NOT SFT, +PPO")
    assert "NOT reached, mcts above: greedy with calculator at 100 tokens: +0.250" in text
    assert "; majority with calculator at 100 tokens: -0.250" in text
    assert picture(ladder).count('class="chart"') == 2 and "+weighted SFT (PRM) +MCTS" in picture(ladder)


def test_a_rung_is_named_by_what_runs() -> None:
    named = rung_names(recipe())
    assert named[3:] == ("+weighted SFT (PRM)", "+weighted SFT (PRM) +MCTS")
    for override in ("train.grpo.importance=true", "train.grpo.negative_weight=0.3"):
        assert rung_names(load_config(None, [override], "ladder.yaml"))[3] == "+GRPO (PRM)"


def test_ppo_gets_the_tokens_of_grpo_and_of_its_prm(climbed: list[Seed]) -> None:
    # 30 tokens a sample; 4,000 tokens are 133 samples.
    samples = climbed[0].config.train.ppo.samples
    assert climbed[0].ppo_questions() == round(4000 / (30 * samples))


def test_seeds_are_averaged_by_problem() -> None:
    assert mean_over_seeds(["110", "100"]) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "3"], "--seeds"),
        (["--jobs", "0"], "--jobs is 0"),
        (["--seeds", "7", "7"], "name each once"),
        (["--resume"], "found no ladder"),
        (["--set", "ladder.num=0"], r"ladder.num is 0"),
        (["--set", "ladder.budget_tokens=100"], "take one of ladder.budgets"),
        (["--set", "ladder.methods=[greedy, majority]"], "name greedy, mcts"),
        (["--set", "ladder.verifiers=[oracle]"], "'oracle'"),
        (["--set", "ladder.ppo_overrides=[train.ppo.rows=3]"], "train.ppo.rows"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ladder", "--out", str(tmp_path / "ladder"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "ladder").exists()
