"""Kill -9 at any moment: the run goes on with the bits it would have had."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]


def killed(place, kills, seed, *cases):
    """Run the program in a process of its own: it forks, which a test runner's threads forbid."""
    command = [sys.executable, "-m", "trust.kills", str(place), str(kills), str(seed), *cases]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    limit = 300 + 30 * kills
    done = subprocess.run(
        command, cwd=HERE, env=env, capture_output=True, text=True, check=False, timeout=limit
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_few_kills(tmp_path):
    cases = ("control variates in a mapped file", "error feedback", "scalars of LoD")
    found = killed(tmp_path, 6, 3, *cases)
    assert found["kills"] >= 6
    assert found["at calls"] > 0
    assert found["files"] <= 1  # of the last one that was killed; whoever comes next removes it


@pytest.mark.trust
def test_two_hundred_kills(tmp_path):
    found = killed(tmp_path, 200, 0)
    print(found)
    assert found["kills"] >= 200
    assert 60 <= found["at calls"] <= 160  # the others came by the clock
    assert found["files"] <= 1
