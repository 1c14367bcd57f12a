"""The console script's `export`: tree journals as Parquet files for `datasets`, or as rollouts of verifiers.

Rollouts have the layout of verifiers 0.4 (`verifiers.v1.episode.Episode`, trace version 1), that of `traces.jsonl` which
`vf-eval` writes and prime-rl's trainer reads: an episode a line, with one trace, whose nodes are the tree's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..answers import extract, normalize
from ..errors import ConfigError, DataError
from ..files import refused
from ..mcts.extract import (
    OUTSIDE,
    Trajectory,
    outcomes,
    policy_targets,
    step_preferences,
    step_values,
    trajectories,
    value_targets,
)
from ..mcts.journal import journal_of, read
from ..mcts.tree import ROOT, Tree
from ..problems.load import check_train_split
from ..training.credit import group_advantages, step_advantages, zero_variance
from .base import add_json, check_least, check_out, print_json

if TYPE_CHECKING:
    import pyarrow

BATCH_ROWS = 2000  # rows in memory, and in a row group of the file
TRACE_VERSION = 1
HARNESS = "alphazero-llm-trainer"
CUT = ("length", "depth")  # verdicts of responses that a limit ended

# Column -> its type: ids are lists of int32, the rest is named as pyarrow names it. docs/guides/sample-and-export.md says what
# they are.
COMMON = {
    "question_id": "string",
    "question": "string",
    "source": "string",
    "policy_version": "int64",
    "prompt_ids": "ids",
}
OWN = {
    "value": {"token_ids": "ids", "target": "float32", "weight": "int64", "node": "int64"},
    "preferences": {
        "prefix_ids": "ids",
        "chosen_ids": "ids",
        "rejected_ids": "ids",
        "margin": "float32",
        "count": "int64",
    },
    "sft": {
        "completion_ids": "ids",
        "completion": "string",
        "answer": "string",
        "count": "int64",
        "author": "string",
    },
    "policy": {
        "prefix_ids": "ids",
        "children_ids": "lists of ids",
        "probabilities": "floats",
        "improved": "floats",
        "visits": "int64",
        "node": "int64",
    },
}
# Columns of another name of a `Trajectory`.
SFT = {"completion_ids": "token_ids", "completion": "text", "count": "samples", "author": "source"}
ROLLOUTS = "rollouts"
OPTIONS = {"every_token": "value", "margin": "preferences", "least": "preferences", "credit": ROLLOUTS}  # of a kind
KINDS = {**dict.fromkeys(OWN, ".parquet"), ROLLOUTS: ".jsonl"}
EPILOG = f"""\
{chr(10).join(f"{kind}: {', '.join(columns)}" for kind, columns in OWN.items())}
{ROLLOUTS}: whole trees, for prime-rl and other trainers: JSON lines, each an episode of verifiers with one trace; its branches
are the responses.
Every table has {", ".join(COMMON)}.
Load a table with datasets.load_dataset("parquet", data_files="FILE.parquet")."""


@dataclass(slots=True)
class Readers:
    """How trees are read: every token prefix or nodes alone; the margin and responses a pair needs; what a rollout's
    advantages are. `flat` counts the rollouts without any."""

    every_token: bool = False
    margin: float = 0.25
    least: int = 2
    credit: Literal["group", "step"] = "group"
    flat: int = 0

    def targets(self, kind: str, tree: Tree) -> Iterable[Any]:
        """The rows of one tree, as objects of `mcts.extract`."""
        match kind:
            case "value":
                return value_targets(tree, every_token=self.every_token)
            case "preferences":
                return step_preferences(tree, self.margin, self.least)
            case "sft":
                return [one for one in trajectories(tree) if one.right]
            case _:
                return policy_targets(tree)


def records(data: Path, any_split: bool = False) -> Iterator[dict[str, Any]]:
    """The records of a `sample` folder, or of a training run's journal, one in memory at a time.

    Raises DataError when there are none, and, without `any_split`, for one of another split than train.
    """
    path = journal_of(data)
    for record in read(path):
        if not any_split:
            check_train_split(record, path, ", or add --any-split to evaluate with them")
        yield record


def grown(trees: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Tree]]:
    """The records that have a tree, with it. Raises DataError for one without prompt tokens (a journal of version 0.1)."""
    for record in trees:
        if record.get("ended_by", "").startswith("failed"):
            continue
        if not record.get("prompt_ids") or not {"id", "question", "source"} <= record.get("problem", {}).keys():
            raise DataError(f"record {record['key']!r} has no prompt_ids or no problem: sample it again")
        yield record, Tree.from_dict(record["tree"], checked=True)


def rows(kind: str, trees: Iterable[dict[str, Any]], readers: Readers) -> Iterator[dict[str, Any]]:
    """The rows of all trees: the columns of `kind`, or episodes."""
    renamed = SFT if kind == "sft" else {}
    for record, tree in grown(trees):
        if kind == ROLLOUTS:
            if found := [one for one in trajectories(tree) if one.student]:
                advantages = credited(tree, found, readers.credit)
                readers.flat += not any(map(any, advantages))
                yield episode(record, tree, found, advantages)
            continue
        problem = record["problem"]
        common = problem["id"], problem["question"], problem["source"], record["policy_version"], record["prompt_ids"]
        for row in readers.targets(kind, tree):
            stated = {"answer": normalize(extract(row.text) or "")} if kind == "sft" else {}
            own = {name: getattr(row, renamed.get(name, name)) for name in OWN[kind] if name not in stated} | stated
            yield {**dict(zip(COMMON, common, strict=True)), **own}


def schema(kind: str) -> pyarrow.Schema:
    """The Parquet schema of a kind."""
    import pyarrow

    ids = pyarrow.list_(pyarrow.int32())
    lists = {"ids": ids, "lists of ids": pyarrow.list_(ids), "floats": pyarrow.list_(pyarrow.float32())}
    types = {
        name: lists[named] if named in lists else getattr(pyarrow, named)() for name, named in columns(kind).items()
    }
    return pyarrow.schema([pyarrow.field(name, type, nullable=False) for name, type in types.items()])


def columns(kind: str) -> dict[str, str]:
    """The columns of a kind of table, with their types."""
    return {**COMMON, **OWN[kind]}


def export(data: Path, kind: str, out: Path, readers: Readers, any_split: bool = False) -> int:
    """Write the rows of one kind to the file `out`, in one move; returns how many there are.

    Memory is bounded by BATCH_ROWS rows and one tree. `datasets.load_dataset("parquet", data_files=str(out))` loads all
    but rollouts.

    Raises:
        DataError: `data` holds no trees, a broken one, or, without `any_split`, one of another split than train.
        ConfigError, StorageError: `out` can't be written.
    """
    found = rows(kind, records(data, any_split), readers)
    partial = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        count = write_lines(found, partial) if kind == ROLLOUTS else write_parquet(found, kind, partial)
        partial.replace(out)
    except OSError as error:
        raise refused("--out", out, error, "name a writable file") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def write_parquet(source: Iterator[dict[str, Any]], kind: str, path: Path) -> int:
    """Write rows to a Parquet file, BATCH_ROWS of them in a row group."""
    import pyarrow
    from pyarrow import parquet

    shape, count = schema(kind), 0
    with parquet.ParquetWriter(path, shape, compression="zstd") as writer:
        while batch := list(islice(source, BATCH_ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=shape))
            count += len(batch)
    return count


def write_lines(rows: Iterable[dict[str, Any]], path: Path) -> int:
    """Write each row as a line of JSON; returns how many there are."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")
            count += 1
    return count


