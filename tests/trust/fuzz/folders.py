"""Run folders and studies: whatever is in their files, the past sums of which are mended."""

import hashlib
import json
import logging
import shutil
from pathlib import Path
from random import Random

import torch
from experiments import record, runner
from safetensors.torch import save

import tunefree as tf
from helpers import bound
from trust.fuzz.mutate import edited, odd_json
from trust.fuzz.target import Target, chosen, put, room, swapped, target
from tunefree.cli import run as run_command
from tunefree.core.files import unpack_tensors
from tunefree.flower.memory import MemoryStore
from tunefree.report import collect
from tunefree.report.page import to_script_json
from tunefree.report.payload import build_payload
from tunefree.study import compare, tune
from tunefree.study.comparison import Comparison
from tunefree.study.tuning import Tuning
from tunefree.training.command import build_run
from tunefree.training.folder import RunFolder, entry_checksum
from tunefree.training.run import Run
from tunefree.training.trainer import Trainer

FEW = 100_000  # inputs for folders


def odd_tensors(data: bytes, random: Random) -> bytes:
    """Change the head of a safetensors file, and give it its length again; or its body."""
    length = int.from_bytes(data[:8], "little")
    head, body = data[8 : 8 + length], data[8 + length :]
    if random.random() < 0.15:
        return edited(data, random)
    if random.random() < 0.2:
        return data[: 8 + length] + edited(body, random)
    new = odd_json(head, random)
    return len(new).to_bytes(8, "little") + new + body


def tensors() -> bytes:
    return save({"x": torch.arange(3.0), "shipped": torch.zeros(3), "n": torch.tensor(7)})


@target("bytes safetensors")
def _safetensors() -> Target:
    return Target(unpack_tensors, [tensors()], odd_tensors)


@target("bytes node memory")
def _store() -> Target:
    store = MemoryStore(room() / "store", "0123456789abcdef", 3)
    path = store._file("12-5f0c9a3e", "memory")
    path.parent.mkdir(parents=True)
    data = tensors()

    def read(data: bytes) -> None:
        path.write_bytes(hashlib.sha256(data).digest() + data)
        store.read("12-5f0c9a3e")

    return Target(read, [data], odd_tensors)


def resealed(data: bytes) -> bytes:
    """Give the entries of a checkpoint list the checksums of what they are now."""
    try:
        listed = json.loads(data)
        for entry in listed:
            entry["check"] = entry_checksum(entry)
        return json.dumps(listed).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


def problem():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=draw)
    fed = tf.Federation(x, (x[:, 0] > 0).long(), [0, 1, 2] * 4, test=(x, (x[:, 0] > 0).long()))
    model = torch.nn.Linear(2, 2)
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    return model, fed


def small(**more):
    return {"rounds": 2, "steps": 1, "batch": 2, "device": "cpu", "engine": "loop"} | more


class Kept:
    """A folder that is put right before each input, but for the file that the input is."""

    def __init__(self, home: Path, patterns: tuple[str, ...]) -> None:
        self.home = home
        found = {path for pattern in patterns for path in home.glob(pattern)}
        self.paths = sorted(path for path in found if path.is_file())
        self.parts = [path.read_bytes() for path in self.paths]

    def put(self, data: bytes) -> Path:
        """Write the chosen file; give a checkpoint the sum of a state that was changed."""
        for path, part in zip(self.paths, put(self.parts, data), strict=True):
            path.write_bytes(part)
        path = self.paths[(data[0] if data else 0) % len(self.paths)]
        if path.name.startswith("state-"):
            other = self.paths.index(path.parent / "checkpoint.json")
            listed = json.loads(self.parts[other])
            listed[0]["sha256"] = hashlib.sha256(data[1:]).hexdigest()
            self.paths[other].write_bytes(resealed(json.dumps(listed[:1]).encode()))
        elif path.name == "checkpoint.json":
            path.write_bytes(resealed(path.read_bytes()))
        return self.home

    def target(self, read, count=FEW) -> Target:
        """Return the folder as a target."""

        return Target(
            lambda data: read(self.put(data)),
            chosen(self.parts),
            lambda data, random: data[:1] + self._changed(data, random),
            count,
            close=lambda: shutil.rmtree(self.home, ignore_errors=True),
        )

    def _changed(self, data: bytes, random: Random) -> bytes:
        name = self.paths[data[0] % len(self.paths)].name
        rest = data[1:]
        if name.endswith(".safetensors"):
            return odd_tensors(rest, random)
        if name.endswith(".jsonl"):
            lines = rest.split(b"\n")
            at = random.randrange(len(lines))
            lines[at] = odd_json(lines[at], random)
            return b"\n".join(lines)
        return odd_json(rest, random)


