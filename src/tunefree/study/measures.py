"""Scores and costs of a study's runs, and the significance of differences between methods.

A run counts if it finished or stopped early. If some seeds of a method did not, its mean is over
the others, and it is neither the best nor tested while another method has all of its seeds. Costs
are sums over all rounds; the first row includes the pass before round 0. Gradients are minibatch
gradients, without the loss evaluations of line searches.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from ..methods import CATALOGUE
from ..training.run import Run
from .significance import LEVEL, holm, two_sided_p
from .tasks import GOOD, NOT_RUN, FailedRun, Outcome

COSTS = ("gradients", "bytes_up", "bytes_down", "seconds")
MEASURES = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss", "train_loss")
TARGET_SHARE = 0.95  # the default target, as a share of the best method's final score
OutcomesByLabel = Mapping[str, Sequence[Outcome]]


def to_float(value: Any) -> float | None:
    """Return a number as float; None for other values and for numbers too large to average."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e100 else None


def ended_well(outcome: Outcome) -> TypeGuard[Run]:
    """Whether a run finished or stopped early."""
    return isinstance(outcome, Run) and outcome.status in GOOD


def choose_measure(groups: OutcomesByLabel) -> str:
    """Return the first of `MEASURES` that every run has which ended well."""
    runs = [run for group in groups.values() for run in group if ended_well(run)]
    for name in MEASURES:
        if runs and all(final_value(run, name) is not None for run in runs):
            return name
    return MEASURES[0]


def is_higher_better(measure: str) -> bool:
    """Whether higher values of the measure are better."""
    return measure.endswith("accuracy")


def final_value(run: Run, measure: str) -> float | None:
    """Return the measure of the model that the run ships."""
    if measure == "train_loss":
        return to_float(run.history[-1].get(measure)) if run.history else None
    return to_float(run.summary.get(measure))


def final_values(groups: OutcomesByLabel, measure: str) -> dict[str, list[float | None]]:
    """Return each method's final values, one per seed; None if the run did not end well."""
    return {
        label: [final_value(r, measure) if ended_well(r) else None for r in group]
        for label, group in groups.items()
    }


def best_value(run: Run, measure: str) -> float | None:
    """Return the best value over all rounds."""
    found = [v for row in run.history if (v := to_float(row.get(measure))) is not None]
    return (max if is_higher_better(measure) else min)(found, default=None)


