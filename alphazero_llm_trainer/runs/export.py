"""Tree journals as training sets for other trainers: Parquet tables for `datasets`, and whole trees
as verifiers' episodes.

An episode has the layout of verifiers 0.4 (`verifiers.v1.episode.Episode`, trace version 1), that
of `traces.jsonl` which `vf-eval` writes and prime-rl's trainer reads: one a line, with one trace,
whose nodes are the tree's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from ..config.load import load_config
from ..config.refusals import refuse_conflicts
from ..errors import ConfigError, DataError
from ..files import read_object
from ..grading.answers import extract, normalize
from ..learning.credited_rows import credit_tokens
from ..learning.earned import Earned
from ..learning.methods.grpo import GRPO
from ..problems.load import SERVER_TOKENS, check_tokens, check_train_split
from ..tree.arena import ROOT, Tree
from ..tree.extract import OUTSIDE, Trajectory, step_preferences, trajectories, value_targets
from ..tree.journal import journal_of, read
from ..types import JsonObject, Observation
from .folder import RunFolder

SAMPLE_MANIFEST = "manifest.json"  # of `sample`
BATCH_ROWS = 2000  # held as Python objects at once
HARNESS = "alphazero-llm-trainer"
ROLLOUTS = "rollouts"
IDS = "a list of int32"
# Column -> its type; docs/guides/sample-and-export.md says what they are.
COMMON = {"question_id": "string", "question": "string", "source": "string"}
COMMON |= {"policy_version": "int64", "prompt_ids": IDS}
EXPORT_COLUMNS = {
    "value": {"token_ids": IDS, "target": "float32", "weight": "int64", "node": "int64"},
    "preferences": {
        "prefix_ids": IDS,
        "chosen_ids": IDS,
        "rejected_ids": IDS,
        "margin": "float32",
        "count": "int64",
    },
    "sft": {
        "completion_ids": IDS,
        "completion": "string",
        "answer": "string",
        "count": "int64",
        "author": "string",
    },
}
SUFFIXES = {**dict.fromkeys(EXPORT_COLUMNS, ".parquet"), ROLLOUTS: ".jsonl"}  # of each kind's file


def export_rows(
    data: Path, kind: str, out: Path, *, every_token: bool = False, any_split: bool = False
) -> int:
    """Write what the trees of `data` teach to the file `out`, in one move; returns how many rows,
    or episodes, there are.

    Args:
        data: a folder of `sample` or of a training run.
        kind: a key of `SUFFIXES`.
        out: the file: .jsonl, or .parquet for a table.
        every_token: of `value`: a row for each token prefix, not for each node.
        any_split: take trees of other splits than train, too.

    Raises:
        ConfigError: no such kind is written to a file of that ending, or rollouts have no credit
            (`earned_in`).
        DataError: `data` holds no trees, a broken one, or one of another split than train.
        OSError: `out` can't be written.
    """
    if out.suffix not in (SUFFIXES[kind], SUFFIXES[ROLLOUTS]):
        endings = " or ".join(dict.fromkeys((SUFFIXES[kind], SUFFIXES[ROLLOUTS])))
        raise ConfigError(f"--out {out} is no file for {kind}: let its name end in {endings}")
    records = read_searched(data, any_split, texts=kind == "sft")
    partial = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = (
            make_episodes(records, earned_in(data))
            if kind == ROLLOUTS
            else tree_rows(kind, records, every_token)
        )
        lines = out.suffix == SUFFIXES[ROLLOUTS]
        count = write_lines(made, partial) if lines else write_table(made, kind, partial)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return count


def read_searched(
    data: Path, any_split: bool = False, texts: bool = False
) -> Iterator[tuple[JsonObject, Tree]]:
    """The journal's records that have a tree, with it; one in memory at a time. `texts`: tokens may
    be a server's own.
    """
    path = journal_of(data)
    for record in read(path):
        if not any_split:
            check_train_split(record, path, ", or add --any-split to evaluate with them")
        if not texts:
            check_tokens(record, path)
        if record.get("ended_by", "").startswith("failed"):
            continue
        yield record, Tree.from_dict(record["tree"])


# -- tables ----------------------------------------------------------------------------------------


def tree_rows(
    kind: str, records: Iterable[tuple[JsonObject, Tree]], every_token: bool
) -> Iterator[JsonObject]:
    """The rows of all trees, with the columns of `kind`."""
    for record, tree in records:
        if kind != "value" and any(tree.seen):
            raise DataError(
                f"the tree {record['key']!r} has turns of a world, and rows of --kind {kind} don't "
                "tell what it answered: name --kind rollouts, which has a mask, or value"
            )
        problem = record["problem"]
        common = {
            "question_id": problem["id"],
            "question": problem["question"],
            "source": problem["source"],
            "policy_version": record["policy_version"],
            "prompt_ids": record["prompt_ids"],
        }
        if kind == "sft":
            for response in trajectories(tree):
                if response.right:
                    row = {**common, **right_response(response)}
                    yield row | (
                        {"completion_ids": []} if SERVER_TOKENS.items() <= record.items() else {}
                    )
            continue
        targets: Iterable[Any] = (
            value_targets(tree, every_token=every_token)
            if kind == "value"
            else step_preferences(tree)
        )
        for target in targets:
            yield {**common, **{name: getattr(target, name) for name in EXPORT_COLUMNS[kind]}}


def right_response(response: Trajectory) -> JsonObject:
    """The columns of `sft`."""
    return {
        "completion_ids": response.token_ids,
        "completion": response.text,
        "answer": normalize(extract(response.text) or ""),
        "count": response.samples,
        "author": response.source,
    }


def write_table(rows: Iterator[JsonObject], kind: str, path: Path) -> int:
    """Write rows to a Parquet file; returns how many there are."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    columns, count = COMMON | EXPORT_COLUMNS[kind], 0
    schema = pa.schema(
        [(name, pa.list_(pa.int32()) if of is IDS else of) for name, of in columns.items()]
    )
    with ParquetWriter(path, schema) as writer:  # a table may be larger than the memory
        while batch := list(islice(rows, BATCH_ROWS)):
            writer.write_table(pa.Table.from_pylist(batch, schema))
            count += len(batch)
    return count


