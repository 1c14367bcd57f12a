"""The console script's `export`: tree journals as Parquet files for `datasets`, or as rollouts of verifiers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, DataError
from ..files import refused
from .base import add_json, check_least, check_out, print_json
from .rollouts import CREDITS, episodes, write_lines

if TYPE_CHECKING:
    import pyarrow

    from ..mcts.tree import Tree

BATCH_ROWS = 2000  # rows in memory, and in a row group of the file

# Column -> (type, what it is). Types: ids are lists of int32, the rest is named as pyarrow names it.
COMMON = {
    "question_id": ("string", "the question's id; one tree each"),
    "question": ("string", "the question's text"),
    "source": ("string", "the data set it comes from"),
    "policy_version": ("int64", "version of the weights that the tree was searched with"),
    "prompt_ids": ("ids", "tokens of the whole prompt, before the tree's root"),
}
COLUMNS: dict[str, dict[str, tuple[str, str]]] = {
    "value": {
        **COMMON,
        "token_ids": ("ids", "the response's tokens down to the state; empty at the root"),
        "target": ("float32", "mean outcome in [0, 1] of the finished responses through the state"),
        "weight": ("int64", "how many finished responses that is"),
        "node": ("int64", "the state's node in the tree"),
    },
    "preferences": {
        **COMMON,
        "prefix_ids": ("ids", "the response's tokens before the step; empty for a first step"),
        "chosen_ids": ("ids", "tokens of the step with the better outcomes"),
        "rejected_ids": ("ids", "tokens of its sibling with the worse ones"),
        "margin": ("float32", "difference of the two steps' mean outcomes, in (0, 1]"),
        "count": ("int64", "the smaller of the two numbers of finished responses behind them"),
    },
    "sft": {
        **COMMON,
        "completion_ids": ("ids", "tokens of a distinct correct response"),
        "completion": ("string", "its text"),
        "count": ("int64", "how often it was sampled"),
        "author": ("string", "student, or the teachers that wrote one of its steps"),
    },
    "policy": {
        **COMMON,
        "prefix_ids": ("ids", "the response's tokens down to an expanded node; empty at the root"),
        "children_ids": (
            "lists of ids",
            "tokens that each child adds (a token-level tree: one, but after a forced prefix)",
        ),
        "probabilities": ("floats", "each child's share of the visits; they sum to 1"),
        "improved": (
            "floats",
            "Gumbel's target: the student's probabilities, raised or lowered by completed Q; they sum to 1",
        ),
        "visits": ("int64", "how many visits they share out"),
        "node": ("int64", "the node in the tree"),
    },
}
ROLLOUTS = "rollouts"
KINDS = {**dict.fromkeys(COLUMNS, ".parquet"), ROLLOUTS: ".jsonl"}
NEEDED = ("ended_by", "problem", "policy_version", "tree")
ABOUT = {
    "value": "value targets: what states were worth",
    "preferences": "step preferences: pairs of steps after one prefix, for a process reward model",
    "sft": "correct responses, for supervised training",
    "policy": "visit distributions and improved policies, for policy distillation",
}


@dataclass(frozen=True, slots=True)
class Readers:
    """How the readers look at trees: every token prefix or nodes alone; the margin and responses a pair needs; what a
    rollout's advantages are."""

    every_token: bool = False
    margin: float = 0.25
    least: int = 2
    credit: str = "group"

    def of(self, kind: str) -> Callable[[Tree], Iterator[dict[str, Any]]]:
        """The rows of one tree, the common columns left out."""
        return {"value": self.value, "preferences": self.preferences, "sft": self.sft, "policy": self.policy}[kind]

    def value(self, tree: Tree) -> Iterator[dict[str, Any]]:
        from ..mcts.targets import value_targets

        for row in value_targets(tree, every_token=self.every_token):
            yield {"token_ids": row.token_ids, "target": row.target, "weight": row.weight, "node": row.node}

    def preferences(self, tree: Tree) -> Iterator[dict[str, Any]]:
        from ..mcts.targets import step_preferences

        for row in step_preferences(tree, self.margin, self.least):
            yield {name: getattr(row, name) for name in ("prefix_ids", "chosen_ids", "rejected_ids", "margin", "count")}

    def sft(self, tree: Tree) -> Iterator[dict[str, Any]]:
        from ..mcts.targets import sft_rows

        for row in sft_rows(tree):
            yield {
                "completion_ids": row.token_ids,
                "completion": row.text,
                "count": row.count,
                "author": row.source,
            }

    def policy(self, tree: Tree) -> Iterator[dict[str, Any]]:
        from ..mcts.targets import policy_targets

        for row in policy_targets(tree):
            names = ("prefix_ids", "children_ids", "probabilities", "improved", "visits", "node")
            yield {name: getattr(row, name) for name in names}


def records(data: Path, any_split: bool = False) -> Iterator[dict[str, Any]]:
    """The records of a `sample` folder, or of a training run's journal, one in memory at a time.

    Raises DataError when there are none, and, without `any_split`, for one of another split than train.
    """
    from ..mcts.journal import journals, read
    from ..problems.load import check_train_split

    for path in journals(data):
        for record in read(path):
            if not any_split:
                check_train_split(record, path, ", or add --any-split to evaluate with them")
            yield record


