"""What is installed and shipped: locks with sums, a wheel that works where nothing else is."""

import http.server
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
import zipfile
from pathlib import Path

import pytest

from helpers import join_thread

HOME = Path(__file__).parents[2]
LOCKS = sorted(path.stem for path in HOME.glob("requirements/*.txt"))
NAME = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(.*)$")


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(name):
    """Return the packages of a lock: version, and how many sums."""
    out = {}
    for part in re.split(r"\n(?=\w)", (HOME / f"requirements/{name}.txt").read_text()):
        if found := NAME.match(part.split("\n")[0]):
            sums = re.findall(r"--hash=sha256:([0-9a-f]{64})(?![0-9a-f])", part)
            out[plain(found[1])] = found[2], len(sums)
    return out


def tools_lock():
    """Return tools/lock.py as a module."""
    spec = importlib.util.spec_from_file_location("lock", HOME / "tools/lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def constraints():
    lines = (HOME / "constraints.txt").read_text().splitlines()
    return {plain(m[1]): m[2] for line in lines if (m := NAME.match(line))}


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_has_a_version_and_sums(name):
    text = (HOME / f"requirements/{name}.txt").read_text()
    lines = [line for line in text.splitlines() if line and line[0] not in " #"]
    found = locked(name)
    assert len(found) == len(lines) > 0
    assert all(count > 0 for _, count in found.values())


def test_the_lock_has_what_the_package_asks_for():
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    oldest = f"torch-{tools_lock().oldest_torch()}"
    asked = {"runtime": (), "dev": ("dev", "plots"), oldest: ("dev", "plots")}
    asked |= {"docs": ("dev", "docs"), "browser": ("dev", "browser", "plots")}
    asked["flower"] = ("dev", "flower", "privacy")
    for lock, names in asked.items():
        wanted = [*project["dependencies"], *(r for n in names for r in extras[n]), "setuptools"]
        missing = {plain(re.split(r"[^\w.-]", r)[0]) for r in wanted} - locked(lock).keys()
        assert missing == set(), f"{lock}: run `make lock`"


def test_locks_agree_with_the_constraints():
    pins = constraints()
    for lock in ("runtime", "dev", "docs", "browser", "release", "cuda"):
        found = {n: v for n, (v, _) in locked(lock).items()}
        other = {n: (v, pins[n]) for n, v in found.items() if n in pins and pins[n] != v}
        assert other == {}, f"{lock}: run `make lock`"
    assert locked("cpu")["torch"][0].partition("+")[0] == pins["torch"] == locked("dev")["torch"][0]


def test_the_lock_of_the_oldest_torch_differs_in_torch_and_what_it_needs():
    lock = tools_lock()
    oldest = lock.oldest_torch()
    ours, theirs = locked("dev"), locked(f"torch-{oldest}")
    assert theirs["torch"][0] == oldest
    assert [path.name for path in HOME.glob("requirements/torch-*")] == [f"torch-{oldest}.txt"]
    assert ours.keys() <= theirs.keys()
    assert {n for n in ours if ours[n] != theirs[n]} == {"torch", *lock.OLDER}
    assert all(lock.CUDA.match(f"{name}==") for name in theirs.keys() - ours.keys())


def test_set_up_takes_nothing_without_a_sum():
    text = (HOME / "Makefile").read_text()
    assert "HASHED := install" in text
    assert "--require-hashes --no-deps" in text
    setup = text.partition("\n$(READY):")[2].partition("\n\n")[0]
    assert "$(call install,.venv,$(LOCK))" in setup
    assert "pip install" not in setup
    assert "pip install" not in text.partition("define install-lock")[2].partition("endef")[0]


def make(*words):
    outer = {"TORCH", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES"}  # of the `make test` that runs this
    room = {name: value for name, value in os.environ.items() if name not in outer}
    command = ("make", "-n", "-B", *words)
    return subprocess.run(
        command, cwd=HOME, env=room, capture_output=True, text=True, check=False, timeout=60
    )


def test_set_up_installs_the_version_of_torch_that_is_asked_for():
    oldest, newest = tools_lock().oldest_torch(), constraints()["torch"]
    plain, same, old = (
        make("setup", *words).stdout for words in ((), (f"TORCH={newest}",), (f"TORCH={oldest}",))
    )
    assert "-r requirements/dev.txt" in plain
    assert same == plain
    assert re.findall(r"-r (\S+)", old) == [f"requirements/torch-{oldest}.txt"]
    other = make("setup", "TORCH=1.0.0")
    assert other.returncode != 0
    assert f"TORCH must be one of: {oldest} {newest}. Got 1.0.0 instead" in other.stderr


class Advisories(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        bad = [{"vulns": [{"id": "X-1"}]} if q["package"]["name"] == "numpy" else {} for q in asked]
        body = json.dumps({"results": bad}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given):
        pass


@pytest.fixture
def audit(monkeypatch):
    monkeypatch.syspath_prepend(HOME / "tools")
    import audit

    return audit


def test_the_audit_says_what_is_known(audit, monkeypatch, capsys):
    server = http.server.HTTPServer(("127.0.0.1", 0), Advisories)
    thread = threading.Thread(target=server.handle_request, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}/"
    monkeypatch.setattr(audit, "asked", lambda packages, f=audit.asked: f(packages, address))
    assert audit.main([str(HOME / "requirements/dev.txt")]) == 1
    join_thread(thread)
    server.server_close()
    assert re.search(
        r"numpy \S+: X-1\n\d+ pinned packages checked, 1 with", capsys.readouterr().out
    )


def test_the_audit_says_that_it_could_not_ask(audit, monkeypatch, capsys):
    monkeypatch.setattr(
        audit, "asked", lambda packages, f=audit.asked: f(packages, "http://127.0.0.1:9/")
    )
    assert audit.main([str(HOME / "requirements/dev.txt")]) == 3
    assert "were NOT checked" in capsys.readouterr().out


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=1200, **more)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


OPTIONAL = (
    "rich",
    "cyclopts",
    "safetensors",
    "pooch",
    "matplotlib",
    "transformers",
    "flwr",
    "pandas",
)


@pytest.mark.trust
def test_import_without_a_warning_and_with_little_else():
    text = (
        "import json, sys, torch\nbefore = set(sys.modules)\nimport tunefree\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    found = json.loads(run(sys.executable, "-W", "error", "-c", text))
    assert not [name for name in found if name.partition(".")[0] in OPTIONAL]
    assert not [name for name in found if name.startswith(("torch._dynamo", "torch._inductor"))]
    others = [name for name in found if not name.startswith("tunefree")]
    assert len(others) < 60, others


FIT = """
import torch, tunefree as tf
fed = tf.load("digits").split(tf.Iid(), clients=4, seed=0)
run = tf.fit(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), fed, rounds=1)
print(run.status, tf.__file__)
"""


@pytest.mark.trust
def test_sdist_and_wheel_in_a_clean_environment(tmp_path):
    source = tmp_path / "source"
    files = run("git", "-C", str(HOME), "ls-files", "-co", "--exclude-standard").splitlines()
    for name in files:
        if (HOME / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((HOME / name).read_bytes())
    build = "from setuptools import build_meta as b; import sys; print(b.build_sdist(sys.argv[1]))"
    sdist = run(sys.executable, "-c", build, str(tmp_path), cwd=source).splitlines()[-1]
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    run(*pip, "-w", str(tmp_path), str(tmp_path / sdist), cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    wanted = ("py.typed", "data/files/digits.npz", "advice/rules.toml", "report/assets/page.html")
    for part in wanted:
        assert any(n.startswith(f"tunefree/{part}") for n in names), part
    assert not [n for n in names if not n.startswith(("tunefree/", "tunefree-"))]
    assert not [n for n in names if n.startswith("tunefree/experiments") or "__pycache__" in n]
    room = tmp_path / "room"
    run(sys.executable, "-m", "venv", str(room))
    hashed = (str(room / "bin/pip"), "install", "-q", "--require-hashes", "--no-deps", "-r")
    cpu = [*hashed, str(HOME / "requirements/cpu.txt")]
    subprocess.run(cpu, capture_output=True, check=False, timeout=1200)
    run(*hashed, str(HOME / "requirements/dev.txt"))
    run(str(room / "bin/pip"), "install", "-q", "--no-deps", str(wheel))
    run(str(room / "bin/pip"), "check")
    assert "tunefree run" in run(str(room / "bin/tunefree"), "--help", cwd=tmp_path)
    said = run(str(room / "bin/python"), "-W", "error", "-c", FIT, cwd=tmp_path)
    assert said.startswith("finished")
    assert str(room) in said
