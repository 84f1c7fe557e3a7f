"""Runs as the plain data of the report page: curves over seeds, totals, settings.

A group is a label with one run per seed. Its curves are means over the seeds that reached a round,
with minimum, maximum and sample standard deviation. Long curves are downsampled.
"""

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import CheckpointError, convert_errors
from ..core.files import flatten
from ..core.text import format_bytes
from ..training.command import CommandConfig
from ..training.run import Run
from ..version import __version__

COSTS = ("bytes_up", "bytes_down", "seconds", "gradients")  # summed over rounds
NO_CURVE = ("round", *COSTS)
SUMMARY_MEASURES = ("test_accuracy", "best_test_accuracy", "test_loss")  # of a run's summary
TOTALS = (*COSTS, "rounds", *SUMMARY_MEASURES)
MAIN = ("test_accuracy", "test_loss", "train_loss")
COMMAND_DEFAULTS = CommandConfig().to_json()
ALWAYS = ("data", "method", "rounds", "seed")  # options that a command states in any case
MAX_POINTS, MAX_PICTURES, MAX_CLIENTS = 600, 12, 100

Floats = NDArray[np.float64]
Groups = Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class HistoryTable:
    """The histories of a group's runs, aligned by round."""

    rounds: Floats  # (R,), from 1
    columns: dict[str, Floats]  # (runs, R), every numeric column by name; NaN where missing

    def cumulative(self, name: str) -> Floats:
        """Return a cost's sum up to and including each round, (runs, R); NaN after the last one."""
        spent = self.columns[name]
        is_past = np.cumsum(np.isfinite(spent)[:, ::-1], axis=1)[:, ::-1] == 0
        return np.where(is_past, np.nan, np.cumsum(np.nan_to_num(spent), axis=1))


def _is_number(value: Any) -> bool:
    return type(value) in (float, int) or (isinstance(value, Real) and not isinstance(value, bool))


def tabulate(runs: Sequence[Run]) -> HistoryTable:
    """Align the histories of runs by round."""
    by_round = [{_round_number(row, i): row for i, row in enumerate(run.history)} for run in runs]
    rounds = sorted(set().union(*by_round))
    columns = {name: np.full((len(runs), len(rounds)), np.nan) for name in COSTS}
    for i, rows in enumerate(by_round):
        for j, t in enumerate(rounds):
            for name, value in rows.get(t, {}).items():
                if not _is_number(value):
                    continue
                if name not in columns:
                    columns[name] = np.full((len(runs), len(rounds)), np.nan)
                if math.isfinite(value):
                    columns[name][i, j] = value
    return HistoryTable(np.array(rounds, dtype=float) + 1, dict(sorted(columns.items())))


def _round_number(row: Mapping[str, Any], default: int) -> int:
    return int(row["round"]) if _is_number(row.get("round")) else default


def mean_over_runs(values: Floats) -> Floats:
    """Return the mean over runs of each round, NaN where no run has a value."""
    count = np.isfinite(values).sum(axis=0)
    return np.where(count > 0, np.nansum(values, axis=0) / np.maximum(count, 1), np.nan)


