"""The parts of an experiment: its specification's file, tasks, rows and claims."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .keys import SCALES
from .numbers import Statistic

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
        published: The paper's numbers by row and number; none where other data stands in.
    """

    name: str
    label: str
    words: Table
    says: tuple[str, ...] = ()
    skip: str = ""
    published: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of the table in one task: a method with settings, and perhaps a grid.

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
class Source:
    """Where the value of a setting comes from.

    Args:
        setting: Its name, perhaps after that of a task or method, as in FedAdam.lr.
        kind: paper, code or assumed.
        where: The section, equation or file; for an assumption, what is assumed and why.
    """

    setting: str
    kind: str
    where: str


@dataclass(frozen=True)
class Claim:
    """An ordering of methods that the paper claims, or of methods and a number, `value`."""

    says: str
    tasks: tuple[str, ...]
    better: tuple[str, ...]
    than: tuple[str, ...]
    by: Statistic
    margin: float = 0.0
    within: float | None = None
    factor: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class Experiment:
    """A specification at a scale; `alone` allows one run at a time, because it is timed."""

    name: str
    scale: str
    title: str
    kind: str
    alone: bool
    measure: str
    show: tuple[Statistic, ...]
    curves: tuple[str, ...]
    x: str
    seeds: int
    tune_rounds: int | None
    tune_by: str
    minutes: float | None
    assume: tuple[str, ...]
    sources: tuple[Source, ...]
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
class SpecFile:
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
