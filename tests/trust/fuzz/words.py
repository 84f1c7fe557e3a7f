"""Words of the command line, and specifications of experiments."""

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
from benchmarks import __main__ as benchmarks
from cyclopts import App, Argument
from experiments import __main__ as experiments
from experiments.library import find, load

from trust.fuzz.mutate import edited
from trust.fuzz.target import Target, room, target
from tunefree import attacks, faults, penalties, robust, wire
from tunefree.cli import app, flower, main, run, study
from tunefree.core.errors import DataError
from tunefree.data import partition, sources
from tunefree.report import watch
from tunefree.study import candidates
from tunefree.study.tuning import parse_grid
from tunefree.training import command

SPLIT = b"\n"
PARTS = (
    b"ef+" * 3000,
    b"2*" * 3000,
    b"nnm+" * 3000,
    b":",
    b"=",
    b"*",
    b"+",
    b",",
    b"0.5",
    b"1e-4",
    b"topk",
    b"ef+",
    b"l1",
    b"nan",
    b"tuned",
)


def _text(read, *seeds: str) -> Target:
    def change(data: bytes, random: Random) -> bytes:
        return edited(data, random, PARTS)

    return Target(
        lambda data: read(data.decode("utf-8", "surrogateescape")),
        [seed.encode() for seed in seeds],
        change,
    )


target("words wire")(
    lambda: _text(wire.parse, "topk:0.05", "ef+randk:0.5:contractive", "qsgd:15", "ef+sign")
)
target("words penalty")(
    lambda: _text(penalties.get, "mcp:1e-4:3", "1e-4*group-lasso:1:row:scaled", "box:-1:1")
)
target("words split")(lambda: _text(partition.parse, "dirichlet:0.1:balanced", "shards:2", "iid"))
target("words method")(
    lambda: _text(
        candidates.parse_candidate, "fedavg:lr=0.3:wire=ef+topk:0.05", "fedprox:mu=1:tuned"
    )
)
target("words aggregation")(
    lambda: _text(robust.parse, "krum:f=2", "nnm:f=0.2+trimmed-mean:f=0.2", "norm-clip:2.0")
)
target("words faults")(
    lambda: _text(faults.parse, "before=0.1,after=0.2", "slow=0.3,available=24/0.5")
)
target("words attack")(lambda: _text(attacks.parse, "sign-flip:0.2", "large-norm:0+3:scale=10"))
target("words seeds")(
    lambda: _text(lambda t: candidates.make_seeds(candidates.parse_seeds(t)), "3", "0,4,7")
)
target("words grid")(lambda: _text(lambda t: parse_grid("fedavg", [t]), "lr=0.1,1", "clip=none,1"))
target("words setting")(
    lambda: _text(
        lambda t: command.parse_method_settings("fedproxlod", (t,)), "weights=samples", "clip=1"
    )
)

LINES = (
    "run\n--data\ndigits\n--rounds\n2\n--cohort\n5\n--dry-run",
    "run\n--data\ntoy\n--method\nfedavg\n--set\nlr=0.1\n--set\nweights=samples\n--steps\n2\n--json",
    "run\n--split\ndirichlet:0.1\n--clients\n30\n--model\nlinear\n--dtype\nfloat64\n--seed\n3",
    "run\n--resume\nnowhere",
    "compare\n--methods\nauto,fedavg:lr=0.1\n--seeds\n3\n--out\nstudy\n--data\ntoy",
    "tune\n--method\nfedadam\n--grid\nlr=0.1,1\n--halving\n--by\ntest\n--jobs\n2",
    "advise\n--data\ntoy\n--no-tuning\n--stateless\n--max-upload\n100kB\n--skew\n0.5",
    "report\nnowhere\n--out\npage.html\n--format\npdf",
    "experiments\nP3-figure1\n--scale\nsmall\n--dry-run\n--seeds\n1",
    "experiments\nLIST",
    "benchmarks\ncpu",
    "methods\nfedavg\n--json",
    "datasets\n--json",
    "watch\nnowhere\n--port\n0",
    "flower\nnew\nfolder",
    "--help",
    "--version",
)
WORDS = (b"--rounds\n", b"--data-dir\n", b"--seed\n", b"--out\n", b"--\n", b"--help\n", b"\n\n")


PROGRAMS = {"benchmarks": benchmarks.app, "experiments": experiments.app}


def _stop(*given: object, **more: object) -> object:
    raise DataError("Here the work would begin.")


def _one_paper() -> dict[str, Path]:
    """Return one experiment: to list all of them takes a second, whatever the line was."""
    return {"P3-figure1": find()["P3-figure1"]}


