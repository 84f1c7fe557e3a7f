"""The numbers of a study: what runs reached, what it took, and what that says about methods.

A run counts when it finished (or stopped early by its own rule); a method that lost a seed has the
mean of the others, says how many it lost, and is neither the best nor tested while another method
has all of its seeds. Sums are over all rounds, and the first round's row includes the pass before
round 0. Gradients are minibatch gradients; the losses that a line search looks at are not among
them.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..methods import CATALOGUE
from ..training.run import Run
from .significance import LEVEL, holm, two_sided_p
from .work import GOOD, NOT_RUN, Failure, Outcome

COSTS = ("gradients", "bytes_up", "bytes_down", "seconds")
MEASURES = (
    "test_accuracy",
    "test_loss",
    "validation_accuracy",
    "validation_loss",
    "train_loss",
)
SHARE = 0.95  # of the best method's final score: the target unless one is given
Groups = Mapping[str, Sequence[Outcome]]


def number(value: Any) -> float | None:
    """Return a number as such, None for anything else, or for one too large to be averaged."""
    good = isinstance(value, int | float) and abs(value) < 1e100
    return float(value) if good else None


def good(outcome: Outcome) -> bool:
    """Return whether a run ended as it should."""
    return isinstance(outcome, Run) and outcome.status in GOOD


def measure_of(groups: Groups) -> str:
    """Return what methods are judged by: the first number that every good run has."""
    runs = [r for group in groups.values() for r in group if isinstance(r, Run) and good(r)]
    for name in MEASURES:
        if runs and all(final(run, name) is not None for run in runs):
            return name
    return MEASURES[0]


def rises(measure: str) -> bool:
    """Return whether more is better."""
    return measure.endswith("accuracy")


def final(run: Run, measure: str) -> float | None:
    """Return the number of the model that the run ships."""
    if measure == "train_loss":
        return number(run.history[-1].get(measure)) if run.history else None
    return number(run.summary.get(measure))


def best(run: Run, measure: str) -> float | None:
    """Return the best number of any round."""
    found = [v for row in run.history if (v := number(row.get(measure))) is not None]
    return (max if rises(measure) else min)(found, default=None)


def spent(outcome: Outcome) -> dict[str, float]:
    """Return what a run cost, by name."""
    return {name: sum(row.get(name) or 0 for row in outcome.history) for name in COSTS}


def until(run: Run, measure: str, target: float) -> dict[str, float] | None:
    """Return rounds, bytes up and gradients until the target was reached; None if it was not."""
    sums = {"rounds": 0.0, "bytes_up": 0.0, "gradients": 0.0}
    for row in run.history:
        sums["rounds"] = row["round"] + 1
        for name in ("bytes_up", "gradients"):
            sums[name] += row.get(name) or 0
        value = number(row.get(measure))
        if value is not None and (value >= target if rises(measure) else value <= target):
            return sums
    return None


def middle(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return mean and standard deviation (of a sample); None for what there is too little of."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


def leader(groups: Groups, measure: str) -> str | None:
    """Return the method with the best final mean, among those with every seed if there is one."""
    means: dict[str, tuple[bool, float]] = {}
    for label, group in groups.items():
        found = _finals(group, measure)
        values = [v for v in found if v is not None]
        if values:
            mean = statistics.fmean(values)
            means[label] = (len(values) == len(group), mean if rises(measure) else -mean)
    return max(means, key=lambda label: means[label], default=None)


def _finals(group: Sequence[Outcome], measure: str) -> list[float | None]:
    return [final(r, measure) if isinstance(r, Run) and good(r) else None for r in group]


def automatic(groups: Groups, measure: str) -> float | None:
    """Return the target that is used when none is given."""
    first = leader(groups, measure)
    if first is None:
        return None
    mean = statistics.fmean(v for v in _finals(groups[first], measure) if v is not None)
    return SHARE * mean if rises(measure) else mean + (1 - SHARE) * abs(mean)


def tests(groups: Groups, measure: str) -> dict[str, tuple[float | None, float | None]]:
    """Return each method's mean difference to the best one, and its p (Holm), by label."""
    first = leader(groups, measure)
    if first is None:
        return {}
    marks = _finals(groups[first], measure)
    differences: dict[str, float] = {}
    ps: dict[str, float] = {}
    for label, group in groups.items():
        found = list(zip(_finals(group, measure), marks, strict=True))
        pairs = [(a, b) for a, b in found if a is not None and b is not None]
        if label == first or not pairs or len(pairs) < len(group):
            continue
        each = [a - b for a, b in pairs]
        differences[label] = statistics.fmean(each)
        p = two_sided_p(each)
        if p is not None:
            ps[label] = p
    raised = holm(ps)
    return {label: (d, raised.get(label)) for label, d in differences.items()}


