"""Several runs beside each other: a table, curves over tokens, and the gain of a setting over
another over seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import DataError
from ..eval.metrics import Interval, bootstrap_over_seeds
from ..files import flatten_keys, near_folder, numbered_folders, read_lines
from ..types import Facts, JsonObject
from .charts import Chart, line_chart, show_number
from .folder_page import METRICS, RUN
from .html import render_template, write_page
from .tabled import Tabled
from .text_table import align_columns, table_of
from .training import GAINS, UNIT, WHEN, X, run_measures, validation_points
from .trees import load_json

# Of a run's configuration, what decides none of its figures.
ASIDE = ("checkpoint_dir", "log_interval", "keep_checkpoints", "track", "push_to_hub")
ELSEWHERE = {"seed", *(f"train.{name}" for name in ASIDE)}
LEVEL = 0.1  # share by which two settings' tokens may differ without a word


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run's folder, its run.json and the lines of its metrics.jsonl."""

    folder: Path
    card: JsonObject
    metrics: list[JsonObject]

    @classmethod
    def read(cls, folder: Path, finished: bool) -> FinishedRun:
        """The run of a folder. Raises DataError where it is none, or isn't `finished`."""
        card = load_json(folder / RUN) or {}
        if not {"method", "config"} <= card.keys():
            fix = near_folder(folder, "name one that `train` wrote")
            raise DataError(f"{folder} is no run's folder: {fix}")
        after = card.get("after") or {}
        if finished and not after.get(run_measures(card)[0]):
            raise DataError(
                f"run {folder} has no held-out {run_measures(card)[0]}: finish it, with an "
                "--eval-size"
            )
        if finished and not {"groups", "rows"} <= after.keys():
            raise DataError(f"an older version wrote {folder}: train it again")
        return cls(folder, card, read_lines(folder / METRICS))

    @property
    def settings(self) -> JsonObject:
        config = {key: value for key, value in self.card["config"].items() if key != "models"}
        return {key: value for key, value in flatten_keys(config) if key not in ELSEWHERE}

    def describe(self, keys: Iterable[str]) -> str:
        """What the run has for these keys, in words."""
        held = {key: self.settings.get(key) for key in keys}
        return ", ".join(
            f"{key}={'default' if value is None else value}" for key, value in held.items()
        )

    @property
    def results(self) -> list[Any]:
        """What became of each held-out problem: right or wrong, or the user's own reward (None
        where it failed).
        """
        key = "rewards" if run_measures(self.card)[0] == "reward" else "correct"
        return self.card["after"][key]

    @property
    def tokens(self) -> int:
        return self.card["search_cost"]["sampled_tokens"]

    def record(self, setting: str) -> JsonObject:
        """The run's row in a table, with its numbers."""
        kind = run_measures(self.card)[0]
        record = {"setting": setting, "run": str(self.folder), "seed": self.card["seed"]}
        for when in WHEN:
            result = (self.card.get(when) or {}).get(kind)
            if result is not None:
                record[when] = result["value"]
        if (gain := self.card.get(GAINS[kind])) is not None:
            record |= {"gain": gain["value"], "gain_low": gain["low"], "gain_high": gain["high"]}
        if "search_cost" in self.card:
            record["tokens"] = self.tokens
        return record


def show_records(records: Sequence[Facts]) -> list[dict[str, str]]:
    """Records of runs as people read them."""
    rows = []
    for record in records:
        row = {"setting": record["setting"]} if any(each["setting"] for each in records) else {}
        row |= {name: str(record[name]) for name in ("run", "seed")}
        row |= {when: f"{record[when]:.3f}" for when in WHEN if when in record}
        if "gain" in record:
            gain = Interval(*(record[name] for name in ("gain", "gain_low", "gain_high")))
            row["gain [95%]"] = f"{gain:+}"
        if "tokens" in record:
            row["tokens"] = show_number(record["tokens"])
        rows.append(row)
    return rows


