"""Whatever bytes come from outside: one of our errors with a sentence, or something read.

A few inputs of each reader here; a million of each (100,000 folders and command lines) with
`make test-trust`, and with coverage for a guide by `make fuzz`.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from trust.fuzz.drive import chosen, drive
from trust.fuzz.target import MAKERS as _MAKERS
from trust.fuzz.target import Target, judged, missing
from trust.fuzz.targets import MAKERS

SLOW = {"folder resume": 3, "words command line": 6, "folder report": 6}
COSTLY = ("folder comparison", "folder tuning")  # trained before they are read


def skip_without(name):
    if missing(name):
        pytest.skip(f"{missing(name)} is not installed")


@pytest.mark.parametrize("name", [n for n in MAKERS if n not in COSTLY])
def test_a_few_inputs(name):
    skip_without(name)
    target = MAKERS[name]()
    try:
        said = [judged(target, seed) for seed in target.seeds[:6]]
        assert "accepted" in said

        @given(at=st.integers(0, len(target.seeds) - 1), draw=st.integers(0, 2**32))
        @settings(
            max_examples=SLOW.get(name, 25),
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        def one(at, draw):
            data = target.change(target.seeds[at], Random(draw))
            note(repr(data[:500]))
            judged(target, data)

        one()
    finally:
        target.close()


def test_every_reader_is_listed():
    assert MAKERS is _MAKERS
    assert len(MAKERS) > 40


def test_a_name_means_one_reader_and_a_beginning_all_that_begin_so():
    assert chosen(["file cifar10"]) == ["file cifar10"]
    assert chosen(["file cifar"]) == ["file cifar10", "file cifar100"]


@pytest.mark.trust
@pytest.mark.parametrize("name", MAKERS)
def test_a_million_inputs(name, tmp_path):
    skip_without(name)
    words = [sys.executable, "-m", "trust.fuzz.drive", name, "--keep", str(tmp_path)]
    done = subprocess.run(
        words,
        cwd=Path(__file__).parents[1],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},  # for `experiments`
        capture_output=True,
        text=True,
        check=False,
        timeout=7200,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_wrong_reader_would_be_found():
    def read(data: bytes) -> None:
        if b"\xff" in data:
            raise KeyError("not ours")

    with warnings.catch_warnings():
        said, found = drive(Target(read, [b"abcdefgh"]), 500, Random(0))
    assert said["wrong"] > 0
    assert found[0][0].startswith("KeyError")
