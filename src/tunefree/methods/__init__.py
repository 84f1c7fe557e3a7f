"""Methods: products of parts, and the catalogue of the named ones.

Every module of this package is imported here, so that a new file with a registered factory is
found without being listed.
"""

import importlib
import pkgutil

from .method import Method
from .registry import (
    CATALOGUE,
    COMMON,
    FAMILIES,
    MethodEntry,
    get,
    names,
    register_method,
    settings,
)

__all__ = [
    "CATALOGUE",
    "COMMON",
    "FAMILIES",
    "Method",
    "MethodEntry",
    "get",
    "names",
    "register_method",
    "settings",
]

for _module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
