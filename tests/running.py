"""Runs in tests: options by their own names, whatever group they belong to."""

from tunefree.training.bind import SimulatedClients, bind
from tunefree.training.config import GROUP_OF, Engine, Evaluate, RunConfig, Scenario

KINDS = {"evaluate": Evaluate, "engine": Engine, "scenario": Scenario}


def grouped(**options):
    """Return keyword arguments of `fit` in which options of a group are in their group."""
    inside = {}
    for name in [name for name in options if name in GROUP_OF]:
        inside.setdefault(GROUP_OF[name], {})[name] = options.pop(name)
    if "engine" in inside and isinstance(options.get("engine"), str):
        inside["engine"]["backend"] = options.pop("engine")
    return options | {group: KINDS[group](**found) for group, found in inside.items()}


def bound(model, federation, method="auto", **options):
    """Return a run that is bound and has not begun."""
    return bind(RunConfig(method=method, **grouped(**options)), model, SimulatedClients(federation))
