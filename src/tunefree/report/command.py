"""The command that repeats a run."""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

ALWAYS = ("data", "method", "rounds", "seed")


def command(settings: Mapping[str, Any]) -> str | None:
    """Return the line to type for a run of the command line, None for one started from Python.

    >>> command({"command": {"method": "fedavg", "set": ["lr=0.1"], "seed": 1, "batch": 50}})
    'tunefree run --method fedavg --set lr=0.1 --seed 1'
    """
    from ..training.recipe import Recipe

    asked = settings.get("command")
    defaults = {f.name: f.default for f in fields(Recipe)}
    if not isinstance(asked, Mapping) or not asked or not set(asked) <= set(defaults):
        return None
    words = ["tunefree", "run"]
    for name, default in defaults.items():
        value, flag = asked.get(name), f"--{name.replace('_', '-')}"
        if value is None or (value == default and name not in ALWAYS):
            continue
        if isinstance(value, list | tuple):
            words += [word for one in value for word in (flag, str(one))]
        else:
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)