def total_cost(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Return the sums of the costs of several runs, by name."""
    rows = [row for outcome in outcomes for row in outcome.history]
    return {name: sum(row.get(name) or 0 for row in rows) for name in COSTS}


def cost_to_target(run: Run, measure: str, target: float) -> dict[str, float] | None:
    """Return rounds, bytes up and gradients until the target was reached; None if it was not."""
    sums = {"rounds": 0.0, "bytes_up": 0.0, "gradients": 0.0}
    for row in run.history:
        sums["rounds"] = row["round"] + 1
        for name in ("bytes_up", "gradients"):
            sums[name] += row.get(name) or 0
        value = to_float(row.get(measure))
        if value is not None and (
            value >= target if is_higher_better(measure) else value <= target
        ):
            return sums
    return None


def mean_and_sd(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation of the values there are; None with too few."""
    found = [v for v in values if v is not None]
    mean = statistics.fmean(found) if found else None
    return mean, statistics.stdev(found) if len(found) > 1 else None


def find_best(finals: Mapping[str, Sequence[float | None]], measure: str) -> str | None:
    """Return the method with the best final mean, among those with every seed if there is one."""
    sign = 1 if is_higher_better(measure) else -1
    ranks: dict[str, tuple[bool, float]] = {}
    for label, values in finals.items():
        mean, _ = mean_and_sd(values)
        if mean is not None:
            ranks[label] = (None not in values, sign * mean)
    return max(ranks, key=lambda label: ranks[label], default=None)


def select_runs(groups: OutcomesByLabel) -> dict[str, list[Run]]:
    """Return the runs of each label without failures; labels without runs are left out."""
    runs = {label: [r for r in group if isinstance(r, Run)] for label, group in groups.items()}
    return {label: group for label, group in runs.items() if group}


def default_target(groups: OutcomesByLabel, measure: str) -> float | None:
    """Return the target if none is given; see `TARGET_SHARE`."""
    finals = final_values(groups, measure)
    first = find_best(finals, measure)
    mean = None if first is None else mean_and_sd(finals[first])[0]
    if mean is None:
        return None
    if is_higher_better(measure):
        return TARGET_SHARE * mean
    return mean + (1 - TARGET_SHARE) * abs(mean)


def compare_with(
    first: str, finals: Mapping[str, Sequence[float | None]]
) -> dict[str, tuple[float, float | None]]:
    """Return each method's mean difference to the first one and its p value (Holm), by label."""
    differences: dict[str, float] = {}
    ps: dict[str, float] = {}
    for label, values in finals.items():
        pairs = zip(values, finals[first], strict=True)
        each = [a - b for a, b in pairs if a is not None and b is not None]
        if label == first or not each or len(each) < len(values):
            continue
        differences[label] = statistics.fmean(each)
        if (p := two_sided_p(each)) is not None:
            ps[label] = p
    raised = holm(ps)
    return {label: (d, raised.get(label)) for label, d in differences.items()}


def summarise_seeds(group: Sequence[Outcome], measure: str, target: float | None) -> dict[str, Any]:
    """Return scores and costs of one method: means over the seeds that ended well."""
    ended = [r for r in group if ended_well(r)]
    out: dict[str, Any] = {"seeds": len(group), "finished": len(ended)}
    out["final"], out["final_sd"] = mean_and_sd(final_value(r, measure) for r in ended)
    out["best"], out["best_sd"] = mean_and_sd(best_value(r, measure) for r in ended)
    found = [None if target is None else cost_to_target(r, measure, target) for r in ended]
    reached = [costs for costs in found if costs is not None]
    out["reached"] = len(reached)
    for name in ("rounds", "bytes_up", "gradients"):
        mean, _ = mean_and_sd(costs[name] for costs in reached)
        out[f"{name}_to_target"] = mean if len(reached) == len(group) else None
    for name in COSTS:
        out[name], _ = mean_and_sd(total_cost([r])[name] for r in ended)
    return out


def describe_choices(group: Sequence[Outcome], tuning: Mapping[str, Any] | None) -> str:
    """Return the settings that had to be chosen, "nothing", or "" if that is not known."""
    if tuning is not None and tuning["settings"]:
        return "tuned: " + " ".join(f"{k}={v}" for k, v in tuning["settings"].items())
    for run in group:
        name = run.settings["method"].get("name") if isinstance(run, Run) else None
        if name is not None and name in CATALOGUE:
            return " ".join(CATALOGUE[name].choose) or "nothing"
    return ""


def describe_lost_seeds(group: Sequence[Outcome], rounds: int | None = None) -> list[str]:
    """Return a note for each seed that did not end well or completed fewer than `rounds` rounds."""
    out = []
    for outcome in group:
        if isinstance(outcome, FailedRun):
            out.append(f"seed {outcome.seed}: {outcome.reason.rstrip('.')}")
            continue
        done, asked = len(outcome.history), outcome.settings["rounds"]
        if outcome.status == "diverged":
            out.append(f"seed {outcome.settings['seed']}: diverged after {done} rounds")
        elif not ended_well(outcome) and done < (rounds or asked):
            out.append(f"seed {outcome.settings['seed']}: stopped after {done} of {asked} rounds")
    return out


def count_lost(group: Sequence[Outcome]) -> str:
    """Return how many seeds diverged, failed or did not finish, as text; "" for none."""
    diverged = sum(isinstance(r, Run) and r.status == "diverged" for r in group)
    failed = sum(isinstance(r, FailedRun) and r.reason != NOT_RUN for r in group)
    rest = sum(not ended_well(r) for r in group) - diverged - failed
    found = {"diverged": diverged, "failed": failed, "not finished": rest}
    return ", ".join(f"{count} of {len(group)} {what}" for what, count in found.items() if count)


def make_rows(
    groups: OutcomesByLabel, measure: str, target: float | None, tunings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return one row per method, with its difference to the best one and the test's verdict."""
    finals = final_values(groups, measure)
    first = find_best(finals, measure)
    found = {} if first is None else compare_with(first, finals)
    out = []
    for label, group in groups.items():
        tuning = tunings.get(label)
        difference, p = found.get(label, (None, None))
        verdict = "best" if label == first else "not tested"
        if p is not None:
            verdict = "worse" if p < LEVEL else "not told apart"
        row = {
            "label": label,
            **summarise_seeds(group, measure, target),
            "choose": describe_choices(group, tuning),
            "tuning_gradients": None if tuning is None else tuning["gradients"],
            "tuning_runs": None if tuning is None else tuning.get("runs"),
            "note": "; ".join(describe_lost_seeds(group)),
            "difference": difference,
            "p": p,
            "verdict": verdict,
            "lost": count_lost(group),
        }
        out.append(row)
    return out


def make_page_row(
    label: str, own: Mapping[str, Any], cost: Mapping[str, Any], score: str = "test"
) -> dict[str, Any]:
    """Return a row of the report's tuning table: score, cost of a run, and cost of tuning."""
    return {
        "label": label,
        "accuracy": own[score],
        **{name: own[name] for name in COSTS},
        **{f"tuning_{name}": cost.get(name, 0) for name in COSTS},
    }
