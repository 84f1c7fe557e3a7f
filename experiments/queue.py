"""The queue of paper-size runs: `python -m experiments.queue`.

    python -m experiments.queue --list                    # done, cut, open; estimated minutes
    python -m experiments.queue --minutes 25 --out new --device cuda --data-dir DATA --jobs 4
    python -m experiments.queue --collect new             # into experiments/*/results

The second command trains the next runs until the time is over; those that have not ended are saved,
and the next call continues them. The third one adds what came home to the kept runs. Needs PyTorch
and NumPy; without safetensors a run that was cut starts again.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tunefree.core.device import find_device
from tunefree.core.errors import ArgumentError, TunefreeError, check_int, check_positive
from tunefree.core.lock import lock_folder

from .backlog import STATES, Backlog
from .carry import CUT, RUNS, collect
from .library import home
from .runner import digest_code
from .session import Session


def print_list(backlog: Backlog, every: bool) -> None:
    """Print for each entry its runs by state and the minutes left; with `every`, each run."""

    def show(number: int | str, name: str, seeds: int | str, took: float, said: str = "") -> None:
        cells = "".join(f"{count[state] or '':>8}" for state in STATES)
        print(f"{number:>3} {name:<12} {seeds:>5}{cells} {took / 60:>8.1f}  {said}".rstrip())

    print(f"{'':>3} {'':<12} {'seeds':>5}{''.join(f'{s:>8}' for s in STATES)} {'minutes':>8}")
    total: Counter[str] = Counter()
    seconds, number = 0.0, 0
    for entry in backlog.entries:
        mine = [(i, backlog.state(i)) for i in backlog.items if i.entry is entry]
        if not mine:
            continue
        number, count = number + 1, Counter(state for _, state in mine)
        took = sum(backlog.costs.seconds(i.spec) for i, state in mine if state != "done")
        total, seconds = total + count, seconds + took
        names, whole = [task.name for task in entry.found.tasks], len(entry.whole.tasks)
        few = ", ".join(names) if len(names) < 4 else f"{len(names)} of {whole} tasks"
        said = entry.hold or (few if len(names) < whole else "")
        show(number, entry.experiment, entry.found.seeds, took, said)
        for item, state in mine if every else ():
            print(f"{'':>8}{state:<8} {backlog.costs.seconds(item.spec):>6.0f} s  {item.name}")
    count = total
    show("", "all", "", seconds)
    print(f"Minutes: all that is not done, one run at a time. The code is {digest_code()}.")
    for line in backlog.list_withdrawn():
        name = f"{line['experiment']}, {line['label']}, seed {line['seed']}"
        print(f"Withdrawn: {name} ({line['key']}): {backlog.kept.reason(line)}")
    stale = Counter(line["experiment"] for line in backlog.list_stale())
    if stale:
        said = ", ".join(f"{n} of {name}" for name, n in sorted(stale.items()))
        print(f"Kept, but of other settings than now, so they do not count: {said}.")


def print_next(backlog: Backlog, minutes: float, jobs: int) -> None:
    """Print the runs that would be trained, by the estimates."""
    spent = 0.0
    for item in backlog.items:
        cost = backlog.costs.seconds(item.spec)
        if backlog.state(item) in ("open", "cut") and spent + cost <= 60 * minutes * jobs:
            spent += cost
            print(f"{cost:>6.0f} s  {item.name}")
    print(f"{spent / 60:.1f} minutes of runs, {jobs} at a time in {minutes:g} minutes.")


def parse_words(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m experiments.queue", description=about)
    add = parser.add_argument
    add("--list", action="store_true", help="print the queue")
    add("--runs", action="store_true", help="with --list, also every run")
    add("--minutes", type=float, help="train the next runs for so long")
    add("--out", type=Path, help=f"folder for what comes home: {RUNS} and {CUT}")
    add("--work", type=Path, default=Path("runs/queue"), help="folder of runs (runs/queue)")
    add("--data-dir", type=Path, help="folder with dataset files, looked at first")
    add("--jobs", type=int, default=1, help="runs side by side, at most (1)")
    add("--device", default="auto", help="auto, cpu, cuda, ...")
    add("--only", default="*", metavar="PATTERN", help='only experiments such as "P1-*"')
    add("--dry-run", action="store_true", help="with --minutes, print the runs and train nothing")
    add("--collect", type=Path, nargs="*", metavar="OUT", help="keep what came home")
    add("--drop-stale", action="store_true", help="with --collect, drop runs of other settings")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    began, given = time.monotonic(), parse_words(words)
    try:
        if given.minutes is None and given.collect is None and not given.list:
            raise ArgumentError("Give --list, --minutes or --collect; --help explains them.")
        if given.minutes is not None:
            check_positive("queue", "minutes", given.minutes)
            check_int("queue", "jobs", given.jobs)
            find_device(given.device)
        given.work.mkdir(parents=True, exist_ok=True)
        backlog = Backlog(home(), given.work, given.data_dir, given.only)
        if given.collect is not None:
            with lock_folder(given.work):
                print(collect(backlog, given.collect, given.drop_stale))
        if given.list:
            print_list(backlog, given.runs)
        if given.minutes is not None and given.dry_run:
            print_next(backlog, given.minutes, given.jobs)
        elif given.minutes is not None:
            return train(backlog, began + 60 * given.minutes, given)
    except (TunefreeError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


def train(backlog: Backlog, end: float, given: argparse.Namespace) -> int:
    """Train until the time is over."""
    with lock_folder(given.work):
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
        session = Session(backlog, end, given.out, given.jobs, given.device)
        ended = session.train()
        print(session.summary(), flush=True)
        if not ended:
            print("Runs that did not stop in time go on from their last checkpoint.", flush=True)
            os._exit(0)  # their processes end with this one
    return 0


if __name__ == "__main__":
    sys.exit(main())