def _once(assemble: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes the arguments of a command once: they do not depend on the line."""
    made: dict[Any, tuple[Any, list[tuple[Any, dict[str, Any]]]]] = {}

    def again(command: App, **settings: Any) -> Any:
        key = id(command), tuple(sorted(settings.items()))
        if key not in made:
            found = assemble(command, **settings)
            fields = [field.name for field in attrs.fields(Argument)]
            made[key] = found, [(part, {n: getattr(part, n) for n in fields}) for part in found]
        found, parts = made[key]
        for part, fresh in parts:
            for name, value in fresh.items():
                object.__setattr__(part, name, [] if name == "tokens" else value)
        return found

    return again


def _no_network(*given: object) -> Path:
    raise DataError("Nothing is fetched here.")


@target("words command line")
def _command_line() -> Target:
    home = room() / "home"
    home.mkdir()
    before = Path.cwd(), dict(os.environ), sources._download
    os.chdir(home)
    os.environ["TERM"] = "dumb"
    os.environ.pop("TUNEFREE_DATA", None)
    owners = (
        (run, "train"),
        (study, "run_comparison"),
        (study, "run_search"),
        (watch, "make_server"),
    )
    owners += ((sources, "_download"), (experiments.papers, "run"), (experiments.papers, "find"))
    owners += ((App, "assemble_argument_collection"),)
    owners += ((benchmarks, "measure"),)
    kept = [(owner, name, getattr(owner, name)) for owner, name in owners]
    other = {"_download": _no_network, "find": _one_paper}
    other["assemble_argument_collection"] = _once(App.assemble_argument_collection)
    for owner, name in owners:
        setattr(owner, name, other.get(name, _stop))

    def close() -> None:
        os.chdir(before[0])
        os.environ.clear()
        os.environ.update(before[1])
        for owner, name, value in kept:
            setattr(owner, name, value)

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        given = [word for word in text.split("\n") if "/" not in word]  # stay in this folder
        if given[:1] in (["benchmarks"], ["flower"]) and "--help" not in given:
            given = [*given[:1], "--help"]
        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            try:
                program = PROGRAMS.get(given[0]) if given else None
                main(given) if program is None else main(given[1:], app=program)
            except SystemExit as end:
                code = end.code
        assert code in (0, 1, 2, 3), code
        if code:
            raise DataError(quiet.getvalue().strip() or "nothing said")

    def change(data: bytes, random: Random) -> bytes:
        return edited(data, random, WORDS)

    return Target(read, [line.encode() for line in LINES], change, 100_000, 20.0, close)


@target("bytes specification")
def _specification() -> Target:
    place = room() / "P9"
    place.mkdir()
    path = place / "table.toml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        found = load(path)
        for scale in found.scales:
            found.at(scale)

    def change(data: bytes, random: Random) -> bytes:
        lines = data.split(b"\n")
        kind = random.random()
        at = random.randrange(len(lines))
        if kind < 0.2:
            del lines[at]
        elif kind < 0.4:
            lines.insert(random.randrange(len(lines)), lines[at])
        elif kind < 0.9 and b"=" in lines[at]:
            key = lines[at].partition(b"=")[0]
            lines[at] = key + b"= " + random.choice(VALUES)
        else:
            return edited(data, random, VALUES)
        return b"\n".join(lines)

    return Target(read, [RUNS, COSTS], change)


RUNS = b"""title = "a"
measure = "test_loss"
show = ["last"]
[common]
rounds = 5
[scale.small]
seeds = 1
[[task]]
name = "T"
data = "toy"
split = "owner"
model = "regression"
[[method]]
name = "A"
method = "fedavg"
grid = {lr = [0.1]}
[[method]]
name = "B"
method = "scaffold+fedexp"
set = {lr = 0.1}
[[sweep]]
methods = ["B"]
setting = "lr"
values = [0.2]
[[claim]]
says = "b"
better = ["B"]
than = ["A"]
"""
COSTS = b"""title = "a"
kind = "prox-cost"
[scale.small]
[scale.paper]
[[task]]
name = "T"
size = 9
[[method]]
name = "l1"
penalty = "l1:1e-3"
small = {penalty = "l1:1"}
"""
VALUES = (
    b"1", b"-1", b"0", b"true", b"1e400", b"nan", b'""', b'"x"', b"[]", b"[1]", b'["a"]', b"{}",
    b"{a = 1}", b"[[]]", b"1979-05-27", b"9223372036854775807", b"'../x'", b"[{}]", b"{small = 1}",
    b"[" * 3000, b"{lr = [0.1]}", b"{lr = 3}",
)  # fmt: skip

__all__ = ["app", "flower"]
