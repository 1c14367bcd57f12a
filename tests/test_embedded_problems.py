import pytest

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.problems import embedded
from alphazero_llm_trainer.problems.load import load_tasks, tasks_of
from tests.support import check_solution

MANY = 2000

PINNED = {
    "embedded/train/1/0": (
        "Zoe owns 22 books and Ben owns 9 fewer than that. Mia has 2 fewer books than Ben. How many "
        "books does Mia have?",
        "22 - 9 = 13\n13 - 2 = 11\n#### 11",
    ),
    "embedded/arena/2/11": (
        "Mia owns 8 coins. A week later she has three times as many coins. The way home takes 22 "
        "minutes. Ben has 7 more coins than Mia. What is the number of coins they have together?",
        "8 * 3 = 24\n24 + 7 = 31\n24 + 31 = 55\n#### 55",
    ),
    "embedded/test/4/42": (
        "There are 6 shells in each of the 4 bags of Zoe. She sells half of the shells. Max takes 2 bags "
        "with 4 shells in each from her. She splits the shells equally into 2 bags and keeps only one "
        "bag. What is the number of shells that Zoe has now?",
        "4 * 6 = 24\n24 / 2 = 12\n2 * 4 = 8\n12 - 8 = 4\n4 / 2 = 2\n#### 2",
    ),
}


@pytest.fixture(scope="module")
def by_split():
    return {split: embedded.load(split, MANY, (1, 2, 3, 4)) for split in embedded.SPLITS}


def test_splits_share_no_solution_and_no_question(by_split):
    for what in (lambda t: t.solution, lambda t: t.problem.question):
        seen = {split: {what(t) for t in tasks} for split, tasks in by_split.items()}
        assert len(set.union(*seen.values())) == sum(len(s) for s in seen.values())


def test_every_gold_follows_from_its_own_steps_and_its_question(by_split):
    for task in (t for tasks in by_split.values() for t in tasks):
        assert check_solution(task.solution, task.problem.question), task
        assert task.solution.endswith(f"\n#### {task.gold}")
        assert 1 <= int(task.gold) <= embedded.MAX_RESULT
        assert task.solution.count("\n") in embedded.LEVELS[task.problem.level]


def test_the_same_arguments_give_the_same_task_in_any_order():
    first = [embedded.build("arena", i, 2) for i in range(50)]
    assert [embedded.build("arena", i, 2) for i in reversed(range(50))] == first[::-1]
    assert embedded.load("arena", 10, (2,), start=40) == first[40:]


@pytest.mark.parametrize("task_id", sorted(PINNED))
def test_the_generator_still_writes_what_it_wrote(task_id):
    # The shipped student's manifest and saved trees name tasks by id: a changed text would make them mean other tasks.
    task = embedded.from_id(task_id)
    assert (task.problem.question, task.solution) == PINNED[task_id]


# -- structures --------------------------------------------------------------------------------------------------------


def test_held_out_structures_are_in_one_split_alone():
    tasks = {split: embedded.load(split, 120, (1, 2, 3), structures=split) for split in embedded.SPLITS}
    found = {split: {embedded.structure_of(task.problem.id) for task in tasks[split]} for split in tasks}
    for split, others in found.items():
        assert len(others) > 10
        assert all(embedded.split_of_structure(structure) == split for structure in others)
        assert all(embedded.split_of(task.solution) == split for task in tasks[split])
        for task in tasks[split][:10]:
            assert embedded.from_id(task.problem.id) == task
    assert sum(map(len, found.values())) == len(set().union(*found.values()))
    # Without it a split has structures of every split.
    usual = {embedded.structure_of(task.problem.id) for task in embedded.load("test", 120)}
    assert {embedded.split_of_structure(structure) for structure in usual} == set(embedded.SPLITS)


def test_the_configuration_holds_structures_out(tmp_path):
    config = load_config(overrides=["problems.hold_out=structures"])
    for split in embedded.SPLITS:
        assert tasks_of(config, split, 5, 3) == embedded.load(split, 5, start=3, structures=split)
    assert tasks_of(load_config(), "test", 5) == embedded.load("test", 5)
    with pytest.raises(ConfigError, match=r"problems\.hold_out is 'structures' and source gsm8k knows questions"):
        load_tasks("gsm8k", "test", 1, path=str(tmp_path), hold_out="structures")
