"""Runs that are killed (-9) at any moment, and what they leave.

    python -m trust.kills FOLDER KILLS SEED [CASE ...]        in tests/, or with it on the path

One process imports torch and forks everything else, so that a run costs its rounds and no more. A
run is killed and continued until it ends; then it must have the bits of a run that nobody killed.
Kills come at a file system call (a write may be cut in the middle) and by the clock, in turn.
"""

import builtins
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import tunefree as tf
from helpers import grouped, wait_for_child
from tunefree.core.errors import TunefreeError
from tunefree.faults import Faults
from tunefree.report import collect, page
from tunefree.simulation import memory
from tunefree.training.folder import RunFolder

ROUNDS, CLIENTS, COHORT, FEATURES, CLASSES = 8, 6, 4, 1000, 5


@dataclass(frozen=True)
class Case:
    """A kind of state: the method that has it, and where clients' memory is kept."""

    method: str
    place: str = "auto"
    options: tuple[tuple[str, object], ...] = ()


CASES = {
    "control variates": Case("scaffold"),
    "control variates in a mapped file": Case("scaffold", "file"),
    "error feedback": Case("fedefams"),
    "compressed momenta": Case("comparfrefl"),
    "moments of the server": Case("fedadam"),
    "extrapolation and averages": Case("feddua"),
    "scalars of LoD": Case("fedproxlod"),
    "echoed means": Case("fedcanon"),
    "uploads on their way": Case(
        "scaffold", options=(("faults", Faults(before=0.1, stale=0.3, slow=0.2, delay=2)),)
    ),
    "best so far": Case("auto", options=(("validation", 0.25), ("keep_best", True))),
}


def problem():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * 12, FEATURES, generator=draw)
    y = (x @ torch.randn(FEATURES, CLASSES, generator=draw)).argmax(1)
    owner = torch.arange(CLIENTS).repeat_interleave(12)
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES), tf.Federation(x, y, owner, test=(x[:20], y[:20]))


def play(case, out):
    if case.place != "auto":
        memory._choose = lambda on, need: case.place
    model, federation = problem()
    return tf.fit(
        model,
        federation,
        case.method,
        rounds=ROUNDS,
        cohort=COHORT,
        steps=2,
        batch=5,
        device="cpu",
        out=out,
        checkpoint_every=1 if out else None,
        **grouped(**dict(case.options)),
    )


class Fate:
    """Counts file system calls of this process, and kills it at the n-th."""

    def __init__(self, at, rng):
        self.calls, self.at, self.rng = 0, at, rng

    def meet(self, cut=None):
        self.calls += 1
        if self.calls == self.at:
            if cut is not None:
                cut()
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(self):
        """Have files opened for writing, their writes, syncs, renames and removals counted."""
        sys.addaudithook(self.hear)
        sync, fdopen, openfile = os.fsync, os.fdopen, io.open

        def fsync(file):
            self.meet()
            sync(file)

        def wrapped(make):
            def made(name, mode="r", *args, **kwargs):
                file = make(name, mode, *args, **kwargs)
                return Cut(file, self) if mode[0] in "wa" else file

            return made

        os.fsync, os.fdopen = fsync, wrapped(fdopen)
        io.open = builtins.open = wrapped(openfile)

    def hear(self, event, args):
        if event in ("os.rename", "os.remove", "os.mkdir") or (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        ):
            self.meet()


class Cut:
    """A file whose write may end in the middle."""

    def __init__(self, file, fate):
        self._file, self._fate = file, fate

    def write(self, data):
        def cut():
            self._file.write(data[: self._fate.rng.randrange(len(data) + 1)])
            self._file.flush()

        self._fate.meet(cut)
        return self._file.write(data)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *error):
        return self._file.__exit__(*error)

    def __getattr__(self, name):
        return getattr(self._file, name)


