"""Training from Python needs PyTorch and NumPy alone; files and the terminal ask for the rest."""

import subprocess
import sys

OPTIONAL = ("safetensors", "rich", "cyclopts", "pooch")

BLOCKED = f"""
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""

TINY = """
import torch
import tunefree as tf

for name in ("safetensors", "rich", "cyclopts", "pooch"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} can be imported")
x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
fed = tf.Federation(x, (x[:, 0] > 0).long(), [0] * 6 + [1] * 6, test=(x, (x[:, 0] > 0).long()))
run = tf.fit(torch.nn.Linear(3, 2), fed, rounds=2, steps=2, device="cpu")
assert run.status == "finished", run.status
assert run.predict(x, raw=True).shape == (12, 2)
print(tf.load("digits"))
"""

QUIET = f"""
import sys
import tunefree
print(sorted(set({OPTIONAL!r}) & set(sys.modules)))
"""


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_a_fit_without_the_optional_packages():
    done = python(BLOCKED + TINY)
    assert done.returncode == 0, done.stderr
    assert "digits" in done.stdout


def test_errors_stay_sentences_without_them():
    code = "import tunefree\n"
    for call in ("tunefree.Run.load('x')", "tunefree.load('nope')"):
        code += f"try:\n    {call}\nexcept tunefree.TunefreeError as e:\n"
        code += "    print(len(str(e).splitlines()))\n"
    done = python(BLOCKED + code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n1\n"


def test_importing_the_package_imports_none_of_them():
    done = python(QUIET)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
