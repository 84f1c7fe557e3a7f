"""A record as text: the published table with ours beside it, claims, assumptions."""

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.keep import current_command, describe_machine

from tunefree.core.files import to_json
from tunefree.study import measures, tables

from .record import Record


def format_number(value: float | None, like: str = "") -> str:
    """Format a number for tables, accuracies with four decimals.

    >>> format_number(0.88371, "test_accuracy"), format_number(1234.5), format_number(None)
    ('0.8837', '1234', '')
    """
    if value is None:
        return ""
    return f"{value:.4f}" if like.endswith("accuracy") else f"{value:.4g}"


def format_difference(value: float | None, like: str = "") -> str:
    """Format a difference with its sign.

    >>> format_difference(-0.0123, "accuracy")
    '−0.0123'
    """
    if value is None:
        return ""
    return ("−" if value < 0 else "+") + format_number(abs(value), like)


def columns(kept: Record) -> dict[str, str]:
    """Return the headings of the table, by key."""
    several = len(kept["tasks"]) > 1 or any(t["label"] != t["name"] for t in kept["tasks"])
    out = {"task": "task", "label": "method"} if several else {"label": "method"}
    for name in kept["show"]:
        published = any(name in row["published"] for row in kept["rows"])
        if not published and "at-" in name and not _has_values(kept, name):
            continue  # no run is that long
        out |= {f"{name} paper": f"{name}, paper"} if published else {}
        out |= {f"{name} ours": f"{name}, ours" if published else name}
        out |= {f"{name} difference": "difference"} if published else {}
    if any(row["chosen"] for row in kept["rows"]):
        out["chosen"] = "chosen"
    if any(t["skipped"] for t in kept["tasks"]) or any(
        _describe_losses(row) for row in kept["rows"]
    ):
        out["note"] = "note"
    return out


def _has_values(kept: Record, name: str) -> bool:
    return any(v is not None for row in kept["rows"] for v in row["values"].get(name, ()))


def cells(kept: Record) -> list[dict[str, str]]:
    """Return the table, one row per task and method."""
    labels = {t["name"]: t["label"] for t in kept["tasks"]}
    out_of = {t["name"] for t in kept["tasks"] if t["skipped"]}
    out = []
    for row in kept["rows"]:
        line = {"task": labels[row["task"]], "label": row["label"]}
        for name in kept["show"]:
            like = measure_of(name, kept)
            mean, sd = summarise(name, row["values"].get(name, ()))
            paper, spread = row["published"].get(name), row["published"].get(f"{name}_sd")
            line[f"{name} paper"] = _format_mean(paper, spread, like)
            line[f"{name} ours"] = _format_mean(mean, sd, like) or "—"
            gap = None if mean is None or paper is None else mean - paper
            line[f"{name} difference"] = format_difference(gap, like)
        line["chosen"] = " ".join(
            f"{k}={_format_value(v)}" for k, v in (row["chosen"] or {}).items()
        )
        line["note"] = "not run" if row["task"] in out_of else _describe_losses(row)
        out.append(line)
    return out


