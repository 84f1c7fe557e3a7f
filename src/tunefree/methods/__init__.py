"""Methods: products of parts, and the catalogue of the named ones."""

from .catalogue import CATALOGUE, COMMON, MethodEntry, get, names, settings
from .method import Method

__all__ = ["CATALOGUE", "COMMON", "Method", "MethodEntry", "get", "names", "settings"]
