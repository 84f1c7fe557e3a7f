"""Reads a million inputs: `python -m trust.fuzz.drive NAME... [--count N] [--seed S]`, from tests/.

Every input is a valid one that was changed. A reader has two seconds for it and half a gibibyte
beyond what the process had; whatever is not one of our errors is a finding: it is kept as a file,
and the run ends with 1.
"""

import argparse
import json
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random

from trust.fuzz import targets
from trust.fuzz.target import Target, judged, missing

ROOM = 512 << 20  # bytes


class Hang(BaseException):
    """An input took too long."""


def _late(number: int, frame: object) -> None:
    raise Hang


def limit_memory(more: int = ROOM) -> None:
    """Let this process have so many bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def drive(target: Target, count: int, random: Random) -> tuple[Counter[str], list[tuple]]:
    """Return how many inputs were accepted and refused, and the findings, one of each kind."""
    said: Counter[str] = Counter()
    found: dict[str, tuple[bytes, str]] = {}
    signal.signal(signal.SIGALRM, _late)
    for number in range(count):
        data = target.seeds[number % len(target.seeds)]
        if number >= len(target.seeds):
            data = target.change(data, random)
        signal.setitimer(signal.ITIMER_REAL, target.most)
        try:
            said[judged(target, data)] += 1
        except BaseException as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if isinstance(error, KeyboardInterrupt):
                raise
            said["wrong"] += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            key = f"{type(error).__name__} at {last.filename}:{last.lineno}"
            if key not in found:
                found[key] = data, traceback.format_exc(limit=-6)
            del error
        signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return said, [(key, *rest) for key, rest in found.items()]


def chosen(names: list[str]) -> list[str]:
    """Return the targets of these names, or of these beginnings of names."""
    known = [*targets.MAKERS]
    return [k for k in known if not names or any(_meant(n, k) for n in names)]


def _meant(name: str, known: str) -> bool:
    return name == known or (name not in targets.MAKERS and known.startswith(name))


def main(words: list[str] | None = None) -> int:
    """Drive the targets named; print one line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names or their beginnings; all without any")
    parser.add_argument("--count", type=int, help="inputs each; by default the long form's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("../build/fuzz-findings"))
    asked = parser.parse_args(words)
    warnings.simplefilter("error")
    wrong = 0
    for name in chosen(asked.names):
        if missing(name):
            print(json.dumps({"reader": name, "needs": missing(name)}), flush=True)
            continue
        target = targets.MAKERS[name]()
        right = [judged(target, seed) for seed in target.seeds]
        assert right.count("accepted") > len(right) / 2, f"{name}: {right}"
        soft = resource.getrlimit(resource.RLIMIT_AS)
        limit_memory()
        began = time.perf_counter()
        said, found = drive(target, asked.count or target.count, Random(f"{name} {asked.seed}"))
        seconds = time.perf_counter() - began
        resource.setrlimit(resource.RLIMIT_AS, soft)
        target.close()
        inputs = sum(said.values())
        rate = round(inputs / seconds)
        line = {"reader": name, "inputs": inputs, **said, "seconds": round(seconds, 1)}
        print(json.dumps(line | {"per_second": rate, "seed": asked.seed}), flush=True)
        for number, (key, data, text) in enumerate(found):
            asked.keep.mkdir(parents=True, exist_ok=True)
            path = asked.keep / f"{name.replace(' ', '-').replace(':', '-')}-{number}.bin"
            path.write_bytes(data)
            print(
                f"--- {key}, input in {path}: {data[:200]!r}\n{text}", file=sys.stderr, flush=True
            )
        wrong += len(found)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