def summarise(name: str, values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return mean and deviation over seeds; of a `highest`, the highest alone."""
    there = [value for value in values if value is not None]
    if name.endswith("highest"):
        return max(there, default=None), None
    return measures.mean_and_sd(values)


def measure_of(name: str, kept: Record) -> str:
    """Return the measure of a statistic, "" if it counts something else."""
    return "" if " to " in name or name.endswith("sum") else str(kept["of"][name])


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _format_mean(mean: float | None, sd: float | None, like: str) -> str:
    return format_number(mean, like) + (
        "" if sd is None or mean is None else f" ± {format_number(sd, like)}"
    )


def _describe_losses(row: Record) -> str:
    """Return how many seeds were lost, and why, and whether the settings have changed since."""
    count, found = len(row["status"]), []
    for status in ("diverged", "failed", "not run"):
        lost = row["status"].count(status)
        found += [f"{lost} of {count} {status}"] if lost else []
    found += ["other settings"] if row["changes"] else []
    said = row["notes"] if "failed" in row["status"] or not row["status"] else []
    return "; ".join(dict.fromkeys([*found, *said]))


def verdicts(kept: Record) -> list[dict[str, str]]:
    """Return the claims, one row per claim, task and pair."""
    out = []
    for claim in kept["claims"]:
        like = measure_of(claim["by"], kept)
        head = {"claim": claim["says"], "task": claim["task"], "by": claim["by"]}
        if not claim["pairs"] or claim["verdict"] == "not tested":
            out.append(head | {"verdict": claim["verdict"], "pair": claim["reason"]})
        for pair in claim["pairs"] if claim["verdict"] != "not tested" else ():
            out.append(
                head
                | {
                    "verdict": pair["verdict"],
                    "pair": f"{pair['better']} against {pair['than']}",
                    "difference": _describe_difference(claim, pair, like),
                }
            )
    return out


def _describe_difference(claim: Record, pair: Record, like: str) -> str:
    seeds = f"{pair['seeds']} seed{'s' if pair['seeds'] != 1 else ''}"
    if pair["error"] == 0:
        seeds += ", no spread"
    elif pair.get("p") is not None:
        seeds += f", {tables.format_p(pair['p'])}"
    if pair["difference"] is None:
        return f"one side diverged or missed the target, {seeds}"
    if claim.get("factor"):
        asked = f", {claim['factor']:g} times claimed"
        return f"{math.exp(pair['difference']):.3g} times better{asked}, {seeds}"
    error = "" if pair["error"] is None else f" ± {format_number(pair['error'], like)} (s.e.)"
    asked = f", within {claim['within']:g} claimed" if claim.get("within") else ""
    asked += f", {claim['margin']:+g} claimed" if claim.get("margin") else ""
    return f"{format_difference(pair['difference'], like)}{error}{asked}, {seeds}"


CLAIMS = {
    "verdict": "verdict",
    "claim": "claim",
    "task": "task",
    "by": "by",
    "pair": "rows",
    "difference": "difference",
}


def tally(kept: Record) -> str:
    """Return how many claims hold, in a line; "" where there is none.

    >>> tally({"claims": [{"verdict": "holds"}, {"verdict": "open"}]})
    'Of 2 claims 1 holds, 1 is open.'
    """
    found = [claim["verdict"] for claim in kept["claims"]]
    if not found:
        return ""
    words = {"holds": ("holds", "hold"), "open": ("is open", "are open")}
    words |= {"fails": ("fails", "fail"), "not tested": ("was not tested", "were not tested")}
    said = [f"{n} {words[name][n > 1]}" for name in words if (n := sum(v == name for v in found))]
    return f"Of {len(found)} claim{'s' if len(found) > 1 else ''} {', '.join(said)}."


def remarks(kept: Record) -> list[str]:
    """Return the sentences that belong beside the numbers."""
    seeds = len(kept["seeds"])
    out = [f"Mean ± standard deviation over {seeds} seeds."] if seeds > 1 else ["One seed."]
    if kept["note"]:
        out.append(kept["note"])
    if kept["narrowed"]:
        out.append(f"Not the whole experiment: {kept['narrowed']}.")
    searches = [row["search"] for row in kept["rows"] if row["search"]]
    if searches:
        runs, took = sum(s["runs"] for s in searches), sum(s["seconds"] for s in searches)
        by = {"test": "the test set, as in the paper", "validation": "validation data"}
        out.append(
            f"Settings under 'chosen' were searched on the first seed and chosen by "
            f"{by.get(kept['tune_by'], 'the training loss')}: {runs} runs, {took / 60:.1f} minutes."
        )
    changed: dict[str, list[str]] = {}
    for row in kept["rows"]:
        if row["changes"]:
            label = f"{row['task']}: {row['label']}" if len(kept["tasks"]) > 1 else row["label"]
            changed.setdefault(row["changes"], []).append(label)
    for changes, labels in changed.items():
        of = "all rows" if len(labels) == len(kept["rows"]) else "; ".join(labels)
        out.append(f"Made with other settings than the specification has now ({of}): {changes}.")
    out += _describe_earlier(kept)
    for other in kept.get("elsewhere", ()):
        made = f"{other['runs']} run{'s were' if other['runs'] > 1 else ' was'} made elsewhere"
        out.append(f"{made}: {describe_machine(other)}.")
    out += [f"{t['label']}: {t['skipped']}" for t in kept["tasks"] if t["skipped"]]
    return out


def _describe_earlier(kept: Record) -> list[str]:
    """Return a sentence for each earlier call of which rows are shown."""
    calls: dict[str, list[Record]] = {}
    for row in kept["rows"]:
        if "made" in row:
            facts = {k: v for k, v in row["made"].items() if k != "words"}
            calls.setdefault(to_json([facts, len(row["status"])]), []).append(row)
    out = []
    for rows in calls.values():
        made, seeds = rows[0]["made"], len(rows[0]["status"])
        places = [made, *made.get("elsewhere", ())]
        where = "; ".join(dict.fromkeys(describe_machine(one) for one in places))
        out.append(
            f"Of an earlier call, {current_command(made['command'])}, with "
            f"{seeds} seed{'s' if seeds > 1 else ''} ({_name_rows(rows, kept)}): {where}; "
            f"{made['date']}."
        )
    return out


def _name_rows(rows: Sequence[Record], kept: Record) -> str:
    """Return the names of rows; of a task that has no others, its name alone."""
    several, out = len(kept["tasks"]) > 1, []
    for task in dict.fromkeys(row["task"] for row in rows):
        labels = [row["label"] for row in rows if row["task"] == task]
        every = [row["label"] for row in kept["rows"] if row["task"] == task]
        names = f": {', '.join(labels)}" if labels != every else ""
        out.append(f"{task}{names}" if several else ", ".join(labels))
    return "; ".join(out)


def describe_origin(kept: Record) -> str:
    """Return one line: machine, versions, date and duration."""
    took = f"{kept['seconds'] / 60:.1f} minutes of runs"
    if "wall" in kept:
        several = f"{kept['jobs']} processes" if kept["jobs"] > 1 else "1 process"
        took += f", {kept['wall'] / 60:.1f} minutes with {several}"
    return f"{describe_machine(kept)}; {kept['date']}; {took}."


def markdown(kept: Record, level: int = 1) -> str:
    """Return the record in markdown."""
    head = "#" * level
    parts = [
        f"{head} {kept['name']}, {kept['scale']}: {tables.escape_markdown(kept['title'])}",
        f"    {current_command(kept['command'])}",
        describe_origin(kept),
        tables.to_markdown(cells(kept), columns(kept)),
        *(tables.escape_markdown(line) for line in remarks(kept)),
    ]
    if kept["claims"]:
        shown = {k: v for k, v in CLAIMS.items() if k != "task" or len(kept["tasks"]) > 1}
        parts += [f"{head}# Claims", tally(kept), tables.to_markdown(verdicts(kept), shown)]
    for title, lines in list_sections(kept):
        if lines:
            parts += [f"{head}# {title}", _make_bullets(lines)]
    return "\n\n".join(parts) + "\n"


def list_sections(kept: Record) -> list[tuple[str, list[str]]]:
    """Return where the settings come from and what is smaller than in the paper, by heading."""
    by_kind: dict[str, dict[str, list[str]]] = {}
    for source in kept["sources"]:
        settings = by_kind.setdefault(source["kind"], {}).setdefault(source["where"], [])
        settings.append(source["setting"])
    lines = {
        kind: [f"{', '.join(settings)}: {where}" for where, settings in found.items()]
        for kind, found in by_kind.items()
    }
    return [
        ("Stated in the paper", lines.get("paper", [])),
        ("From code", lines.get("code", [])),
        ("Assumed", [*lines.get("assumed", []), *kept["assume"]]),
        ("Smaller than the paper", kept["smaller"]),
    ]


def _make_bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {tables.escape_markdown(line)}" for line in lines)
