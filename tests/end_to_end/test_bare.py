"""Training from Python needs PyTorch and NumPy alone; files and the terminal ask for the rest.

One process, which cannot import the other packages, does what all of these tests look at: most of
its time is the import of PyTorch.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tunefree as tf
from unit.experiments.papers import write

ROOT = Path(__file__).parents[2]
OPTIONAL = ("safetensors", "rich", "cyclopts", "pooch")
LAZY = (*OPTIONAL, "sklearn", "tensorboard", "mlflow", "wandb", "pyarrow")  # imported when used

SCRIPT = f"""
import importlib.abc, io, json, sys
from contextlib import redirect_stdout

import tunefree as tf
import tunefree.sinks
said = {{"imported": sorted(set({LAZY!r}) & set(sys.modules))}}

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {(*OPTIONAL, "pytest")!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
for name in {OPTIONAL!r}:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{{name}} can be imported")

import torch
x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
fed = tf.Federation(x, (x[:, 0] > 0).long(), [0] * 6 + [1] * 6, test=(x, (x[:, 0] > 0).long()))
run = tf.fit(torch.nn.Linear(3, 2), fed, rounds=2, steps=2, device="cpu")
said["status"] = run.status
said["predicted"] = list(run.predict(x, raw=True).shape)
said["digits"] = repr(tf.load("digits"))

said["errors"] = []
for call in (lambda: tf.Run.load("x"), lambda: tf.load("nope")):
    try:
        call()
    except tf.TunefreeError as error:
        said["errors"].append(str(error))

said["checks"] = list(tf.testing.check_method("scaffold").values())

import experiments
with redirect_stdout(io.StringIO()) as printed:
    found = experiments.run("PX-table1", device="cpu", jobs=1, seeds=1, methods=["Auto"])
said["experiment"], said["page"] = printed.getvalue(), found.markdown()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the process says, by what it did."""
    folder = tmp_path_factory.mktemp("bare")
    write(folder / "experiments")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "TUNEFREE_EXPERIMENTS": str(folder / "experiments")},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_the_package_imports_none_of_them(said):
    assert said["imported"] == []


def test_a_fit_without_the_optional_packages(said):
    assert said["status"] == "finished"
    assert said["predicted"] == [12, 2]
    assert "digits" in said["digits"]


def test_errors_stay_sentences_without_them(said):
    assert [len(text.splitlines()) for text in said["errors"]] == [1, 1]


def test_methods_are_checked_with_pytorch_and_numpy_alone(said):
    needs = "skipped: a run folder needs safetensors, which is not installed"
    found = said["checks"]
    assert (found.count("passed"), found.count(needs)) == (len(tf.testing.ALL) - 2, 2)


def test_experiments_need_neither_rich_nor_safetensors(said):
    assert "1 of 1  T1: Auto, seed 0: finished" in said["experiment"]
    assert "# PX-table1, small: Accuracy on digits" in said["page"]
