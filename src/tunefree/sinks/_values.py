"""What sinks share: a row's numbers, settings in one level, packages that may be missing."""

import hashlib
import importlib
import json
import math
import os
from collections.abc import Mapping
from numbers import Integral, Real
from types import ModuleType
from typing import Any

from ..core.errors import ArgumentError
from ..core.files import to_json
from ..training.folder import INFORMATION


def numbers(row: Mapping[str, Any]) -> dict[str, int | float]:
    """Return a row's numbers as plain ones; those that are not finite are left out.

    >>> numbers({"round": 3, "test_loss": float("inf"), "lr": 0.5, "said": "hello"})
    {'round': 3, 'lr': 0.5}
    """
    return {
        name: int(v) if isinstance(v, Integral) else float(v)
        for name, v in row.items()
        if isinstance(v, Real) and math.isfinite(v)
    }


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return settings with dotted names; the picture of the data is left out, lists are text.

    >>> flat({"rounds": 5, "method": {"name": "fedavg", "parts": [1, 2]}, "data": {"picture": {}}})
    {'rounds': 5, 'method.name': 'fedavg', 'method.parts': '[1, 2]'}
    """
    out: dict[str, Any] = {}
    for name, value in settings.items():
        if before == "data." and name == "picture":
            continue
        if isinstance(value, Mapping):
            out |= flat(value, f"{before}{name}.")
        else:
            out[before + name] = to_json(value) if isinstance(value, list | tuple) else value
    return out


def digest(settings: Mapping[str, Any]) -> str:
    """Return eight letters that are the same whenever a run is the same."""
    kept = {k: v for k, v in settings.items() if k not in INFORMATION}
    text = json.dumps(json.loads(to_json(kept)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def title(settings: Mapping[str, Any]) -> str:
    """Return what a run is called in lists.

    >>> title({"method": {"name": "auto"}, "data": {"name": "digits"}, "seed": 0})
    'digits-auto-0'
    """
    data, method = settings.get("data", {}), settings.get("method", {})
    return f"{data.get('name', 'run')}-{method.get('name', 'custom')}-{settings.get('seed', 0)}"


def need(sink: str, package: str, module: str | None = None, silent: str = "") -> ModuleType:
    """Import a package that an extra installs, or say how to get it.

    Args:
        sink: Who needs it.
        package: What pip calls it.
        module: What is imported, where that is another name.
        silent: NAME=VALUE for the environment, unless set there: keeps a tool that writes to a
            folder from also reporting home.
    """
    if silent:
        name, _, value = silent.partition("=")
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module(module or package)
    except ImportError as error:
        raise ArgumentError(
            f"tf.sinks.{sink} needs the package {package}, which cannot be imported ({error}); "
            "pip install 'tunefree[tracking]' installs it."
        ) from None
