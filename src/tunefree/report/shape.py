"""Runs as plain data for the page: curves over seeds, totals, who has what, settings.

A group is a label with one run per seed. Its curves are means over the seeds that reached a round,
with the lowest, the highest and the standard deviation (of a sample) beside them.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ..core.errors import CheckpointError, convert_errors
from ..training.run import Run
from ..version import __version__
from .command import command
from .thin import Numbers, kept, short, spaced

COSTS = ("bytes_up", "bytes_down", "seconds", "gradients")  # added up over rounds
TOTALS = (*COSTS, "rounds", "test_accuracy", "best_test_accuracy", "test_loss")
NO_CURVE = ("round", "bytes_up", "bytes_down", "seconds", "gradients")
MAIN = ("test_accuracy", "test_loss", "train_loss")
POINTS, PICTURES, CLIENTS = 600, 12, 100  # at most
Groups = Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Table:
    """The histories of a group side by side.

    Attributes:
        rounds: Rounds played, 1, 2, ..., (R,).
        columns: Every number by name, one row per run, NaN where there is none, (runs, R).
    """

    rounds: Numbers
    columns: dict[str, Numbers]

    def cost(self, name: str) -> Numbers:
        """Return what was spent up to and including each round, (runs, R); NaN after the end."""
        spent = self.columns[name]
        past = np.cumsum(np.isfinite(spent)[:, ::-1], axis=1)[:, ::-1] == 0
        return np.where(past, np.nan, np.cumsum(np.nan_to_num(spent), axis=1))


def _number(value: Any) -> bool:
    return type(value) in (float, int) or (isinstance(value, Real) and not isinstance(value, bool))


def table(runs: Sequence[Run]) -> Table:
    """Return the histories of runs side by side."""
    places = [{_place(row, i): row for i, row in enumerate(run.history)} for run in runs]
    rounds = sorted(set().union(*places))
    columns = {name: np.full((len(runs), len(rounds)), np.nan) for name in COSTS}
    for i, rows in enumerate(places):
        for j, t in enumerate(rounds):
            for name, value in rows.get(t, {}).items():
                if not _number(value):
                    continue
                if name not in columns:
                    columns[name] = np.full((len(runs), len(rounds)), np.nan)
                if math.isfinite(value):
                    columns[name][i, j] = value
    return Table(np.array(rounds, dtype=float) + 1, dict(sorted(columns.items())))


def _place(row: Mapping[str, Any], otherwise: int) -> int:
    return int(row["round"]) if _number(row.get("round")) else otherwise


def mean(values: Numbers) -> Numbers:
    """Return the mean over runs of each round, NaN where no run has a number."""
    count = np.isfinite(values).sum(axis=0)
    return np.where(count > 0, np.nansum(values, axis=0) / np.maximum(count, 1), np.nan)


def spread(values: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return lowest, highest and standard deviation of each round; every round has a number."""
    count = np.isfinite(values).sum(axis=0)
    off = np.nansum((values - mean(values)) ** 2, axis=0)
    deviation = np.sqrt(off / np.maximum(count - 1, 1))
    return np.nanmin(values, axis=0), np.nanmax(values, axis=0), deviation