# -- rollouts --------------------------------------------------------------------------------------


def write_lines(lines: Iterable[JsonObject], path: Path) -> int:
    """Write each row or episode as a line of JSON; returns how many there are."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for count, line in enumerate(lines, 1):  # noqa: B007
            file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
    return count


def earned_in(data: Path) -> Earned:
    """What the responses in a folder of `train` or `sample` earned there. Raises ConfigError where
    their credit can't be made of a journal.
    """
    run, manifest, layers = RunFolder(data), data / SAMPLE_MANIFEST, []
    if manifest.is_file():
        stored = read_object(manifest)["config"]
        layers = [{name: stored[name] for name in ("rewards", "train")}]
    config = run.config() if run.card.is_file() else load_config(None, layers, "sample.yaml")
    refuse_conflicts(config, "rollouts", data=data)
    return Earned(config, GRPO)


def make_episodes(
    records: Iterable[tuple[JsonObject, Tree]], earned: Earned
) -> Iterator[JsonObject]:
    """An episode for each tree with a response that `train` learns from, with the advantages that
    its tokens have there.

    Responses with a step of a teacher's are left out without `train.teacher_rows`, and so don't
    enter the group's mean.
    """
    # Step credit is relative to its round.
    whole = "policy_version" if earned.config.train.credit == "step" else "key"
    for _, members in groupby(records, lambda pair: pair[0][whole]):
        trees = [
            (record, tree, earned.select_responses(trajectories(tree))) for record, tree in members
        ]
        groups = {
            record["key"]: (tree, responses)
            for record, tree, responses in trees
            if not earned.zero_variance(responses)
        }
        made = dict(zip(groups, credit_tokens([*groups.values()], earned), strict=True))
        for record, tree, responses in trees:
            if responses:
                nothing = [[0.0] * len(response.token_ids) for response in responses]
                yield make_episode(record, tree, responses, made.get(record["key"], nothing))


def response_outcome(response: Trajectory) -> float:
    """The response's outcome, and the search's reward where none is known."""
    return response.reward if response.outcome is None else response.outcome


def make_episode(
    record: JsonObject,
    tree: Tree,
    responses: Sequence[Trajectory],
    advantages: Sequence[Sequence[float]],
) -> JsonObject:
    """The record of one tree: a trace whose nodes are the prompt, the tree's nodes on the way to a
    response, and a node for the tokens of each rollout outside of the tree. A branch of it is a
    response.

    Log-probabilities are nats at temperature 1. A token's advantage is the sum of what it has in
    the responses through it, so that a step that they share is counted once.
    """
    problem, prompt = record["problem"], record["prompt_ids"]
    question = {"role": "user", "content": problem["question"]}
    nodes: list[JsonObject] = [
        {"message": question, "token_ids": prompt, "mask": [False] * len(prompt)}
    ]
    places: dict[int, int] = {ROOT: 0}  # node of the tree -> node of the trace

    def add_given(parent: int, seen: Observation, ids: Sequence[int]) -> int:
        message = {"role": "tool", "tool_call_id": str(parent), "content": seen.text}
        nodes.append(
            {"parent": parent, "message": message, "token_ids": ids, "mask": [False] * len(ids)}
        )
        return len(nodes) - 1

    def add(
        parent: int,
        text: str,
        ids: Sequence[int],
        logprobs: Sequence[float],
        mask: Sequence[bool] = (),
    ) -> int:
        message = {"role": "assistant", "content": text}
        stretch = {
            "token_ids": ids,
            "mask": mask or [True] * len(ids),
            "logprobs": logprobs,
            "advantages": [0.0] * len(ids),
        }
        nodes.append({"parent": parent, "message": message, "sampled": True, **stretch})
        return len(nodes) - 1

    ends = []
    for response, earned in zip(responses, advantages, strict=True):
        at, start, text = 0, 0, response.text
        for node, length in zip(response.nodes, response.lengths, strict=True):
            seen, drawn = None, length
            if node == OUTSIDE:
                ids, logprobs = response.token_ids[start:], response.logprobs[start:]
                at = add(at, text, ids, logprobs, response.mask[start:])
            else:
                step, seen = tree.step(node), tree.seen[node]
                drawn = step.drawn
                if node not in places:
                    ids = step.token_ids[:drawn]
                    places[node] = add(at, step.text, ids, step.logprobs[:drawn])
                    if seen is not None:
                        add_given(places[node], seen, step.token_ids[drawn:])
                at = places[node]
            text = text[len(tree.text[node]) :]  # what is left of the response
            own = zip(nodes[at]["advantages"], earned[start : start + drawn], strict=True)
            nodes[at]["advantages"] = [a + b for a, b in own]
            at += seen is not None  # what the world answered follows its turn
            start += length
        ends.append(at)
    inner = {node.get("parent") for node in nodes}
    # A response that others go on from has a leaf of its own, without a token.
    leaves = [add(at, "", (), ()) if at in inner else at for at in ends]
    samples = sum(response.samples for response in responses)
    task = {
        "type": "AlphaZeroTask",
        "data": {"id": problem["id"], "prompt": problem["question"], "source": problem["source"]},
        "key": problem["id"],
    }
    said = [
        {
            "leaf": leaf,
            "outcome": response_outcome(response),
            "samples": response.samples,
            "end": response.verdict,
        }
        for leaf, response in zip(leaves, responses, strict=True)
    ]
    trace = {
        "version": 1,
        "id": record["key"],
        "verifiers": {"version": version("verifiers")},
        "task": task,
        "agent": {"config": {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}},
        "nodes": nodes,
        "rewards": {
            "outcome": {"score": sum(r.samples * response_outcome(r) for r in responses) / samples}
        },
        "metrics": {"responses": len(responses), "samples": samples},
        "info": {"policy_version": record["policy_version"], "responses": said},
        "is_completed": True,
        "ok": True,
    }
    return {
        "id": record["key"],
        "env": {"id": HARNESS},
        "task": task,
        "ok": True,
        "traces": [trace],
    }
