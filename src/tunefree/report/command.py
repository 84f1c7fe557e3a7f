"""The command that repeats a run."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..training.command import CommandConfig

DEFAULTS = CommandConfig().to_json()
ALWAYS = ("data", "method", "rounds", "seed")


def command(settings: Mapping[str, Any]) -> str | None:
    """Return the command line that repeats a run, or None if the run was started from Python.

    >>> command({"command": {"method": "fedavg", "set": ["lr=0.1"], "seed": 1, "batch": 50}})
    'tunefree run --method fedavg --set lr=0.1 --seed 1'
    """
    asked = settings.get("command")
    if not isinstance(asked, Mapping) or not asked or not set(asked) <= set(DEFAULTS):
        return None
    return shlex.join(["tunefree", "run", *list_options(asked, ALWAYS)])


def list_options(asked: Mapping[str, Any], always: Sequence[str] = ()) -> list[str]:
    """Return the options that differ from the defaults, and those named, as they are typed.

    >>> list_options({"clients": 9, "batch": 50, "keep_best": True})
    ['--clients', '9', '--keep-best']
    """
    hidden = ("set", "data") if asked.get("table") else ("set",)
    names = [name for name in DEFAULTS if name not in hidden]
    names.insert(names.index("method") + 1, "set")  # the method's settings follow its name
    words: list[str] = []
    for name in names:
        value, flag = asked.get(name), f"--{name.replace('_', '-')}"
        if value is None or (value == DEFAULTS[name] and name not in always):
            continue
        if isinstance(value, list | tuple):
            words += [word for one in value for word in (flag, str(one))]
        else:
            words += [flag] if value is True else [flag, str(value)]
    return words
