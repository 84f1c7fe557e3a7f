"""What is fuzzed: a reader, inputs that it accepts, and a way to change them."""

import atexit
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import mkdtemp

from trust.fuzz.mutate import edited
from tunefree.core.errors import TunefreeError

Change = Callable[[bytes, Random], bytes]


@dataclass(frozen=True)
class Target:
    """A reader of bytes from outside.

    Args:
        read: Reads; whatever it raises must be one of our errors, with a sentence.
        seeds: Inputs that it accepts.
        change: Makes an input of one that was accepted.
        count: Inputs in the long form.
    """

    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    change: Change = edited
    count: int = 1_000_000
    most: float = 2.0  # seconds for one input
    close: Callable[[], None] = field(default=lambda: None)


MAKERS: dict[str, Callable[[], Target]] = {}
NEEDS: dict[str, str] = {}  # packages that are not always there


def target(name: str, needs: str = "") -> Callable[[Callable[[], Target]], Callable[[], Target]]:
    """Enter a maker into the table."""

    def enter(make: Callable[[], Target]) -> Callable[[], Target]:
        assert name not in MAKERS
        MAKERS[name] = make
        NEEDS.update({name: needs} if needs else {})
        return make

    return enter


def missing(name: str) -> str:
    """Return the package that a target lacks here, or nothing."""
    needs = NEEDS.get(name, "")
    return needs if needs and find_spec(needs) is None else ""


def judged(target: Target, data: bytes) -> str:
    """Read; return "accepted" or "refused"; anything but one of our errors goes through."""
    said = None
    try:
        target.read(data)
    except TunefreeError as error:
        said = str(error)
    assert said is None or len(said.split()) > 2, f"no sentence: {said!r}"
    return "accepted" if said is None else "refused"


@cache
def room() -> Path:
    """Return a folder for this process, in memory where there is such a place."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    found = Path(mkdtemp(prefix="fuzz-", dir=base))
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    return found


def chosen(parts: Sequence[bytes]) -> list[bytes]:
    """Return inputs of which the first byte says which of several files the rest is."""
    return [bytes([i]) + part for i, part in enumerate(parts)]


def put(parts: Sequence[bytes], data: bytes) -> list[bytes]:
    """Return the files with the chosen one replaced."""
    at = (data[0] if data else 0) % len(parts)
    return [data[1:] if i == at else part for i, part in enumerate(parts)]


def kept_head(change: Change) -> Change:
    """Return a change of all but the first byte."""
    return lambda data, random: data[:1] + change(data[1:], random)


def kept_length(data: bytes, random: Random) -> bytes:
    """Change bytes, and mostly keep their number: readers look at that first."""
    new = edited(data, random)
    if random.random() < 0.8:
        new = new[: len(data)] + random.randbytes(max(0, len(data) - len(new)))
    return new


@contextmanager
def swapped(owner: object, **names: object):
    """Put other things in the place of a module's own."""
    before = {name: getattr(owner, name) for name in names}
    try:
        for name, value in names.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