def grown(trees: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Tree]]:
    """The records that have a tree, with it. Raises DataError for one without prompt tokens (a journal of version 0.1)."""
    from ..mcts.tree import Tree

    for record in trees:
        missing = [name for name in NEEDED if name not in record]
        if missing or not {"id", "question", "source"} <= record["problem"].keys():
            raise DataError(f"record {record['key']!r} has no {(missing or ['whole problem'])[0]}: sample it again")
        if record["ended_by"].startswith("failed"):
            continue
        if not record.get("prompt_ids"):
            raise DataError(f"record {record['key']!r} has no prompt_ids: it is of an older version, sample it again")
        yield record, Tree.from_dict(record["tree"], checked=True)


def rows(
    trees: Iterable[dict[str, Any]], reader: Callable[[Tree], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """The rows of all trees."""
    for record, tree in grown(trees):
        problem = record["problem"]
        common = {
            "question_id": problem["id"],
            "question": problem["question"],
            "source": problem["source"],
            "policy_version": record["policy_version"],
            "prompt_ids": record["prompt_ids"],
        }
        for row in reader(tree):
            yield {**common, **row}


def schema(kind: str) -> pyarrow.Schema:
    """The Parquet schema of a kind; each field's metadata says what it holds."""
    import pyarrow

    ids = pyarrow.list_(pyarrow.int32())
    types = {"ids": ids, "lists of ids": pyarrow.list_(ids), "floats": pyarrow.list_(pyarrow.float32())}
    return pyarrow.schema(
        [
            pyarrow.field(
                name,
                types[named] if named in types else getattr(pyarrow, named)(),
                nullable=False,
                metadata={"description": text},
            )
            for name, (named, text) in COLUMNS[kind].items()
        ]
    )


def export(data: Path, kind: str, out: Path, readers: Readers, any_split: bool = False) -> int:
    """Write the rows of one kind to the file `out`, in one move; returns how many there are.

    Memory is bounded by BATCH_ROWS rows and one tree. `datasets.load_dataset("parquet", data_files=str(out))` loads all
    but rollouts.

    Raises:
        DataError: `data` holds no trees, a broken one, or, without `any_split`, one of another split than train.
        ConfigError, StorageError: `out` can't be written.
    """
    trees = records(data, any_split)
    partial = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if kind == ROLLOUTS:
            found = grown(trees)
            count = write_lines((row for one in found for row in episodes(*one, readers.credit)), partial)
        else:
            count = write_parquet(rows(trees, readers.of(kind)), kind, partial)
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


def epilog() -> str:
    """Every column of every kind."""
    lines = ["Columns of every kind:"]
    lines += [f"  {name:<16}{text}" for name, (_, text) in COMMON.items()]
    for kind, columns in COLUMNS.items():
        lines.append(f"{kind} ({ABOUT[kind]}):")
        lines += [f"  {name:<16}{text}" for name, (_, text) in columns.items() if name not in COMMON]
    lines += [
        f"{ROLLOUTS} (responses in groups, for prime-rl and other trainers): JSON lines, each an episode of verifiers with one",
        "  trace; its branch has token_ids, sampled_mask, logprobs and advantages, its info the tree, nodes and version.",
    ]
    lines.append('Load a Parquet file with datasets.load_dataset("parquet", data_files="FILE.parquet").')
    return "\n".join(lines)


def add_export(commands: Any) -> None:
    parser = commands.add_parser("export", help="tree journals as training sets", epilog=epilog())
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder of `sample`, or a run folder")
    parser.add_argument("--kind", required=True, choices=[*KINDS, "all"], help="what the rows are")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file; for --kind all a folder")
    parser.add_argument(
        "--every-token", action="store_true", help="value: a row for every token prefix, not every node"
    )
    parser.add_argument("--margin", type=float, default=0.25, metavar="X", help="preferences: least difference")
    parser.add_argument("--least", type=int, default=2, metavar="N", help="preferences: responses behind each step")
    parser.add_argument(
        "--credit",
        choices=CREDITS,
        default="group",
        help="rollouts: advantages of whole responses against their group, or of each step (Q(child) - V(parent))",
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
    if not 0 < args.margin <= 1:
        raise ConfigError(f"--margin is {args.margin}: use one above 0 and at most 1")
    check_least(1, least=args.least)
    if not args.data.is_dir():
        raise DataError(f"--data {args.data} is no folder: name one that `sample` wrote")
    readers = Readers(args.every_token, args.margin, args.least, args.credit)
    kinds = list(KINDS) if args.kind == "all" else [args.kind]
    check_out(args.out, file=args.kind != "all")
    counts = {}
    for kind in kinds:
        out = args.out / f"{kind}{KINDS[kind]}" if args.kind == "all" else args.out
        counts[kind] = {"rows": export(args.data, kind, out, readers, args.any_split), "file": str(out)}
        if not args.json:
            print(f"{kind}: {counts[kind]['rows']:,} rows in {out}")
    if args.json:
        print_json(counts)
    return 0
