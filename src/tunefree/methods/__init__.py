"""Methods: products of parts, and the catalogue of the named ones."""

from .catalogue import CATALOGUE, COMMON, Entry, get, names, settings
from .method import Method

__all__ = ["CATALOGUE", "COMMON", "Entry", "Method", "get", "names", "settings"]
