"""The record of an experiment: plain data from which every table is made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.keep import machine, versions

from tunefree.core.errors import CheckpointError, convert_errors
from tunefree.core.files import read_file, to_json, write_atomically
from tunefree.report.payload import downsample as thinned
from tunefree.report.payload import mean_over_runs as mean_of
from tunefree.report.payload import round_values as short
from tunefree.report.payload import tabulate as side_by_side
from tunefree.study import measures
from tunefree.study.tasks import NOT_RUN, Outcome
from tunefree.training.run import Run

from . import claims
from .numbers import add_values_up
from .spec import Claim, Experiment, Row, SpecFile
from .superseded import describe_changes

POINTS = 60  # of a curve
Record = dict[str, Any]


@dataclass(frozen=True)
class RowResult:
    """A row with its runs.

    Args:
        row: The row.
        chosen: The settings found in its grid; None if nothing was searched or found.
        outcomes: One for each seed.
        cost: What the search cost: runs, rounds of each, gradients, seconds.
        reason: Why there are no runs; "" if there are some.
    """

    row: Row
    chosen: Mapping[str, Any] | None
    outcomes: Sequence[Outcome]
    cost: Mapping[str, Any] | None = None
    reason: str = ""


def make_record(
    found: Experiment,
    played: Sequence[RowResult],
    skipped: Mapping[str, str],
    device: torch.device,
    narrowed: str,
    seconds: float,
) -> Record:
    """Return the record of an experiment.

    Args:
        found: The experiment.
        played: Its rows.
        skipped: Why a task was left out, by name.
        device: Where runs are played now; `places` says where these were.
        narrowed: Options that made it smaller than its specification.
        seconds: Of all runs, one after the other.
    """
    out: Record = {
        "name": found.name,
        "scale": found.scale,
        "kind": found.kind,
        "command": f"python -m experiments {found.name} --scale {found.scale} {narrowed}".strip(),
        "narrowed": narrowed,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(device),
        "versions": versions(),
        "seconds": round(seconds, 1),
        "seeds": list(range(found.seeds)),
        "tune_by": found.tune_by,
        "measure": found.measure,
        "x": found.x,
        "tasks": [
            {"name": t.name, "label": t.label, "words": t.words, "skipped": skipped.get(t.name, "")}
            for t in found.tasks
        ],
        "rows": [_row(found, one) for one in played],
    }
    return out


def summarize_origins(made: Sequence[Record]) -> Record:
    """Return machine, versions and last date of the runs: the most common ones, then the others.

    Args:
        made: For each run, what `play.made` says.
    """
    groups: dict[str, list[Record]] = {}
    for one in made:
        groups.setdefault(to_json([one["machine"], one["versions"]]), []).append(one)
    if not groups:
        return {}
    first, *others = sorted(groups.values(), key=len, reverse=True)
    out = {k: first[0][k] for k in ("machine", "versions")}
    out["date"] = max(one["date"] for one in made)
    if others:
        out["elsewhere"] = [
            {"runs": len(g), "machine": g[0]["machine"], "versions": g[0]["versions"]}
            for g in others
        ]
    return out


def _row(found: Experiment, one: RowResult) -> Record:
    runs = [o for o in one.outcomes if isinstance(o, Run)]
    for run in runs:
        add_values_up(run.history)
    texts = {n.text: n for n in (*found.show, *(c.by for c in found.claims))}
    status = [_status(o) for o in one.outcomes]
    values = {
        text: [
            _round_digits(number.of(o.history)) if measures.ended_well(o) else None
            for o in one.outcomes
        ]
        for text, number in texts.items()
    }
    return {
        "task": one.row.task,
        "label": one.row.label,
        "base": one.row.base,
        "method": one.row.method,
        "set": one.row.set,
        "words": one.row.words,
        "chosen": one.chosen,
        "search": one.cost,
        "status": status,
        "notes": [one.reason] if one.reason else measures.describe_lost_seeds(one.outcomes),
        "values": values,
        "seconds": [
            _round_digits(sum(r.get("seconds") or 0 for r in o.history)) for o in one.outcomes
        ],
        "curves": mean_curves(runs, found.curves, found.x),
    }


def _status(outcome: Outcome) -> str:
    if isinstance(outcome, Run):
        return outcome.status
    return "not run" if outcome.reason == NOT_RUN else "failed"


def _round_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def mean_curves(runs: Sequence[Run], names: Sequence[str], x: str) -> dict[str, Any]:
    """Return the mean over runs of each curve, thinned, with its least and greatest value."""
    if not runs or not names:
        return {}
    found = side_by_side(runs)
    along = (
        found.rounds
        if x == "round"
        else mean_of(found.cumulative(x) if x in found.columns else found.columns[x])
    )
    out = {}
    for name in names:
        if name not in found.columns:
            continue
        values = found.columns[name]
        there = np.isfinite(values).any(axis=0) & np.isfinite(along)
        if not there.any():
            continue
        values, at = values[:, there], along[there]
        low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        few = thinned(low, high, POINTS)
        parts = {"x": at, "mean": mean_of(values), "low": low, "high": high}
        out[name] = {k: short(v[few]) for k, v in parts.items()}
    return out


def apply_spec(kept: Record, found: Experiment) -> Record:
    """Update a record by the specification: published numbers, verdicts on claims, texts.

    Of rows that were made with other settings no claim is judged, and no published number is shown.
    """
    tasks = {t.name: t for t in found.tasks}
    rows = []
    for row in kept["rows"]:
        if row["task"] in tasks:
            changes = describe_changes(kept, row, found) if row["status"] else ""
            published = tasks[row["task"]].published.get(row["label"], {})
            rows.append({**row, "published": {} if changes else published, "changes": changes})
    skipped = {t["name"]: "Not run." if t["skipped"] else "" for t in kept["tasks"]}
    verdicts = [
        _judge(c, name, [r for r in rows if r["task"] == name], skipped.get(name, ""))
        for c in found.claims
        for name in c.tasks
        if name in skipped
    ]
    return {
        **kept,
        "title": found.title,
        "show": [n.text for n in found.show],
        "of": {n.text: n.measure for n in (*found.show, *(c.by for c in found.claims))},
        "note": found.note if any(row["published"] for row in rows) else "",
        "assume": list(found.assume),
        "sources": [asdict(source) for source in found.sources],
        "smaller": [*kept.get("cut", ()), *list_reductions(found)],
        "tasks": [
            {**t, "label": tasks[t["name"]].label} for t in kept["tasks"] if t["name"] in tasks
        ],
        "rows": rows,
        "claims": verdicts,
    }


def _judge(claim: Claim, task: str, rows: Sequence[Record], reason: str) -> Record:
    names = {*claim.better, *claim.than}
    for row in rows:
        if row["changes"] and names & {row["label"], row["base"]}:
            reason = f"{row['label']} was made with other settings: {row['changes']}."
            return {**claims.judge(claim, task, [], reason), "superseded": True}
    return claims.judge(claim, task, rows, reason)


def list_reductions(found: Experiment) -> list[str]:
    """Return sentences about what is smaller than in the paper."""
    out = list(found.says)
    for task in found.tasks:
        out += [f"{task.name}: {line}" for line in task.says]
    said: dict[str, list[str]] = {}
    for row in found.rows:
        for line in row.says:
            names = said.setdefault(line, [])
            names += [] if row.base in names else [row.base]
    return out + [f"{', '.join(names)}: {line}" for line, names in said.items()]


def save(kept: Record, path: Path) -> Path:
    """Write a record: one line for each row, so that changes can be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = json.loads(to_json(kept))
    rows = plain.pop("rows")
    head = json.dumps(plain, indent=1, ensure_ascii=False)
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    text = f'{head[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n'
    write_atomically(path, text.encode())
    return path


def load(path: Path) -> Record:
    """Read a record."""
    with convert_errors(f"{path} is damaged", CheckpointError):
        found: Record = json.loads(read_file(path))
        if not isinstance(found, dict):
            raise TypeError("it is no record")
    return found


def record_path(spec: SpecFile, scale: str) -> Path:
    """Return the path of an experiment's record."""
    return spec.path.parent / "results" / f"{spec.path.stem}-{scale}.json"


def sum_search_cost(outcomes: Sequence[Outcome], rounds: int) -> dict[str, Any]:
    """Return the cost of a search: runs, rounds, gradients, seconds."""
    spent = measures.total_cost(outcomes)
    return {
        "runs": len(outcomes),
        "rounds": rounds,
        "lost": sum(not measures.ended_well(o) for o in outcomes),
        "gradients": spent["gradients"],
        "seconds": round(spent["seconds"], 1),
    }
