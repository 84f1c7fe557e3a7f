"""The command that repeats a run."""

import shlex
from collections.abc import Mapping
from typing import Any

from ..training.command import CommandConfig

ALWAYS = ("data", "method", "rounds", "seed")


def command(settings: Mapping[str, Any]) -> str | None:
    """Return the command line that repeats a run, or None if the run was started from Python.

    >>> command({"command": {"method": "fedavg", "set": ["lr=0.1"], "seed": 1, "batch": 50}})
    'tunefree run --method fedavg --set lr=0.1 --seed 1'
    """
    asked = settings.get("command")
    defaults = CommandConfig().to_json()
    if not isinstance(asked, Mapping) or not asked or not set(asked) <= set(defaults):
        return None
    names = [name for name in defaults if name != "set"]
    names.insert(names.index("method") + 1, "set")  # the method's settings follow its name
    words = ["tunefree", "run"]
    for name in names:
        value, flag = asked.get(name), f"--{name.replace('_', '-')}"
        if value is None or (value == defaults[name] and name not in ALWAYS):
            continue
        if isinstance(value, list | tuple):
            words += [word for one in value for word in (flag, str(one))]
        else:
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)