def born(task, report):
    """Fork a child that does something; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        said = task()
        report.write_text(json.dumps(said))
        code = 0
    except BaseException:
        report.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def ended(pid):
    """Wait for a child; return whether it was killed, and whether it ended well."""
    status = wait_for_child(pid)
    return os.WIFSIGNALED(status), os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def left(folder):
    """Return what a run left, apart from seconds: every number of its state, model and history."""
    rounds, tensors, facts = RunFolder(folder).load_checkpoint()
    rows = [
        {k: v for k, v in r.items() if k != "seconds"} for r in RunFolder(folder).read_history()
    ]
    bits = {name: (str(v.dtype), v.contiguous().numpy().tobytes()) for name, v in tensors.items()}
    model = (folder / "model.safetensors").read_bytes()
    return rounds, bits, facts, rows, model


def readable(folder):
    """Look at a folder in every way that we offer; only our own errors may come of it."""
    seen = 0
    try:
        run = tf.Run.load(folder)
        seen = len(run.history)
        assert run.history == [r for r in RunFolder(folder).read_history() if r["round"] < seen]
        assert [r["round"] for r in run.history] == list(range(seen))
        assert torch.isfinite(run.x).all()
    except TunefreeError as error:
        if "is missing" not in str(error) and "no checkpoint yet" not in str(error):
            raise
    if (folder / "settings.json").exists():
        page.render({"title": "", "groups": [], "runs": len(collect.load_groups([folder]))})
    return seen


def victim(case, name, folder, rng, budget, span):
    """Kill and continue one run until it ends; return kills, and kills at file system calls."""
    kills = calls = seen = tries = 0
    while True:
        report = folder.parent / "said.json"
        at = rng.randrange(1, span[0]) if tries % 2 == 0 and kills < budget else 0
        wait = rng.random() * span[1] if not at and kills < budget else None
        seed, tries = rng.random(), tries + 1

        def task(at=at, seed=seed):
            Fate(at, random.Random(seed)).begin()
            return play(case, folder).status

        pid = born(task, report)
        if wait is not None:
            time.sleep(wait)
            os.kill(pid, signal.SIGKILL)
        killed, well = ended(pid)
        kills, calls = kills + killed, calls + (killed and at > 0)
        assert killed or well, f"{name}: {report.read_text()}"
        if folder.exists():
            now = readable(folder)
            assert now >= seen, f"{name}: {seen} rounds were safe, now {now}"
            seen = now
        if not killed:
            return kills, calls


def main(place, kills, seed, cases):
    """Kill so many times, over all cases in turn; return what was done."""
    each = max(1, min(9, -(-kills // len(cases))))  # kills of one run
    torch.set_num_threads(1)
    place, rng = Path(place), random.Random(seed)
    os.environ["TMPDIR"] = str(place / "tmp")
    (place / "tmp").mkdir(parents=True)
    tempfile.tempdir = None
    play(Case("fedavg"), None)  # what is imported late is imported here, once
    whole, spans = {}, {}
    for name in cases:
        out, report = place / f"whole {name}", place / "said.json"

        def task(case=CASES[name], out=out):
            fate, began = Fate(0, rng), time.perf_counter()
            fate.begin()
            play(case, out)
            return fate.calls, time.perf_counter() - began

        _, well = ended(born(task, report))
        assert well, report.read_text()
        spans[name], whole[name] = json.loads(report.read_text()), left(out)
        assert whole[name][0] == ROUNDS
    done = at_calls = runs = 0
    while done < kills:
        for name in cases:
            out = place / f"killed {name}"
            more, calls = victim(CASES[name], name, out, rng, min(each, kills - done), spans[name])
            done, at_calls, runs = done + more, at_calls + calls, runs + 1
            assert left(out) == whole[name], f"{name} ended with other bits (seed {seed})"
            names = {p.name.split("-")[0] for p in out.iterdir()}
            assert names == {"settings.json", "history.jsonl", "checkpoint.json", "state",
                             "model.safetensors"}, names  # fmt: skip
            shutil.rmtree(out)
            if done >= kills:
                break
    files = len(list((place / "tmp").glob("tunefree-*")))
    return {"kills": done, "at calls": at_calls, "runs": runs, "files": files}


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(main(given[0], int(given[1]), int(given[2]), given[3:] or list(CASES))))
