"""All readers, by name."""

from trust.fuzz import files, folders, messages, sessions, wires, words  # they enter themselves
from trust.fuzz.target import MAKERS

__all__ = ["MAKERS", "files", "folders", "messages", "sessions", "wires", "words"]
