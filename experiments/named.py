"""Methods by name, and pairs: "scaffold+fedexp" has the clients of one, the server of the other.

Of a pair, the second method gives server and output, the first everything else. A setting goes to
every one of the two that knows it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tunefree import methods
from tunefree.core.errors import unknown_name
from tunefree.methods import Method


def settings(name: str) -> list[str]:
    """Return the settings that a method or a pair takes, those that every method has included.

    >>> "eps_g" in settings("scaffold+fedduadam"), "eps_g" in settings("scaffold")
    (True, False)
    """
    own = [key for part in name.split("+") for key in methods.settings(part)]
    return list(dict.fromkeys([*own, *methods.COMMON]))


def make(name: str, given: Mapping[str, Any]) -> Method:
    """Return a method, or a pair.

    >>> make("scaffold+fedexp", {"lr": 0.1}).name
    'scaffold+fedexp'
    """
    known = settings(name)
    for key in given:
        if key not in known:
            raise unknown_name(f"argument of {name}", key, known)
    first, plus, second = name.partition("+")
    if not plus:
        return methods.get(name, **given)
    clients = methods.get(first, **_own(first, given), **_common(given))
    server = methods.get(second, **_own(second, given))
    output = clients.output if "output" in given else server.output
    return replace(clients, server=server.server, output=output, name=name)


def _own(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in given.items() if k in methods.settings(name)}


def _common(given: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in given.items() if k in methods.COMMON}