def row(
    label: str,
    group: Sequence[Outcome],
    measure: str,
    target: float | None,
    tuning: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return one method's line as plain data: means over the seeds that ended well."""
    runs = [r for r in group if isinstance(r, Run)]
    ended = [r for r in runs if good(r)]
    out: dict[str, Any] = {"label": label, "seeds": len(group), "finished": len(ended)}
    out["final"], out["final_sd"] = middle([v for v in _finals(group, measure) if v is not None])
    tops = [v for r in ended if (v := best(r, measure)) is not None]
    out["best"], out["best_sd"] = middle(tops)
    there = [] if target is None else [u for r in ended if (u := until(r, measure, target))]
    out["reached"] = len(there)
    for name in ("rounds", "bytes_up", "gradients"):
        whole = there and len(there) == len(group)
        out[f"{name}_to_target"] = statistics.fmean(u[name] for u in there) if whole else None
    for name in COSTS:
        out[name] = statistics.fmean(spent(r)[name] for r in ended) if ended else None
    out["choose"] = chosen(runs, tuning)
    out["tuning_gradients"] = None if tuning is None else tuning["gradients"]
    out["note"] = "; ".join(notes(group))
    return out


def chosen(runs: Sequence[Run], tuning: Mapping[str, Any] | None) -> str:
    """Return the settings that somebody had to choose, "nothing" or "" where it is not known."""
    if tuning is not None and tuning["settings"]:
        return "tuned: " + " ".join(f"{k}={v}" for k, v in tuning["settings"].items())
    name = runs[0].settings["method"].get("name") if runs else None
    if name is None or name not in CATALOGUE:
        return ""
    return " ".join(CATALOGUE[name].choose) or "nothing"


def notes(group: Sequence[Outcome], rounds: int | None = None) -> list[str]:
    """Return what became of seeds that did not end well, or did not come so many rounds far."""
    out = []
    for outcome in group:
        if isinstance(outcome, Failure):
            out.append(f"seed {outcome.seed}: {outcome.reason.rstrip('.')}")
            continue
        done, asked = len(outcome.history), outcome.settings["rounds"]
        if outcome.status == "diverged":
            out.append(f"seed {outcome.settings['seed']}: diverged after {done} rounds")
        elif not good(outcome) and done < (rounds or asked):
            out.append(f"seed {outcome.settings['seed']}: stopped after {done} of {asked} rounds")
    return out


def lost(group: Sequence[Outcome]) -> str:
    """Return how many seeds did not end well, in a few words; "" for none."""
    diverged = sum(isinstance(r, Run) and r.status == "diverged" for r in group)
    failed = sum(isinstance(r, Failure) and r.reason != NOT_RUN for r in group)
    rest = sum(not good(r) for r in group) - diverged - failed
    found = {"diverged": diverged, "failed": failed, "not finished": rest}
    return ", ".join(f"{count} of {len(group)} {what}" for what, count in found.items() if count)


def table(
    groups: Groups, measure: str, target: float | None, tunings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return one row per method, with what the test says about it."""
    first, found = leader(groups, measure), tests(groups, measure)
    out = []
    for label, group in groups.items():
        line = row(label, group, measure, target, tunings.get(label))
        difference, p = found.get(label, (None, None))
        verdict = "best" if label == first else "not tested"
        if p is not None:
            verdict = "worse" if p < LEVEL else "not told apart"
        line |= {"difference": difference, "p": p, "verdict": verdict, "lost": lost(group)}
        out.append(line)
    return out


def on_page(
    label: str, own: Mapping[str, Any], cost: Mapping[str, Any], score: str = "test"
) -> dict[str, Any]:
    """Return what a page shows of a label: its score, a run's cost, and the cost of tuning it."""
    return {
        "label": label,
        "accuracy": own[score],
        **{name: own[name] for name in COSTS},
        **{f"tuning_{name}": cost.get(name, 0) for name in COSTS},
    }
