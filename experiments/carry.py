"""What travels between machines: finished runs as lines, and small checkpoints of those cut."""

import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tunefree.core.errors import ArgumentError

from .backlog import Backlog
from .kept import Line, kept_files, kept_path, read_lines, write_lines
from .runner import live_path

RUNS, CUT = "runs.jsonl", "cut.tar"
LARGEST = 15 * 2**20  # bytes of checkpoints in all


def bring_home(backlog: Backlog, out: Path | None) -> None:
    """Write the runs that are not kept yet, all of them, into a folder; None writes nothing."""
    if out is not None:
        write_lines(out / RUNS, backlog.list_new())


def pack_cut(backlog: Backlog, out: Path | None) -> None:
    """Write checkpoints of runs that were cut, the smallest first, and say which do not fit."""
    if out is None:
        return
    found = []
    for item in backlog.items:
        if item.key and backlog.state(item) == "cut":
            live = live_path(backlog.work, item.spec)
            states = sorted(live.glob("state-*.safetensors"))[-1:]
            files = [f for f in live.iterdir() if f.suffix in ("", ".json", ".jsonl")] + states
            files = [f for f in files if f.name != "lock"]
            found.append((sum(f.stat().st_size for f in files), item, files))
    (out / CUT).unlink(missing_ok=True)
    total = 0
    for size, item, files in sorted(found, key=lambda one: one[0]):
        if total + size > LARGEST:
            print(f"Cut, and not brought home ({size / 2**20:.0f} MiB): {item.name}", flush=True)
            continue
        total += size
        with tarfile.open(out / CUT, "a") as archive:
            for file in files:
                archive.add(file, f"{item.key}/{file.name}")


def collect(backlog: Backlog, places: Sequence[Path], drop_stale: bool = False) -> str:
    """Add runs that came home to the kept ones, and checkpoints to the folder of runs.

    Returns:
        How many there are, in a sentence.
    """
    for place in places:
        if not (place / RUNS).exists():
            raise ArgumentError(f"There is no {place / RUNS}; --collect takes folders of --out.")
        for line in read_lines(place / RUNS):
            backlog.kept.add(line)
        if (place / CUT).exists():
            _unpack_cut(place / CUT, backlog.work / "live")
    backlog.plan()
    new = len(backlog.list_new())
    files: dict[Path, list[Line]] = {path: [] for path in kept_files(backlog.place)}
    for key, line in backlog.kept.lines.items():
        if backlog.is_known(key) or not drop_stale:
            files.setdefault(kept_path(backlog.place, line["experiment"]), []).append(line)
    for path, lines in files.items():
        write_lines(path, lines)
        if not lines:
            path.unlink()
    _clean(backlog)
    return f"{new} new runs, {sum(map(len, files.values()))} kept in all."


def _unpack_cut(path: Path, live: Path) -> None:
    """Unpack checkpoints, except of runs that have one here."""
    there = {one.name for one in live.iterdir()} if live.exists() else set()
    with tarfile.open(path) as archive:
        for member in archive:
            key, _, name = member.name.partition("/")
            if member.isfile() and key.isalnum() and key not in there and "/" not in name:
                archive.extract(member, live, filter="data")


def _clean(backlog: Backlog) -> None:
    """Remove checkpoints of runs that are done, or that no experiment has any more."""
    live = backlog.work / "live"
    done = {item.key for item in backlog.items if backlog.state(item) == "done"}
    for folder in live.iterdir() if live.exists() else ():
        if folder.name in done or not backlog.is_known(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