# -- rollouts ----------------------------------------------------------------------------------------------------------


def credited(tree: Tree, found: list[Trajectory], credit: str) -> list[list[float]]:
    """One advantage a token `[T]` of each response.

    `group`: its reward against the others', over all samples (GRPO; a response sampled k times counts k times).
    `step`: Q(child) - V(parent) of each step, in [-1, 1], not scaled.
    """
    if credit == "step":
        counts, sums = outcomes(tree)
        return [step_advantages(step_values(one, worth(one), counts, sums), one.lengths, scale=1.0) for one in found]
    rewards = [worth(one) for one in found]
    if zero_variance(rewards):
        return [[0.0] * len(one.token_ids) for one in found]
    whole = group_advantages(rewards, [one.samples for one in found])
    return [[one.samples * a] * len(one.token_ids) for one, a in zip(found, whole, strict=True)]


def worth(found: Trajectory) -> float:
    """The response's outcome, and the search's reward where none is known."""
    return found.reward if found.outcome is None else found.outcome


def episode(
    record: dict[str, Any], tree: Tree, found: Sequence[Trajectory], advantages: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """The record of one tree: a trace whose nodes are the prompt, the tree's nodes on the way to a response, and a node for
    the tokens of each rollout outside of the tree. A branch of it is a response.

    Log-probabilities are nats at temperature 1. A token's advantage is the sum of what it has in the responses through it
    (`advantages`, a list `[T]` each), so that a step that they share is counted once. Responses with a step of a teacher's
    are left out, and so don't enter the group's mean: `train` leaves them out by default too.
    """
    problem, prompt = record["problem"], record["prompt_ids"]
    nodes: list[dict[str, Any]] = [
        {
            "message": {"role": "user", "content": problem["question"]},
            "token_ids": prompt,
            "mask": [False] * len(prompt),
        }
    ]
    places: dict[int, int] = {ROOT: 0}  # node of the tree -> node of the trace

    def add(parent: int, text: str, ids: Sequence[int], logprobs: Sequence[float]) -> int:
        message = {"role": "assistant", "content": text}
        stretch = {"token_ids": ids, "mask": [True] * len(ids), "logprobs": logprobs, "advantages": [0.0] * len(ids)}
        nodes.append({"parent": parent, "message": message, "sampled": True, **stretch})
        return len(nodes) - 1

    ends = []
    for one, credit in zip(found, advantages, strict=True):
        at, start, text = 0, 0, one.text
        for node, length in zip(one.nodes, one.lengths, strict=True):
            end = start + length
            if node == OUTSIDE:
                at = add(at, text, one.token_ids[start:], one.logprobs[start:])
            elif node in places:
                at = places[node]
            else:
                at = places[node] = add(at, tree.text[node], tree.token_ids[node], tree.logprobs[node])
            text = text[len(tree.text[node]) :]  # what is left of the response
            nodes[at]["advantages"] = [a + b for a, b in zip(nodes[at]["advantages"], credit[start:end], strict=True)]
            start = end
        ends.append(at)
    inner = {node.get("parent") for node in nodes}
    # A response that others go on from has a leaf of its own, without a token.
    leaves = [add(at, "", (), ()) if at in inner else at for at in ends]
    known = {at: node for node, at in places.items()}
    samples = sum(one.samples for one in found)
    task = {
        "type": "AlphaZeroTask",
        "data": {"id": problem["id"], "prompt": problem["question"], "source": problem["source"]},
        "key": problem["id"],
    }
    trace = {
        "version": TRACE_VERSION,
        "id": record["key"],
        "verifiers": {"version": version("verifiers")},
        "task": task,
        "agent": {"config": {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}},
        "nodes": nodes,
        "calls": [
            {
                "node": leaf,
                "finish_reason": "length" if one.verdict in CUT else "stop",
                "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(one.token_ids)},
            }
            # verifiers takes a trace for cut where its last call is: here where all responses are.
            for leaf, one in sorted(zip(leaves, found, strict=True), key=lambda pair: pair[1].verdict not in CUT)
        ],
        "rewards": {"outcome": {"score": sum(one.samples * worth(one) for one in found) / samples}},
        "metrics": {"responses": len(found), "samples": samples},
        "info": {
            "tree": record["key"],
            "policy_version": record["policy_version"],
            "tree_nodes": [known.get(at) for at in range(len(nodes))],  # None: tokens outside of the tree
            "responses": [
                {
                    "leaf": leaf,
                    "outcome": worth(one),
                    "search_reward": one.reward,
                    "samples": one.samples,
                    "end": one.verdict,
                }
                for leaf, one in zip(leaves, found, strict=True)
            ],
        },
        "is_completed": True,
        "ok": True,
    }
    return {"id": record["key"], "env": {"id": HARNESS}, "task": task, "ok": True, "traces": [trace]}


# -- the command -------------------------------------------------------------------------------------------------------


def add_export(commands: Any) -> None:
    parser = commands.add_parser("export", help="tree journals as training sets", epilog=EPILOG)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder of `sample`, or a run folder")
    parser.add_argument("--kind", required=True, choices=[*KINDS, "all"], help="what the rows are")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file; for --kind all a folder")
    parser.add_argument(
        "--every-token", action="store_true", help="value: a row for every token prefix, not every node"
    )
    parser.add_argument("--margin", type=float, metavar="X", help="preferences: least difference (default: 0.25)")
    parser.add_argument("--least", type=int, metavar="N", help="preferences: responses behind each step (default: 2)")
    parser.add_argument(
        "--credit",
        choices=("group", "step"),
        help="rollouts: advantages of whole responses against their group, or of each step, Q(child) - V(parent)"
        " (default: group)",
    )
    parser.add_argument(
        "--any-split",
        action="store_true",
        help="take trees of every split, to evaluate with: only train may be learned",
    )
    add_json(parser)
    parser.set_defaults(run=run_export)


def run_export(args: argparse.Namespace) -> int:
    """Write one kind, or all of them, and say how many rows there are."""
    asked = {"every_token": args.every_token or None, "margin": args.margin, "least": args.least, "credit": args.credit}
    asked = {name: value for name, value in asked.items() if value is not None}
    for name in asked:
        if args.kind not in (OPTIONS[name], "all"):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is of --kind {OPTIONS[name]}, and --kind is {args.kind}: leave it out")
    if args.margin is not None and not 0 < args.margin <= 1:
        raise ConfigError(f"--margin is {args.margin}: use one above 0 and at most 1")
    check_least(1, least=args.least)
    if not args.data.is_dir():
        raise DataError(f"--data {args.data} is no folder: name one that `sample` wrote")
    readers = Readers(**asked)
    kinds = list(KINDS) if args.kind == "all" else [args.kind]
    check_out(args.out, file=args.kind != "all")
    counts = {}
    for kind in kinds:
        out = args.out / f"{kind}{KINDS[kind]}" if args.kind == "all" else args.out
        counts[kind] = {"rows": export(args.data, kind, out, readers, args.any_split), "file": str(out)}
        if not args.json:
            print(f"{kind}: {counts[kind]['rows']:,} rows in {out}")
            if kind == ROLLOUTS and readers.flat:
                print(f"{readers.flat:,} of them have no advantage: all of their responses earned the same")
    if args.json:
        print_json(counts)
    return 0