@dataclass(frozen=True, slots=True)
class Comparison(Tabled):
    """Two settings over seeds. `gain` is what the second one's held-out results are above the
    first one's, with its 95% interval over problems and seeds; `names` say in what they differ.
    """

    settings: tuple[list[FinishedRun], list[FinishedRun]]
    names: tuple[str, str]
    gain: Interval

    @property
    def tokens(self) -> list[float]:
        """Sampled tokens of a run, by setting."""
        return [fmean(run.tokens for run in runs) for runs in self.settings]

    @property
    def facts(self) -> JsonObject:
        """The gain and each run's results, as JSON."""
        settings = []
        for name, tokens, runs in zip(self.names, self.tokens, self.settings, strict=True):
            of_runs = [
                {
                    "folder": str(run.folder),
                    "seed": run.card["seed"],
                    "tokens": run.tokens,
                    "results": run.results,
                }
                for run in runs
            ]
            settings.append({"name": name, "tokens": tokens, "runs": of_runs})
        return {"gain": asdict(self.gain), "settings": settings}

    @property
    def sentence(self) -> str:
        """The comparison in words."""
        card, seeds = self.settings[0][0].card, [len(runs) for runs in self.settings]
        clear = {"good": "clearly better", "bad": "clearly worse", "": "no clear difference"}
        lines = [
            f"B over A: {self.gain:+} in {run_measures(card)[0]} on the same "
            f"{card['after']['problems']:,} held-out problems: {clear[self.gain.kind]}",
            f"A: {self.names[0]}",
            f"B: {self.names[1]}",
        ]
        if min(seeds) == 1:
            lines.append("A setting of one seed: the interval says nothing about another seed.")
        elif min(seeds) < 5:
            lines.append(f"{seeds[0]} and {seeds[1]} seeds: so few make the interval too narrow.")
        less, more = sorted(self.tokens)
        if more - less > LEVEL * less:
            costs = " and ".join(map(show_number, self.tokens))
            lines.append(f"They are not at equal cost: {costs} tokens.")
        return "\n".join(lines)

    @property
    def records(self) -> list[JsonObject]:
        """One a run; `setting` is A or B."""
        return [
            run.record(name) for name, runs in zip("AB", self.settings, strict=True) for run in runs
        ]

    @property
    def chart(self) -> Chart:
        """Both settings' mean validation curves."""
        curves = {
            f"{name}: {setting.partition(',')[0]}": mean_curve(runs)
            for name, setting, runs in zip("AB", self.names, self.settings, strict=True)
        }
        return line_chart(curve_title(self.settings[0]), curves, X)

    def __repr__(self) -> str:
        table = table_of(show_records(self.records))
        return f"{self.sentence}\n{align_columns(table, left=3)}"

    def write(self, out: Path) -> Path:
        """Write `report.html` into `out`."""
        bars = "Means over the seeds; a bar goes from the lowest seed to the highest."
        return write_curves(out, "B over A", self, bars, self)


@dataclass(frozen=True, slots=True)
class RunTable(Tabled):
    """Several runs beside each other. `gain` is that of training, over problems and seeds, where
    the runs are one setting's seeds.
    """

    runs: list[FinishedRun]

    @property
    def records(self) -> list[JsonObject]:
        """One a run; `setting` has what differs between them."""
        keys = differing_keys(self.runs)
        return [run.record(run.describe(keys[:3])) for run in self.runs]

    @property
    def chart(self) -> Chart:
        """Each run's validation curve."""
        curves = {str(run.folder): validation_points(run.card, run.metrics) for run in self.runs}
        return line_chart(curve_title(self.runs), curves, X, UNIT)

    @property
    def gain(self) -> Interval | None:
        kind = "rewards" if run_measures(self.runs[0].card)[0] == "reward" else "correct"
        both = [[run.card[when].get(kind) for run in self.runs] for when in WHEN]
        if differing_keys(self.runs) or any(row is None or None in row for row in chain(*both)):
            return None
        before, after = both
        return bootstrap_over_seeds(after, before, groups=self.runs[0].card["after"]["groups"])

    @property
    def sentence(self) -> str:
        """The gain over seeds in words; "" where there is none."""
        gain = None if len(self.runs) < 2 else self.gain
        return "" if gain is None else f"gain over {len(self.runs)} seeds: {gain:+}"

    def __repr__(self) -> str:
        table = align_columns(table_of(show_records(self.records)), left=3)
        return "\n".join(filter(None, (table, self.sentence)))

    def write(self, out: Path) -> Path:
        """Write `report.html` into `out`."""
        bars = "Bars are 95% intervals."
        said = f"{self.sentence}. {bars}" if self.sentence else bars
        return write_curves(out, f"{len(self.runs)} runs", self, said)


