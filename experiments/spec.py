"""The experiments: where their specifications are, and how one reads at a scale.

experiments/P1/table2.toml is the experiment P1-table2; experiments/P1/expected.toml has the
published numbers of all of P1's. Of [common], [scale.S], the task, its .S table, the method and its
.S table, each wins over those before it.
"""

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefree.core.errors import ArgumentError, convert_errors, first_line, unknown_name

from .keys import SCALES
from .numbers import Number

Table = dict[str, Any]


@dataclass(frozen=True)
class PaperTask:
    """A column of the paper: data, split, model and settings.

    Args:
        name: As the paper has it.
        label: The same with the data that stands in at this scale.
        words: Everything that decides a run but the method.
        says: What is smaller than the paper.
        skip: Why it is not run at this scale; "" where it is.
        published: The paper's numbers by row and number.
    """

    name: str
    label: str
    words: Table
    says: tuple[str, ...] = ()
    skip: str = ""
    published: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of the table in one task: a method with settings, some of them perhaps searched.

    Args:
        task: The name of the task.
        label: As the table prints it.
        base: The method's name in the paper, that of all rows of a sweep.
        method: Its name in the catalogue; for proximal maps, the penalty in words.
        set: Fixed settings.
        points: Settings to search; one point without any where there is no grid.
        words: What the method changes about the task.
        says: What is smaller than the paper.
        skip: Why it is not run; "" where it is.
    """

    task: str
    label: str
    base: str
    method: str
    set: Table
    points: tuple[Table, ...] = ({},)
    words: Table = field(default_factory=dict)
    says: tuple[str, ...] = ()
    skip: str = ""


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper claims; `claims.py` says what becomes of it."""

    says: str
    tasks: tuple[str, ...]
    better: tuple[str, ...]
    than: tuple[str, ...]
    by: Number
    margin: float = 0.0
    within: float | None = None
    factor: float | None = None


@dataclass(frozen=True)
class Experiment:
    """A specification at a scale; `alone`: what is timed has the machine for itself."""

    name: str
    scale: str
    title: str
    kind: str
    alone: bool
    measure: str
    show: tuple[Number, ...]
    curves: tuple[str, ...]
    x: str
    seeds: int
    tune_rounds: int | None
    tune_by: str
    minutes: float | None
    assume: tuple[str, ...]
    says: tuple[str, ...]
    note: str
    tasks: tuple[PaperTask, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]

    @property
    def paper(self) -> str:
        """The paper, P0 and so on."""
        return self.name.partition("-")[0]

    def of(self, task: str) -> PaperTask:
        """Return a task by name."""
        return next(t for t in self.tasks if t.name == task)


@dataclass(frozen=True)
class Spec:
    """A specification as it is written.

    Args:
        name: Paper and file, such as P1-table2.
        path: The file.
        raw: Its content.
        expected: The published numbers of this experiment.
    """

    name: str
    path: Path
    raw: Table
    expected: Table = field(default_factory=dict)

    @property
    def scales(self) -> tuple[str, ...]:
        """The scales that it has."""
        found = self.raw.get("scale", {})
        return tuple(s for s in SCALES if isinstance(found, dict) and s in found)

    def at(self, scale: str) -> Experiment:
        """Return the experiment at a scale; what is not right is refused in a sentence."""
        from .check import checked

        if scale not in SCALES:
            raise unknown_name("scale", scale, SCALES)
        says = f"{self.name} ({self.path}), {scale}: something in it has not the form it must have"
        if scale not in self.scales:
            raise ArgumentError(
                f"{self.name} has no scale {scale!r}, only {', '.join(self.scales) or 'none'}."
            )
        with convert_errors(says, ArgumentError):
            return checked(self, scale)


def home() -> Path:
    """Return the folder of the experiments: $TUNEFREE_EXPERIMENTS, or that of this package."""
    named = os.environ.get("TUNEFREE_EXPERIMENTS")
    if named and not Path(named).is_dir():
        raise ArgumentError(f"$TUNEFREE_EXPERIMENTS must name a folder that exists, got {named!r}.")
    return Path(named) if named else Path(__file__).parent


def find(place: Path | None = None) -> dict[str, Path]:
    """Return the file of every experiment by name."""
    files = sorted((place or home()).glob("*/*.toml"))
    return {f"{p.parent.name}-{p.stem}": p for p in files if p.stem != "expected"}


def load(name: str | os.PathLike[str], place: Path | None = None) -> Spec:
    """Return a specification by name, or by its file."""
    if isinstance(name, os.PathLike) or str(name).endswith(".toml"):
        path = Path(name)
        called = f"{path.resolve().parent.name}-{path.stem}"
    else:
        known = find(place)
        called = next((n for n in known if n.lower() == name.lower()), name)
        if called not in known:
            raise unknown_name("experiment", name, known)
        path = known[called]
    beside = path.parent / "expected.toml"
    published = _read(beside) if beside.exists() else {}
    own = published.get(path.stem, {})
    if not isinstance(own, dict):
        raise ArgumentError(f"{beside}: [{path.stem}] must be a table, got {own!r}.")
    return Spec(called, path, _read(path), own)


def _read(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} is not TOML: {first_line(error)}.") from None
