"""What is done of the queue, and what is left: kept runs, and those that were trained here."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tunefree.data import describe

from .kept import Kept, Line, take_lines
from .runner import live_path
from .schedule import Costs, Entry, Item, list_items, read_costs, read_entries

STATES = ("done", "cut", "open", "waiting", "no data", "on hold")


@dataclass
class Backlog:
    """The runs of all experiments, in order, and the state of each.

    Args:
        place: The folder of experiments.
        work: Folder of runs that are trained here, as `python -m experiments --out` has it.
        data_dir: Where datasets are looked for first.
        only: A pattern; of other experiments nothing is listed or trained.
    """

    place: Path
    work: Path
    data_dir: Path | None = None
    only: str = "*"

    def __post_init__(self) -> None:
        self._entries, self.facts = read_entries(self.place)
        self._here = {row["name"] for row in describe(self.data_dir) if row["found"] != "missing"}
        self.kept = Kept.at(self.place)
        self._home = dict(self.kept.lines)
        self.plan()

    @property
    def entries(self) -> list[Entry]:
        """The entries that are asked for."""
        return [e for e in self._entries if fnmatchcase(e.experiment, self.only)]

    def plan(self) -> None:
        """Find what is done here, and with it what comes next."""
        new = [True]
        while any(new):  # what was trained here may end the search of a grid
            items, self.columns = list_items(self._entries, self.kept)
            self._of = {
                item.key: (item.entry.experiment, item.spec, self.columns[item.key])
                for item in items
                if item.key
            }
            new = [self.kept.add(line) for line in take_lines(self.work, self._of)]
        self.items = [i for i in items if fnmatchcase(i.entry.experiment, self.only)]
        self.costs: Costs = read_costs(self.facts, self.kept)

    def add(self, item: Item) -> bool:
        """Add a run that was trained here; return whether it counts."""
        for line in take_lines(self.work, {item.key: self._of[item.key]}):
            self.kept.add(line)
        return self.kept.has(item.key, self.columns[item.key])

    def state(self, item: Item) -> str:
        """Return the state of a run, one of `STATES`."""
        if item.key and self.kept.has(item.key, self.columns[item.key]):
            return "done"
        if item.entry.hold:
            return "on hold"
        data = item.spec.words.get("data")
        if data is not None and data not in self._here:
            return "no data"
        if not item.key:
            return "waiting"
        return "cut" if (live_path(self.work, item.spec) / "checkpoint.json").exists() else "open"

    def is_known(self, key: str) -> bool:
        """Return whether a run belongs to an experiment as it is specified now."""
        return key in self._of

    def list_new(self) -> list[Line]:
        """Return the runs that are not among the kept ones yet."""
        lines = self.kept.lines.items()
        return [one for key, one in lines if self.is_known(key) and self._home.get(key) != one]

    def list_stale(self) -> list[Line]:
        """Return kept runs of other settings than the experiments have now."""
        return [line for key, line in self.kept.lines.items() if not self.is_known(key)]

    def list_withdrawn(self) -> list[Line]:
        """Return kept runs that are withdrawn and not replaced yet."""
        return [line for line in self.kept.lines.values() if self.kept.reason(line)]