def curves(found: Table) -> dict[str, dict[str, list[float | None]]]:
    """Return each curve by name: the rounds that it has numbers for, their mean and spread."""
    out = {}
    for name, values in found.columns.items():
        there = np.isfinite(values).any(axis=0)
        if name in NO_CURVE or name.startswith(("bytes_up.", "bytes_down.")) or not there.any():
            continue
        values, rounds = values[:, there], found.rounds[there]
        low, high, deviation = spread(values)
        at = kept(low, high, POINTS if name in MAIN else POINTS // 2)
        lines = {"at": rounds, "mean": mean(values)}
        if len(values) > 1:
            lines |= {"low": low, "high": high, "sd": deviation}
        out[name] = {k: short(v[at]) for k, v in lines.items()}
    return out


def axes(found: Table) -> dict[str, list[float | None]]:
    """Return what was spent after so many rounds; between two of them the page interpolates."""
    at = spaced(len(found.rounds))
    out = {"at": short(found.rounds[at])}
    return out | {name: short(mean(found.cost(name))[at]) for name in COSTS}


def moments(values: Iterable[Any]) -> list[float] | None:
    """Return mean, standard deviation and number of the values that are numbers.

    >>> moments([1.0, 3.0, None])
    [2.0, 1.4142135623730951, 2]
    """
    good = [float(v) for v in values if _number(v) and math.isfinite(v)]
    if not good:
        return None
    middle = math.fsum(good) / len(good)
    off = math.hypot(*(v - middle for v in good))  # no square that could overflow
    return [middle, off / math.sqrt(max(len(good) - 1, 1)), len(good)]


def ledger(found: Table) -> list[dict[str, Any]]:
    """Return what each channel carried in a whole run, on average over the seeds."""
    out = []
    rounds = max(1.0, float(np.isfinite(found.columns["bytes_up"]).sum(axis=1).mean()))
    for way in ("up", "down"):
        head = f"bytes_{way}."
        parts = [name for name in found.columns if name.startswith(head)]
        for name in parts or [f"bytes_{way}"]:
            total = float(np.nansum(found.columns[name], axis=1).mean())
            channel = name[len(head) :] if parts else "all"
            out.append(
                {"way": way, "channel": channel, "bytes": total, "per_round": total / rounds}
            )
    return [row for row in out if row["bytes"]]


def flat(settings: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name.

    >>> flat({"method": {"name": "fedavg"}, "seed": 0})
    {'method.name': 'fedavg', 'seed': 0}
    """
    if not isinstance(settings, Mapping):
        return {name: settings}
    parts = [flat(v, f"{name}.{k}" if name else str(k)) for k, v in settings.items()]
    return {k: v for part in parts for k, v in part.items()}


def _settings(runs: Sequence[Run]) -> dict[str, str]:
    """Return a group's settings as text; what differs between its seeds is listed."""
    each = [flat({k: v for k, v in r.settings.items() if k != "command"}) for r in runs]
    names = [n for n in dict.fromkeys(k for one in each for k in one) if ".picture" not in n]
    return {n: ", ".join(dict.fromkeys(_text(one.get(n)) for one in each)) for n in names}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def method_name(run: Run) -> str:
    """Return the name of a run's method, "run" where it has none."""
    method = run.settings.get("method")
    name = method.get("name") if isinstance(method, Mapping) else method
    return str(name) if name else "run"


def group(label: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return one group as plain data."""
    found, facts = table(runs), [run.summary for run in runs]
    return {
        "label": str(label),
        "method": method_name(runs[0]) if runs else "",
        "runs": len(runs),
        "seeds": [run.settings.get("seed") for run in runs],
        "asked": moments(run.settings.get("rounds") for run in runs),
        "status": dict(Counter(str(run.status) for run in runs)),
        "totals": {name: moments(f.get(name) for f in facts) for name in TOTALS},
        "axes": axes(found),
        "curves": curves(found),
        "ledger": ledger(found),
        "settings": _settings(runs),
        "commands": [text for run in runs if (text := command(run.settings))],
    }


def pictures(groups: Groups) -> list[dict[str, Any]]:
    """Return who has what, once for each way in which the data was dealt."""
    out: dict[str, dict[str, Any]] = {}
    for runs in groups.values():
        for run in runs:
            data = run.settings.get("data")
            data = data if isinstance(data, Mapping) else {}
            found = data.get("picture")
            if not isinstance(found, Mapping) or not found.get("sizes"):
                continue
            key = json.dumps(found, sort_keys=True, default=str)
            names = out.setdefault(key, {"names": [], **_picture(found, data)})["names"]
            name = f"{data.get('name', 'data')}, seed {run.settings.get('seed')}"
            if name not in names:
                names.append(name)
    return list(out.values())[:PICTURES]


def _picture(found: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    at = spaced(len(found["sizes"]), CLIENTS)
    out = {k: [found[k][i] for i in at] for k in ("clients", "sizes", "labels") if found.get(k)}
    return {"clients": at.tolist(), **out, "of": data.get("clients", len(found["sizes"]))}


@convert_errors(
    "These runs cannot be shown: their settings or histories are damaged", CheckpointError
)
def payload(
    groups: Groups, *, title: str | None = None, tuning: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return all that the page shows."""
    groups = {label: list(runs) for label, runs in groups.items() if runs}
    every = [run for runs in groups.values() for run in runs]
    data = {str(run.settings["data"].get("name")) for run in every if run.settings.get("data")}
    what = next(iter(groups), "No runs") if len(groups) < 2 else f"{len(groups)} configurations"
    return {
        "title": title or " on ".join([what, *([", ".join(sorted(data))] if data else [])]),
        "version": __version__,
        "groups": [group(label, runs) for label, runs in groups.items()],
        "pictures": pictures(groups),
        "tuning": [dict(item) for item in tuning or ()],
    }