def curve_title(runs: Sequence[FinishedRun]) -> str:
    """What the validation curves of runs show."""
    return f"Validation {run_measures(runs[0].card)[0]}"


def mean_curve(runs: Sequence[FinishedRun]) -> list[tuple[float, Interval]]:
    """The mean of the runs' validation curves, measurement by measurement as far as all have one,
    with the lowest and the highest run.
    """
    points = []
    for measured in zip(*(validation_points(run.card, run.metrics) for run in runs), strict=False):
        values = [interval.value for _, interval in measured]
        mean = Interval(fmean(values), min(values), max(values))
        points.append((fmean(x for x, _ in measured), mean))
    return points


def compare_runs(first: Sequence[Path], second: Sequence[Path]) -> Comparison:
    """Two settings, each of runs that differ in their seeds alone.

    Raises DataError where they are not over the same held-out problems, a setting isn't one, or a
    run is there twice.
    """
    sides = [read_runs(side, finished=True) for side in (first, second)]
    runs = [*sides[0], *sides[1]]
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise DataError("a run is named twice: it would count as two seeds; name it once")
    problems = [(run.card["after"]["rows"], run_measures(run.card)[0]) for run in runs]
    for run, other in zip(runs, problems, strict=True):
        if other != problems[0]:
            raise DataError(
                f"{run.folder} was measured on other held-out problems than {runs[0].folder}, or "
                "by another measure: compare runs with one source, eval size and reward"
            )
    for side in sides:
        if len({run.card["seed"] for run in side}) < len(side):
            raise DataError(f"two runs beside {side[0].folder} have one seed: give each its own")
        keys = differing_keys(side)
        if keys:
            raise DataError(
                f"{keys[0]} differs between {side[0].folder} and other runs of its side: "
                "put runs of one setting on a side of --"
            )
    keys = sorted(
        differing_keys([side[0] for side in sides]), key=lambda key: key != "train.method"
    )
    names = [side[0].describe(keys[:4]) for side in sides]
    # A problem whose reward failed in one run is left out of all.
    columns_of = zip(runs[0].card["after"]["groups"], *(run.results for run in runs), strict=True)
    kept = [column for column in columns_of if None not in column]
    if not kept:
        raise DataError("no problem has a reward in every run: mend the reward, and train again")
    groups, *results = zip(*kept, strict=True)
    seeds = len(sides[0])
    gain = bootstrap_over_seeds(results[seeds:], results[:seeds], groups=groups)
    return Comparison((sides[0], sides[1]), (names[0], names[1]), gain)


def differing_keys(runs: Sequence[FinishedRun]) -> list[str]:
    """The keys that don't have one value in all the runs."""
    settings = [run.settings for run in runs]
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if any(each.get(key) != settings[0].get(key) for each in settings)]


def read_runs(folders: Iterable[Path], finished: bool) -> list[FinishedRun]:
    """The runs of folders, each a run's, or that of `train --seeds`, which has a run a seed. Raises
    DataError as `FinishedRun.read` does.
    """
    runs = []
    for folder in folders:
        seeds = [numbered_folders(one, "run") for one in numbered_folders(folder, "seed")[::-1]]
        places = [newest[0] for newest in seeds if newest] or [folder]
        runs += [FinishedRun.read(place, finished) for place in places]
    return runs


def write_curves(
    out: Path, title: str, tabled: Tabled, bars: str, comparison: Comparison | None = None
) -> Path:
    """The page of validation curves and a table, below what a comparison says."""
    part = render_template(
        "runs.html",
        comparison=comparison,
        chart=tabled.chart,
        bars=bars,
        rows=table_of(show_records(tabled.records)),
    )
    return write_page(out, title, [part])