def spread_over_runs(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return minimum, maximum and standard deviation of each round; each must have a value."""
    count = np.isfinite(values).sum(axis=0)
    squares = np.nansum((values - mean_over_runs(values)) ** 2, axis=0)
    deviation = np.sqrt(squares / np.maximum(count - 1, 1))
    return np.nanmin(values, axis=0), np.nanmax(values, axis=0), deviation


def downsample(low: Floats, high: Floats, limit: int = MAX_POINTS) -> NDArray[np.int64]:
    """Return the indices of at most `limit` points of a band, with every extreme kept.

    The first and the last point are kept; each segment between them keeps its lowest `low` and its
    highest `high`.

    >>> y = np.zeros(10_000)
    >>> y[1234] = 7.0
    >>> 1234 in downsample(y, y), len(downsample(y, y)) <= 600
    (True, True)
    """
    n = len(low)
    if n <= limit:
        return np.arange(n)
    edges = np.linspace(1, n - 1, (limit - 2) // 2 + 1).astype(int)
    found = {0, n - 1}
    for a, b in pairwise(edges):
        found |= {a + int(np.argmin(low[a:b])), a + int(np.argmax(high[a:b]))}
    return np.array(sorted(found))


def space_evenly(n: int, limit: int = MAX_POINTS) -> NDArray[np.int64]:
    """Return at most `limit` evenly spaced indices of n, both ends included.

    >>> space_evenly(9, 3).tolist()
    [0, 4, 8]
    """
    if not n:
        return np.arange(0)
    return np.unique(np.linspace(0, n - 1, min(n, limit)).round().astype(int))


def round_values(values: Iterable[Any]) -> list[float | None]:
    """Return values with six significant digits, None where they are not finite.

    >>> round_values(np.array([0.123456789, 2.0, np.nan]))
    [0.123457, 2, None]
    """
    out: list[float | None] = []
    for value in map(float, values):
        if not math.isfinite(value):
            out.append(None)
        elif value == int(value) and abs(value) < 1e15:
            out.append(int(value))
        else:
            out.append(float(f"{value:.6g}"))
    return out


def build_curves(table: HistoryTable) -> dict[str, dict[str, list[float | None]]]:
    """Return each curve by name: the rounds that have values, their mean and their spread."""
    out = {}
    for name, values in table.columns.items():
        present = np.isfinite(values).any(axis=0)
        if name in NO_CURVE or name.startswith(("bytes_up.", "bytes_down.")) or not present.any():
            continue
        values, rounds = values[:, present], table.rounds[present]
        low, high, deviation = spread_over_runs(values)
        at = downsample(low, high, MAX_POINTS if name in MAIN else MAX_POINTS // 2)
        lines = {"at": rounds, "mean": mean_over_runs(values)}
        if len(values) > 1:
            lines |= {"low": low, "high": high, "sd": deviation}
        out[name] = {k: round_values(v[at]) for k, v in lines.items()}
    return out


def build_axes(table: HistoryTable) -> dict[str, list[float | None]]:
    """Return the cumulative costs at some rounds; the page interpolates between them."""
    at = space_evenly(len(table.rounds))
    out = {"at": round_values(table.rounds[at])}
    return out | {name: round_values(mean_over_runs(table.cumulative(name))[at]) for name in COSTS}


def mean_and_deviation(values: Iterable[Any]) -> list[float] | None:
    """Return mean, standard deviation and count of the finite numbers among values.

    >>> mean_and_deviation([1.0, 3.0, None])
    [2.0, 1.4142135623730951, 2]
    """
    finite = [float(v) for v in values if _is_number(v) and math.isfinite(v)]
    if not finite:
        return None
    mean = math.fsum(finite) / len(finite)
    norm = math.hypot(*(v - mean for v in finite))  # cannot overflow as squares can
    return [mean, norm / math.sqrt(max(len(finite) - 1, 1)), len(finite)]


def build_ledger(table: HistoryTable) -> list[dict[str, Any]]:
    """Return the bytes of each channel over a whole run, as means over the seeds."""
    out = []
    rounds = max(1.0, float(np.isfinite(table.columns["bytes_up"]).sum(axis=1).mean()))
    for way in ("up", "down"):
        prefix = f"bytes_{way}."
        channels = [name for name in table.columns if name.startswith(prefix)]
        for name in channels or [f"bytes_{way}"]:
            total = float(np.nansum(table.columns[name], axis=1).mean())
            row = {"way": way, "channel": name.removeprefix(prefix) if channels else "all"}
            out.append(row | {"bytes": total, "per_round": total / rounds})
    return [row for row in out if row["bytes"]]


def _settings_text(runs: Sequence[Run]) -> dict[str, str]:
    """Return a group's settings as text; values that differ between its seeds are listed."""
    each = [flatten({k: v for k, v in r.settings.items() if k != "command"}) for r in runs]
    names = [n for n in dict.fromkeys(k for one in each for k in one) if ".picture" not in n]
    return {n: ", ".join(dict.fromkeys(_to_text(one.get(n)) for one in each)) for n in names}


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def method_name(run: Run) -> str:
    """Return the name of a run's method, or "run" if the settings have none."""
    method = run.settings.get("method")
    name = method.get("name") if isinstance(method, Mapping) else method
    return str(name) if name else "run"


def summary_rows(run: Run, measures: Sequence[str] = SUMMARY_MEASURES) -> list[tuple[str, str]]:
    """Return a run's totals and last measurements as pairs of texts: name and value."""
    found = run.summary
    up, down = format_bytes(found["bytes_up"]), format_bytes(found["bytes_down"])
    rows = [("method", method_name(run)), ("rounds", f"{found['rounds']} ({found['status']})")]
    others = [n for n in found if n.startswith(("test_", "validation_")) and n not in measures]
    names = [n for n in (*measures, *others) if found.get(n) is not None]
    rows += [(n.replace("_", " "), f"{found[n]:.4f}") for n in names]
    if found.get("worst_client") and "client_worst" in measures:
        rows.append(("worst client", str(found["worst_client"])))
    rows += [("sent up / down", f"{up} / {down}"), ("seconds", f"{found['seconds']:.1f}")]
    return rows + ([("run folder", str(run.path))] if run.path is not None else [])


def describe_run(run: Run) -> str:
    """Return a run's totals and last measurements as lines of text."""
    rows = summary_rows(run)
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{text}" for name, text in rows)


def format_command(settings: Mapping[str, Any]) -> str | None:
    """Return the command line that repeats a run, or None if the run was started from Python.

    >>> format_command({"command": {"method": "fedavg", "set": ["lr=0.1"], "seed": 1, "batch": 50}})
    'tunefree run --method fedavg --set lr=0.1 --seed 1'
    """
    asked = settings.get("command")
    if not isinstance(asked, Mapping) or not asked or not set(asked) <= set(COMMAND_DEFAULTS):
        return None
    return shlex.join(["tunefree", "run", *list_options(asked, ALWAYS)])


def list_options(asked: Mapping[str, Any], always: Sequence[str] = ()) -> list[str]:
    """Return the options that differ from the defaults, and those named, as they are typed.

    >>> list_options({"clients": 9, "batch": 50, "keep_best": True})
    ['--clients', '9', '--keep-best']
    """
    hidden = ("set", "data") if asked.get("table") else ("set",)
    names = [name for name in COMMAND_DEFAULTS if name not in hidden]
    names.insert(names.index("method") + 1, "set")  # the method's settings follow its name
    words: list[str] = []
    for name in names:
        value, flag = asked.get(name), f"--{name.replace('_', '-')}"
        if value is None or (value == COMMAND_DEFAULTS[name] and name not in always):
            continue
        if isinstance(value, list | tuple):
            words += [word for one in value for word in (flag, str(one))]
        else:
            words += [flag] if value is True else [flag, str(value)]
    return words


def build_group(label: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return one group as plain data."""
    table, summaries = tabulate(runs), [run.summary for run in runs]
    return {
        "label": str(label),
        "method": method_name(runs[0]) if runs else "",
        "runs": len(runs),
        "seeds": [run.settings.get("seed") for run in runs],
        "asked": mean_and_deviation(run.settings.get("rounds") for run in runs),
        "status": dict(Counter(str(run.status) for run in runs)),
        "totals": {name: mean_and_deviation(s.get(name) for s in summaries) for name in TOTALS},
        "axes": build_axes(table),
        "curves": build_curves(table),
        "ledger": build_ledger(table),
        "settings": _settings_text(runs),
        "commands": [text for run in runs if (text := format_command(run.settings))],
    }


def build_pictures(groups: Groups) -> list[dict[str, Any]]:
    """Return the clients' sizes and label counts, once for each distinct split of the data."""
    out: dict[str, dict[str, Any]] = {}
    for runs in groups.values():
        for run in runs:
            data: Any = run.settings.get("data")
            picture = data.get("picture") if isinstance(data, Mapping) else None
            if not isinstance(picture, Mapping) or not picture.get("sizes"):
                continue
            key = json.dumps(picture, sort_keys=True, default=str)
            names = out.setdefault(key, {"names": [], **_build_picture(picture, data)})["names"]
            name = f"{data.get('name', 'data')}, seed {run.settings.get('seed')}"
            if name not in names:
                names.append(name)
    return list(out.values())[:MAX_PICTURES]


def _build_picture(picture: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    at = space_evenly(len(picture["sizes"]), MAX_CLIENTS)
    columns = [k for k in ("clients", "sizes", "labels") if picture.get(k)]
    out = {k: [picture[k][i] for i in at] for k in columns}
    labels = data.get("classes")
    out |= {"classes": [str(label) for label in labels]} if isinstance(labels, list) else {}
    return {"clients": at.tolist(), **out, "of": data.get("clients", len(picture["sizes"]))}


@convert_errors("These runs cannot be shown: settings or histories are damaged", CheckpointError)
def build_payload(
    groups: Groups,
    *,
    title: str | None = None,
    tuning: Sequence[Mapping[str, Any]] | None = None,
    comparison: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return all data of the page; the arguments are those of `page.write`."""
    groups = {label: list(runs) for label, runs in groups.items() if runs}
    every = [run for runs in groups.values() for run in runs]
    data = {str(run.settings["data"].get("name")) for run in every if run.settings.get("data")}
    what = next(iter(groups), "No runs") if len(groups) < 2 else f"{len(groups)} configurations"
    return {
        "title": title or " on ".join([what, *([", ".join(sorted(data))] if data else [])]),
        "version": __version__,
        "groups": [build_group(label, runs) for label, runs in groups.items()],
        "pictures": build_pictures(groups),
        "tuning": [dict(item) for item in tuning or ()],
        "comparison": None if comparison is None else dict(comparison),
    }