RUN = ("settings.json", "history.jsonl", "checkpoint.json", "state-*")


def run_folder(name: str, **more) -> Path:
    home = room() / name
    model, fed = problem()
    tf.fit(model, fed, more.pop("method", "fedavg"), out=home, **small(**more))
    for path in sorted(home.glob("state-*"))[:-1]:
        path.unlink()
    listed = json.loads((home / "checkpoint.json").read_text())
    (home / "checkpoint.json").write_text(json.dumps(listed[:1]))
    return home


@target("folder run")
def _run() -> Target:
    model, _ = problem()
    kept = Kept(run_folder("run"), RUN)

    def read(home: Path) -> None:
        folder = RunFolder(home)
        folder.read_settings()
        folder.read_history()
        Run.load(home, model).summary  # noqa: B018

    return kept.target(read)


@target("bytes history")
def _history() -> Target:
    home = run_folder("history")
    path = home / "history.jsonl"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        rows = RunFolder(home).read_history()
        assert all(isinstance(row, dict) for row in rows)

    def change(data: bytes, random: Random) -> bytes:
        lines = data.split(b"\n")
        at = random.randrange(len(lines))
        lines[at] = (odd_json if random.random() < 0.5 else edited)(lines[at], random)
        return b"\n".join(lines)

    return Target(read, [path.read_bytes()], change)


@target("bytes settings")
def _settings() -> Target:
    home = run_folder("settings")
    path = home / "settings.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        RunFolder(home).read_settings()

    return Target(read, [path.read_bytes()], odd_json)


@target("bytes checkpoint")
def _checkpoint() -> Target:
    home = run_folder("checkpoint")
    path = home / "checkpoint.json"

    def read(data: bytes) -> None:
        path.write_bytes(resealed(data))
        RunFolder(home).load_checkpoint()

    return Target(read, [path.read_bytes()], odd_json)


@target("folder resume")
def _resume() -> Target:
    kept = Kept(run_folder("resume", method="scaffold"), RUN)
    model, fed = problem()
    job = bound(model=model, federation=fed, method="scaffold", **small())

    def read(home: Path) -> None:
        Trainer(job, RunFolder(home)).train()

    return kept.target(read)


@target("folder report")
def _report() -> Target:
    kept = Kept(run_folder("report"), RUN[:3])

    def read(home: Path) -> None:
        with swapped(logging.getLogger("tunefree"), disabled=True):
            to_script_json(build_payload(collect.load_groups([home])))

    return kept.target(read)


@target("folder command")
def _command() -> Target:
    home = room() / "command"
    words = {"data": "toy", "split": "owner", "model": "regression", "rounds": 1, "set": ["lr=0.1"]}
    home.mkdir()
    (home / "settings.json").write_text(json.dumps({"command": words | {"method": "fedavg"}}))
    kept = Kept(home, ("settings.json",))

    def read(home: Path) -> None:
        build_run(run_command._read_command(home))

    return kept.target(read)


@target("folder comparison")
def _comparison() -> Target:
    home = room() / "comparison"
    model, fed = problem()
    compare(model, fed, ["fedavg", "fedprox"], seeds=1, out=home, **small())
    kept = Kept(home, ("compare.json", "*/seed-0/settings.json", "*/seed-0/history.jsonl"))

    def read(home: Path) -> None:
        found = Comparison.load(home)
        found.markdown()
        found.json()

    return kept.target(read)


@target("folder tuning")
def _tuning() -> Target:
    home = room() / "tuning"
    model, fed = problem()
    tune(model, fed, "fedavg", grid={"lr": [0.1, 1.0]}, seeds=1, by="test", out=home, **small())
    kept = Kept(home, ("tune.json", "*/seed-0/settings.json", "*/seed-0/history.jsonl"))

    def read(home: Path) -> None:
        found = Tuning.load(home)
        found.markdown()
        found.json()

    return kept.target(read)


@target("bytes record")
def _record() -> Target:
    source = next(Path(tf.__file__).parents[2].glob("experiments/*/results/*.json"))
    path = room() / "record.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        record.load(path)
        runner.load_run(path)

    def cut(tree):
        if isinstance(tree, dict):
            return {k: cut(v) for k, v in list(tree.items())[:30]}
        return [cut(v) for v in tree[:1]] if isinstance(tree, list) else tree

    small = cut(json.loads(source.read_text()))
    small |= {"status": "finished", "history": [{"round": 0, "seconds": 1.0}], "settings": {}}
    return Target(read, [json.dumps(small).encode()], odd_json)
