"""Check that a change of the code did not change results: the same bits as an earlier commit.

    python tools/same_bits.py [--base COMMIT] [--only PATTERN] [--jobs N] [--python PATH] [--list]

The program runs about 400 short trainings (`CASES`) with the source of `--base` and with the source
of the working tree: one process each, the same interpreter, one thread. It compares SHA-256 digests
of the last iterate, the shipped model, every column of the history except "seconds" (the ledger's
columns among them), the summary, and the files that a run writes. It prints one line per case and
exits with status 1 if a case differs or fails.

The source and the digests of the base are kept in build/same-bits/COMMIT, by case and interpreter.
Delete that folder to compute them again. Cases that need a package that the interpreter lacks
(cryptography, dp-accounting) are skipped, and the output says so; `--python` selects another
interpreter.

A case is plain data: arguments of `fit` by their names in version 0.1.0. Only the section "Adapter"
knows how the two versions differ.
"""

import argparse
import fnmatch
import hashlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "same-bits"
BASE = "2abc510"
LIMIT = 180  # seconds that a case may take
UNCOMPARED = ("seconds", "worst_client", "refused_clients")  # a clock, and names that 0.1 lacks
LEDGER = ("bytes_up", "bytes_down", "counted_up")  # beginnings of the ledger's columns

Words = dict[str, Any]
Digests = dict[str, str]

# ---------------------------------------------------------------------------------------- Cases

split = str.split
METHODS = split("""
adaalter auto comparfrefl fastfedda fedadagrad fedadam fedadmm fedams fedavg fedavgcm fedavgm
fedcanon fedcanon2 fedda feddc feddog feddowg feddr feddua fedduadagrad fedduadam feddyn fedefams
fedefsgd fedexp fedexpm fedexprox fedexpsls fedlin fedmid fedpd fedprox fedproxlod fedproxwlod
fedsls fedsps fedyogi localsgdc mime mimelite padamfed parfrefl scafcom scaffnew scaffold scaffoldm
za1
""")
FULL = {"fedcanon2", "fedpd", "localsgdc", "scaffnew", "za1"}  # need full participation
COMPOSITIONS = split("""
fedduadam-scaffold-armijo scaffold+prox-momentum-fedexp scaffold-I-adam dog-fedduadagrad-averaged
scaffold-live-dog-fedduadam fedduadagrad-mime adam-over-sign fedcanon-fedexp-l1 wire-by-client
""")
FEDERATED = split("""
auto comparfrefl fedavg fedcanon fedduadam fedlin fedpd fedproxlod parfrefl scaffold adam-over-sign
wire-by-client
""")
PENALTIES = split("""
none l1:1e-2 l2:1e-2 elastic-net:1e-2 mcp:1e-2 scad:1e-2 group-lasso:1e-2
group-lasso:1e-2:row:scaled nuclear:1e-2 box:-0.3:0.3 l1-ball l2-ball simplex 0.5*mcp:1e-2
""")
WIRES = split("""
dense topk:0.3 topk:0.3:global randk:0.5 randk:0.5:contractive qsgd:7 natural sign lowrank:1
ef+topk:0.3 ef+randk:0.5:contractive ef+sign ef+lowrank:1
""")
ATTACKS = split("""
sign-flip:0.25 large-norm:0+3:scale=10 gaussian:0.25 misreport:0.25 label-flip:0.25
little-is-enough:0.25 inner-product:0.25
""")
RULES = split("""
median trimmed-mean:f=1 geometric-median krum:f=1 multi-krum:f=1 norm-clip centred-clip
nnm:f=1+trimmed-mean:f=1 bucketing:size=2+median
""")
FAULTS = split("""
before=0.3 after=0.3 slow=0.5 stale=0.4 stale=0.4,delay=3 available=4/0.5
before=0.1,after=0.1,stale=0.2,slow=0.2,delay=2
""")
SMALL: Words = {"rounds": 3, "batch": 4, "seed": 7, "dtype": "float64", "device": "cpu"}
LOOP: Words = {**SMALL, "cohort": 4, "epochs": 1, "engine": "loop"}
DIGITS: Words = {
    "data": "digits", "model": "mlp", "rounds": 2, "cohort": 4, "batch": 20, "device": "cpu"
}  # fmt: skip
SCALARS = {"loss": [0.0, 3.0], "lr": [0.0, 1.0]}  # ranges of what every client reports
NOISE: dict[str, Words] = {
    name: {"noise": 0.1, "seed": 1, "vectors": dict.fromkeys(vectors, 0.5), "scalars": scalars}
    for name, vectors, scalars in (
        ("fedavg", ("delta",), SCALARS),
        ("fedexp", ("delta",), {**SCALARS, "delta_sq": [0.0, 3.0]}),
        ("scaffold", ("delta", "control"), SCALARS),
    )
}
OPTIONS: dict[str, Words] = {
    "auto": {"weights": "samples"},
    "comparfrefl": {"compressor": "sign"},
    "fedadam": {"output": "averaged"},
    "fedavg": {"weights": "samples"},
    "feddr": {"solver": "armijo", "penalty": "l1:1e-2"},
    "feddyn": {"solver": "armijo"},
    "fedefams": {"compressor": "sign"},
    "fedexprox": {"extrapolation": "stops"},
    "fedpd": {"skip": 0.5},
    "fedproxlod": {"global_loss": "server"},
    "fedproxwlod": {"reading": "printed", "prox_step": "explicit"},
    "fedsls": {"output": "last-two"},
    "padamfed": {"variance_reduced": True},
    "scafcom": {"compressor": "topk:0.3"},
    "scaffold": {"option": "I"},
}
UNIFORM: Words = {"weights": "uniform"}  # the default of all methods in 0.1.0
OTHER = "fedexp:weights=uniform"
COMMANDS = {
    "run": "run --steps 3 --method fedexp --set weights=uniform",
    "run-evaluated": "run --steps 3 --method scaffold --set lr=0.05 --validation 0.2 --keep-best"
    " --patience 2 --per-client --heterogeneity",
    "run-attacked": "run --epochs 1 --method fedavg --set lr=0.1 --aggregate trimmed-mean:f=0.2"
    " --faults before=0.1,slow=0.2 --attack sign-flip:0.2 --split shards:2 --cohort 6"
    " --dtype float64",
    "run-fedcanon": "run --steps 3 --method fedcanon --set penalty=l1:1e-3 --set wire=topk:0.1"
    " --cohort 0 --model linear --eval-every 2",
    "compare": f"compare --steps 3 --methods fedavg:lr=0.1:weights=uniform,{OTHER} --seeds 2"
    " --json",
    "tune": "tune --steps 3 --method fedavg --set weights=uniform --grid lr=0.1,0.3 --json",
}
NETS: dict[str, tuple[Sequence[int], int, Words]] = {  # shape of a sample, classes, arguments
    "linear": ((5,), 3, {}),
    "regression": ((5,), 1, {}),
    "mlp": ((1, 8, 8), 10, {}),
    "convex": ((5,), 3, {"hidden": 64}),
    "cnn-p1": ((3, 16, 16), 10, {}),
    "cnn-p2": ((1, 16, 16), 10, {}),
    "cnn-p4": ((3, 16, 16), 10, {}),
    "cnn-pfl": ((3, 16, 16), 10, {}),
    "lstm": ((12,), 10, {"embedding": 8, "hidden": 16}),
    "gru": ((12,), 10, {"embedding": 8, "hidden": 16}),
    "resnet18": ((3, 16, 16), 10, {"width": 4}),
    "vit": ((3, 16, 16), 10, {"width": 16, "layers": 2, "hidden": 32}),
    "text": ((12,), 2, {"vocab": 30}),
    "bert": ((12,), 2, {"vocab": 30, "width": 16, "layers": 1, "heads": 2, "hidden": 32}),
}


Case = tuple[str, Words]  # a name and its data


def case(name: str, method: str = "fedavg", kind: str = "fit", **given: Any) -> Case:
    """Return a case; `kind` selects what the worker does, `set` holds the method's settings."""
    if method in FULL:
        given["cohort"] = None
    return name, {"kind": kind, "method": method, **given}


def list_methods() -> Iterator[Case]:
    """Yield cases of every method, with what a method can be given."""
    for name in METHODS:
        yield case(f"method/{name}/full", name, **SMALL, cohort=None, steps=3, engine="vmap")
        if name not in FULL:
            yield case(f"method/{name}/partial", name, **LOOP)
    for name in COMPOSITIONS:
        yield case(f"method/{name}", name, **LOOP)
    for name, given in OPTIONS.items():
        slow = {"batch": None, "rounds": 1, "cohort": 2}  # a solver needs all of a client's data
        yield case(
            f"option/{name}/{'-'.join(given)}",
            name,
            set=given,
            **LOOP | (slow if "solver" in given else {}),
        )
    for name in ("fedcanon2", "fedmid", "fedda", "fastfedda", "za1", "feddr", "fedadmm"):
        yield case(f"penalty/{name}/l1", name, set={"penalty": "l1:1e-2"}, **LOOP)
    for text in PENALTIES:
        yield case(f"penalty/fedcanon/{text}", "fedcanon", set={"penalty": text}, **LOOP)
    for text in WIRES:
        for name in ("fedavg", "fedprox" if text == "randk:0.5" else "scaffold"):
            yield case(f"wire/{name}/{text}", name, set={"wire": text}, **LOOP)
    for text in ("cosine", "cosine:0.01+warmup:2", "exponential:0.9", "constant+warmup:2"):
        yield case(f"schedule/{text}", set={"schedule": text}, **LOOP)
    yield case("gradient/weight-decay", set={"weight_decay": 1e-2}, **LOOP)
    yield case("gradient/clip", "scaffold", set={"clip": 0.5}, **LOOP)
    every: Words = {
        "schedule": "cosine+warmup:2",
        "weight_decay": 1e-2,
        "clip": 0.5,
        "weights": "samples",
    }
    yield case("gradient/all", set=every, **LOOP)
    problem = {"data": "regression", "model": "regression"}  # it has no bounded gradients
    yield case("gradient/diverged", set={"lr": 1e100}, **LOOP, **problem)


def list_engines() -> Iterator[Case]:
    """Yield cases of data types, engines, networks and data."""
    for name in ("fedavg", "auto", "scaffold", "fedsls", "fedcanon", "comparfrefl", "fedduadam"):
        for dtype in ("float32", "float64"):
            yield case(f"digits/{name}/{dtype}", name, **DIGITS, steps=3, dtype=dtype)
    works: list[Words] = [{"steps": 3}, {"epochs": 2}, {"steps": 2, "batch": None}]
    for name in ("fedavg", "scaffold", "fedsls"):
        for engine in ("loop", "vmap", "auto"):
            for work in works:
                label = "-".join(f"{k}={v}" for k, v in work.items())
                given = {**SMALL, "cohort": 5, "engine": engine, "compile": False, **work}
                yield case(f"engine/{name}/{engine}/{label}", name, **given)
        batched = {**LOOP, "engine": "vmap"}
        yield case(f"engine/{name}/chunk=1", name, **batched, chunk=1)
        yield case(f"engine/{name}/chunk=3", name, **batched, chunk=3)
        yield case(f"engine/{name}/many-steps", name, **batched | {"rounds": 5, "epochs": 3})
        yield case(f"engine/{name}/compile", name, **DIGITS, steps=3, compile=True)
    yield case("engine/bf16", **DIGITS, steps=3, precision="bf16", compile=False)
    for engine in ("loop", "vmap"):
        given = {"steps": 3, "engine": engine, "compile": False, "augment": "crop-flip"}
        yield case(f"augment/{engine}", "scaffold", **DIGITS | {"model": "conv"}, **given)
        for net in NETS:
            given = {"rounds": 1, "cohort": 3, "steps": 2, "batch": 4, "device": "cpu"}
            given |= {"data": net, "model": net, "engine": engine}
            yield case(f"net/{net}/{engine}", **given)
    for net in NETS:
        yield case(f"net/{net}/start", kind="net", model=net)
    yield case("data/regression", "fedexp", **LOOP, data="regression", model="regression")
    yield case("data/toy", "fedexpsls", **LOOP | {"cohort": None}, data="toy", model="toy")
    for text in ("iid", "dirichlet:0.3", "dirichlet:0.3:balanced", "shards:2"):
        yield case(f"split/{text}", kind="split", split=text)


def list_runs() -> Iterator[Case]:
    """Yield cases of evaluation, starts and resumed runs."""
    poor = LOOP | {"rounds": 12, "validation": 0.3}
    yield case("evaluate/every-2", **LOOP | {"rounds": 5}, eval_every=2)
    yield case("evaluate/validation", **LOOP, validation=0.3)
    yield case("evaluate/patience", **poor, patience=2, set={"lr": 1e-12})
    yield case("evaluate/keep-best", "fedexp", **poor, keep_best=True, set={"lr": 2.0})
    yield case("evaluate/per-client", **LOOP, per_client=True)
    yield case("evaluate/heterogeneity", "scaffold", **LOOP, heterogeneity=True)
    yield case("evaluate/metrics", **LOOP, metrics=["margin"])
    every: Words = {"validation": 0.2, "keep_best": True, "per_client": True, "heterogeneity": True}
    yield case("evaluate/all", "auto", **LOOP, **every, eval_every=2)
    yield case("start/module", "scaffold", **LOOP, start="module")
    yield case("start/run", "fedexp", **LOOP, start="run")
    longer = LOOP | {"rounds": 5, "stop": 1}  # interrupted after round 1, then continued
    for name in ("fedavg", "auto", "fedsls", "scaffold", "fedproxwlod", "comparfrefl", "fedcanon2"):
        yield case(f"resume/{name}", name, "resume", **longer)
        given = longer | {"engine": "vmap", "stop": 2}
        yield case(f"resume/{name}/vmap", name, "resume", **given)
    yield case("resume/patience", kind="resume", **poor, stop=1, patience=2, set={"lr": 1e-12})
    yield case("resume/keep-best", "fedexp", "resume", **poor, stop=4, keep_best=True)
    given = LOOP | {"rounds": 8, "stop": 3, "faults": FAULTS[-1]}
    yield case("resume/faults", "scaffold", "resume", **given)
    given = longer | {"attack": "label-flip:0.25", "aggregate": "median"}
    yield case("resume/attack", "scaffold", "resume", **given)
    yield case("resume/privacy", kind="resume", **longer, privacy=NOISE["fedavg"])


def list_scenarios() -> Iterator[Case]:
    """Yield cases of faults, attacks, robust rules and privacy."""
    longer = LOOP | {"rounds": 6}
    for text in FAULTS:
        for name in ("fedavg", "scaffold"):
            yield case(f"faults/{name}/{text}", name, **longer, faults=text)
    for name in ("auto", "fedexp", "fedproxlod", "fedlin", "padamfed", "fedefams"):
        yield case(f"faults/{name}/lost", name, **longer, faults="before=0.2,after=0.2")
    for text in ATTACKS:
        for name in ("fedexp", "fedproxwlod") if "misreport" in text else ("fedavg", "scaffold"):
            yield case(f"attack/{name}/{text}", name, **LOOP | {"cohort": 6}, attack=text)
    for text in RULES:
        for name in ("fedavg", "scaffold"):
            given = LOOP | {"cohort": 7, "aggregate": text, "attack": "sign-flip:0.2"}
            yield case(f"robust/{name}/{text}", name, **given)
    given = longer | {"cohort": 7, "faults": FAULTS[-1], "attack": "gaussian:0.2"}
    yield case("robust/all", **given, aggregate="trimmed-mean:f=0.2", validation=0.2)
    for name, weights in (("fedavg", "uniform"), ("scaffold", "samples"), ("parfrefl", "uniform")):
        given = LOOP | {"set": {"weights": weights}, "needs": ["cryptography"]}
        yield case(f"secure/{name}/64", name, **given, secure={})
        yield case(f"secure/{name}/32", name, **given, secure={"bits": 32, "bound": 16.0})
    for name, noise in NOISE.items():
        yield case(f"privacy/{name}/noise", name, **LOOP, privacy=noise)
        yield case(f"privacy/{name}/clip", name, **LOOP, privacy=noise | {"noise": 0.0})
        given = LOOP | {"needs": ["dp_accounting"]}
        yield case(f"privacy/{name}/epsilon", name, **given, privacy=noise | {"delta": 1e-3})
        given = LOOP | {"needs": ["cryptography"]}
        masked = noise | {"secure": {"bound": 1.0}}
        yield case(f"privacy/{name}/secure", name, **given, privacy=masked)


def list_programs() -> Iterator[Case]:
    """Yield cases of comparisons, searches, the command line and Flower's two sides."""
    study = LOOP | {"seeds": 2, "methods": ["fedavg:lr=0.1:weights=uniform", OTHER]}
    yield case("compare/plain", kind="compare", **study)
    yield case("compare/folder", kind="compare", **study, out=True, validation=0.2)
    given = {"faults": "before=0.2", "attack": "gaussian:0.2"}
    yield case("compare/scenario", kind="compare", **study, **given)
    tuned: Words = {"methods": ["fedavg:weights=uniform:tuned", OTHER]}
    yield case("compare/tuned", kind="compare", **study | tuned)
    search = LOOP | {"rounds": 9, "grid": {"lr": [0.01, 0.1, 0.3]}, "seeds": 2}
    yield case("tune/grid", kind="tune", **search)
    yield case("tune/halving", kind="tune", **search, halving=True, out=True)
    yield case("tune/test", kind="tune", **search, by="test", per_client=True, out=True)
    for name, command in COMMANDS.items():
        cohort = "" if "--cohort" in command else " --cohort 4"  # the default has changed
        command += f" --rounds 3 --clients 8 --device cpu{cohort}"
        yield case(f"command/{name}", kind="command", command=command)
    for name in FEDERATED:
        yield case(f"flower/{name}", name, "flower", **LOOP)
    yield case("flower/float32", "fedexp", "flower", **LOOP | {"dtype": "float32"})
    yield case("flower/samples", "fedavg", "flower", **LOOP, set={"weights": "samples"})
    yield case("flower/lost", "scaffold", "flower", **LOOP | {"cohort": 6}, lost=3)
    yield case("flower/resume", "scaffold", "flower", **LOOP | {"rounds": 5}, stop=1)
    yield case("flower/median", "fedavg", "flower", **LOOP | {"cohort": 7}, aggregate="median")
    yield case("flower/privacy", "fedexp", "flower", **LOOP, privacy=NOISE["fedexp"])
    masked: Words = LOOP | {"secure": {}, "needs": ["cryptography"]}
    for name in ("fedavg", "scaffold", "parfrefl", "fedlin"):
        yield case(f"flower/{name}/secure", name, "flower", **masked)
    given = masked | {"cohort": None, "secure": {"threshold": 5}, "lost": 3}
    yield case("flower/lost/secure", "scaffold", "flower", **given)


def list_cases() -> dict[str, Words]:
    """Return all cases by name."""
    groups = (list_methods, list_engines, list_runs, list_scenarios, list_programs)
    return {name: words for group in groups for name, words in group()}


# -------------------------------------------------------------------------------------- Adapter
# All that differs between version 0.1.0 and later ones. Cases use the names of 0.1.0. The package
# is imported only inside functions, since the parent process does not have it.

# Later versions group some arguments of `fit`: the argument, its class in `tunefree`, and the flat
# arguments that the class takes ("old:new" where it has another name for one).
GROUPS = {
    "preprocess": ("Preprocess", "augment"),
    "evaluate": ("Evaluate", "validation patience keep_best metrics per_client heterogeneity"),
    "engine": ("Engine", "engine:backend chunk precision"),
    "scenario": ("Scenario", "faults attack"),
}
FLAGS: dict[str, str] = {}  # options of the command line that a later version renamed


def find_module(*names: str) -> Any:
    """Return the first of these modules that the tree has: its name now, and its name in 0.1.0."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):  # a module inside it is missing
                raise
    return importlib.import_module(names[-1])


def group_arguments(flat: Mapping[str, Any]) -> Words:
    """Return arguments of `fit` in the form that the tree takes: flat if it has no such classes."""
    tf, out = importlib.import_module("tunefree"), dict(flat)
    for argument, (class_name, names) in GROUPS.items():
        if not hasattr(tf, class_name):  # as in 0.1.0
            continue
        pairs = [(name.split(":")[0], name.split(":")[-1]) for name in names.split()]
        given = {new: out.pop(old) for old, new in pairs if old in out}
        if given:
            out[argument] = getattr(tf, class_name)(**given)
    return out


def call_fit(model: Any, *what: Any, **flat: Any) -> Any:
    """Call `fit` with a model, a federation, a method, and flat arguments."""
    tf = importlib.import_module("tunefree")
    if hasattr(tf, "Preprocess"):  # and takes another start as the model
        model = flat.pop("start", model)
    return tf.fit(model, *what, **group_arguments(flat))


def call_study(name: str, *what: Any, own: Words, flat: Words) -> Any:
    """Call `compare` or `tune` with its own arguments and those of `fit`."""
    study = getattr(importlib.import_module("tunefree"), name)
    return study(*what, progress=False, **own, **group_arguments(flat))


def get_parser(kind: str) -> Callable[[str], Any]:
    """Return the function that reads text; kind is faults, attacks, robust or partition."""
    room = "data.partition" if kind == "partition" else kind
    parse: Callable[[str], Any] = find_module(f"tunefree.{room}").parse
    return parse


def get_interrupted() -> type[BaseException]:
    """Return the exception that `fit` raises after Ctrl-C."""
    error: type[BaseException] = find_module("tunefree.core.errors", "tunefree.errors").Interrupted
    return error


def adapt_command(command: str) -> list[str]:
    """Return the words of a command line."""
    return [FLAGS.get(word, word) for word in command.split()]


def serve_in_process(
    model: Callable[[], Any],
    federation: Any,
    method: Any,
    folder: Path,
    lost: int | None,
    settings: Words,
) -> Any:
    """Train over nodes in this process, without Flower; `lost` does not answer in round 1."""
    old, new = "tunefree.engines.flower", "tunefree.flower"
    node_class = find_module(f"{new}.node", f"{old}.node").Node
    settings_class = find_module(f"{new}.settings", f"{old}.settings").Settings
    serve = find_module(f"{new}.serve", f"{old}.serve").serve
    nodes: dict[int, Any] = {}

    def read_header(payload: Any) -> dict[str, Any]:
        return dict(payload.header if hasattr(payload, "header") else payload.facts)

    class Post:
        """Carries messages to the nodes."""

        def nodes(self) -> list[int]:
            return [100 + i for i in range(federation.clients)]

        def exchange(self, parcels: dict[int, Any], seconds: float) -> dict[int, Any]:
            return {
                number: self._answer(number - 100, parcels[number])
                for number in reversed(list(parcels))
                if (number - 100, read_header(parcels[number]).get("round")) != (lost, 1)
            }

        def _answer(self, i: int, parcel: Any) -> Any:
            if i not in nodes:
                config = {"partition-id": i, "memory": str(folder / "nodes" / str(i))}
                load = lambda config: federation.client(config["partition-id"])  # noqa: E731
                nodes[i] = node_class(model, load, config, method=method, device="cpu")
            try:
                return nodes[i].reply(parcel)
            except Exception as error:
                return str(error)

        def pause(self) -> None:
            raise RuntimeError("The server waits for clients.")

    told = settings_class(
        model=model(),
        clients=federation.clients,
        method=method,
        test=federation.test,
        held=federation.held,
        deadline=1.0,
        wait=0.0,
        **settings,
    )
    return serve(told, Post())


# --------------------------------------------------------------------------------------- Worker


def make_federation(name: str) -> Any:
    """Return eight clients of unequal size: "tiny", "digits", "regression", "toy", or for a net."""
    import torch

    import tunefree as tf

    if name in ("digits", "toy"):
        dataset = tf.load(name)
        if name == "toy":
            return dataset.split(tf.ByOwner(), seed=0)
        return dataset.split(tf.Dirichlet(0.3), clients=8, seed=0)
    sizes = torch.tensor([3, 9, 5, 12, 4, 7, 6, 10])
    shape, classes, own = NETS.get(name, ((5,), 3, {}))
    draw = torch.Generator().manual_seed(3)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    rows = len(owner)
    words = int(own.get("vocab", classes)) if name in ("bert", "lstm", "gru", "text") else 0
    if words:
        x = torch.randint(words, (rows, *shape), generator=draw)
    else:
        x = torch.randn(rows, *shape, generator=draw, dtype=torch.float64)
        x = x + 1.5 * torch.randn(len(sizes), *shape, generator=draw, dtype=torch.float64)[owner]
    labels = torch.randint(max(classes, 2), (rows,), generator=draw)
    y = labels if classes > 1 else x.sum(1, keepdim=True) + 0.1 * owner[:, None]
    ids = torch.arange(rows)

    def choose(rows: Any) -> Any:
        mask = (torch.arange(12) < 6 + rows[:, None] % 7).long()
        return ((x[rows], mask) if name in ("bert", "text") else x[rows]), y[rows]

    given: Words = {"test": choose(ids[::3]), "held": choose(ids[1::4])}
    given |= {"classes": classes} if classes > 1 else {}
    inputs, targets = choose(ids)
    return tf.Federation(inputs, targets, owner, **given)


def make_model(name: str, seed: int = 0) -> Any:
    """Return a module: "net" with dropout, "conv", "toy", or one of `NETS`."""
    import torch
    from torch import nn

    import tunefree as tf

    if name in NETS:
        shape, classes, given = NETS[name]
        return tf.models.build(name, shape=tuple(shape), classes=classes, seed=seed, **given)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "toy":
            return nn.Linear(2, 1, bias=False)
        if name == "conv":
            first = (nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2))
            return nn.Sequential(*first, nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 10))
        net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))
        return net.to(torch.float64)


def choose_wire(client: int, round: int) -> Any:
    """Return another compressor for every client and round."""
    from tunefree import wire

    return [wire.TopK(0.1 * (1 + round % 3)), wire.Sign(), wire.Dense()][client % 3]


def make_method(name: str, given: Words) -> Any:
    """Return a method by name, or one of `COMPOSITIONS`."""
    import tunefree as tf
    from tunefree import clients as c
    from tunefree import server as s

    if name in METHODS:
        if name == "auto" and "feddowgdua" in tf.methods.names():
            name = "feddowgdua"  # what auto was in 0.1.0
        return tf.methods.get(name, **UNIFORM | given)
    adam = s.FedDuAdam(eps_g=1e-3)
    pull = c.Sum(c.Scaffold(), c.Proximal(0.1))
    prox = s.Proximal(tf.penalties.L1(1e-2), 0.05, inner=s.FedExP())
    fixed = c.Constant(0.05)
    made: dict[str, Words] = {
        "fedduadam-scaffold-armijo": {
            "direction": c.Scaffold(), "step": c.Armijo(), "server": adam
        },
        "scaffold+prox-momentum-fedexp": {
            "direction": pull, "step": c.Momentum(0.05), "server": s.FedExP()
        },
        "scaffold-I-adam": {"direction": c.Scaffold("I"), "step": c.Adam(0.01)},
        "dog-fedduadagrad-averaged": {
            "step": c.DoG(), "server": s.FedDuAdagrad(), "output": s.Averaged()
        },
        "scaffold-live-dog-fedduadam": {
            "direction": c.Scaffold(), "step": c.DoG(live=True), "server": s.FedDuAdam(max_move=0.5)
        },
        "fedduadagrad-mime": {"direction": c.Mime(), "step": fixed, "server": s.FedDuAdagrad()},
        "adam-over-sign": {"step": fixed, "server": s.Adaptive(), "wire": "ef+sign"},
        "fedcanon-fedexp-l1": {"direction": c.Canon(0.05), "step": fixed, "server": prox},
        "wire-by-client": {"step": fixed, "wire": tf.wire.Choose(choose_wire)},
    }  # fmt: skip
    return tf.Method(**made[name])


def measure_margin(outputs: Any, targets: Any) -> float:
    """Return the mean difference between the largest and the smallest output."""
    return float((outputs.amax(1) - outputs.amin(1)).mean())


def make_arguments(case: Words) -> Words:
    """Return the flat arguments of `fit` as objects."""
    import torch

    import tunefree as tf

    own = {"kind", "method", "set", "data", "model", "needs", "stop", "lost", "seeds", "methods"}
    own |= {"grid", "halving", "by", "out", "secure", "privacy"}
    out = {k: v for k, v in case.items() if k not in own}
    if "dtype" in out:
        out["dtype"] = getattr(torch, out["dtype"])
    for name, kind in (("faults", "faults"), ("attack", "attacks"), ("aggregate", "robust")):
        if name in out:
            out[name] = get_parser(kind)(out[name])
    if "metrics" in out:
        out["metrics"] = {"margin": measure_margin}
    if "secure" in case:
        argument = "secure" if case["kind"] == "flower" else "aggregate"
        out[argument] = tf.privacy.Secure(**case["secure"])
    if "privacy" in case:
        given = dict(case["privacy"])
        scalars = {name: tuple(span) for name, span in given.pop("scalars").items()}
        bounds = tf.privacy.Bounds(vectors=given.pop("vectors"), scalars=scalars)
        if "secure" in given:
            given["aggregate"] = tf.privacy.Secure(**given.pop("secure"))
        size = {"clients": 8, "cohort": case["cohort"]}
        out["aggregate"] = tf.privacy.Privacy(bounds=bounds, **size, **given)
    if "start" in out:
        other = make_model("net", seed=5)
        out["start"] = other if out["start"] == "module" else call_fit(
            other, make_federation("tiny"), make_method("fedavg", {}), rounds=1, device="cpu",
            dtype=torch.float64,
        )  # fmt: skip
    return out


def press_ctrl_c(after: int) -> Callable[[Any], None]:
    """Return a callback that interrupts a run after this round."""

    def press(event: Any) -> None:
        if event.round == after:
            signal.raise_signal(signal.SIGINT)

    return press


def run_case(case: Words, folder: Path) -> Digests:
    """Run a case in an empty folder and return its digests."""
    import tunefree as tf

    kind, name = case["kind"], case.get("model", "net")
    if kind == "net":
        return {k: digest(v) for k, v in make_model(name, seed=3).state_dict().items()}
    if kind == "split":
        fed = tf.load("digits").split(get_parser("partition")(case["split"]), clients=8, seed=3)
        return {f"client {i}": digest(fed.client(i)) for i in range(fed.clients)}
    if kind == "command":
        return run_command(adapt_command(case["command"]), folder)
    method = make_method(case["method"], case.get("set", {}))
    fed, out = make_federation(case.get("data", "tiny")), folder / "run"
    flat = make_arguments(case)
    if kind in ("compare", "tune"):
        own: Words = {k: case[k] for k in ("seeds", "grid", "halving", "by") if k in case}
        own |= {"out": out} if case.get("out") else {}
        own |= {"fixed": UNIFORM} if kind == "tune" else {}
        flat.pop("seed")
        what = case["methods"] if kind == "compare" else "fedavg"
        found = call_study(kind, make_model(name), fed, what, own=own, flat=flat)
        groups = found.runs if kind == "compare" else dict(enumerate(p.runs for p in found.points))
        each = {f"{label}.{i}": r for label, g in groups.items() for i, r in enumerate(g)}
        runs = {f"{k}.{w}": d for k, run in each.items() for w, d in digest_run(run).items()}
        return runs | digest_numbers(found.table())
    flat |= {"out": out} if "stop" in case else {}

    def train(**more: Any) -> Any:
        if kind != "flower":
            return call_fit(make_model(name), fed, method, **flat, **more)
        given = {k: v for k, v in {**flat, **more}.items() if k != "engine"}
        return serve_in_process(
            lambda: make_model(name), fed, method, folder, case.get("lost"), given
        )

    if "stop" not in case:
        return digest_run(train())
    try:
        train(callbacks=[press_ctrl_c(case["stop"])])
    except get_interrupted():
        flat |= make_arguments(case)  # objects that remember nothing of the first part
        return digest_run(train()) | digest_folder(out)
    raise AssertionError("The run was not interrupted.")


def run_command(words: Sequence[str], folder: Path) -> Digests:
    """Run the command line and return digests of the files and numbers that it leaves."""
    command = [sys.executable, "-m", "tunefree", *words, "--out", str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()[-500:]}")
    numbers = digest_numbers(json.loads(done.stdout)["rows"]) if "--json" in words else {}
    return digest_folder(folder / "run") | numbers


def digest(value: Any) -> str:
    """Return the SHA-256 of tensors (dtype, shape, bytes) and plain data (floats exactly)."""
    return hashlib.sha256(encode(value)).hexdigest()


def encode(value: Any) -> bytes:
    """Return bytes that are equal for equal bits only."""
    if hasattr(value, "detach"):
        flat = value.detach().cpu().contiguous()
        return f"{flat.dtype}{tuple(flat.shape)}".encode() + bytes(flat.numpy().tobytes())
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return value.hex().encode()
    if isinstance(value, Mapping):
        return b"{" + b",".join(encode(k) + b":" + encode(v) for k, v in value.items()) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(encode(v) for v in value) + b"]"
    return repr(value).encode()


def digest_rows(rows: Sequence[Mapping[str, Any]], before: str = "") -> Digests:
    """Return a digest of each column; the clock's column and names of clients are left out."""
    names = sorted({name for row in rows for name in row if name not in UNCOMPARED})
    return {
        f"{before}{'ledger' if name.startswith(LEDGER) else 'history'} {name}": digest(
            [row.get(name, "missing") for row in rows]
        )
        for name in names
    }


def digest_run(run: Any) -> Digests:
    """Return digests of a run's models, history and summary."""
    summary = {k: v for k, v in run.summary.items() if k not in UNCOMPARED}
    models = {"x": digest(run.x), "output": digest(run.output)}
    return models | {"summary": digest(sorted(summary.items()))} | digest_rows(run.history)


def digest_folder(folder: Path) -> Digests:
    """Return digests of every model file and history in a folder."""
    out: Digests = {}
    for path in sorted(folder.rglob("model.safetensors")):
        out[f"file {path.relative_to(folder)}"] = digest(path.read_bytes())
    for path in sorted(folder.rglob("history.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        out |= digest_rows(rows, f"file {path.relative_to(folder)} ")
    if not out:
        raise FileNotFoundError(f"No model and no history in {folder}.")
    return out


def digest_numbers(rows: Sequence[Mapping[str, Any]]) -> Digests:
    """Return digests of a table's columns of numbers; text may be worded anew."""
    kept = [
        {k: v for k, v in row.items() if isinstance(v, int | float | None) and k != "seconds"}
        for row in rows
    ]
    return {k.replace("history", "table"): v for k, v in digest_rows(kept).items()}


def work() -> None:
    """Run the cases that standard input names; write one line of JSON for each."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed does not mix with the results
    import tunefree

    expected = Path(os.environ["PYTHONPATH"])
    if not Path(str(tunefree.__file__)).is_relative_to(expected):
        raise RuntimeError(f"tunefree was imported from {tunefree.__file__}, not from {expected}.")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, _raise_timeout)
    cases = list_cases()
    for name in json.loads(sys.stdin.read()):
        began = time.perf_counter()
        result: Words = {}
        missing = [m for m in cases[name].get("needs", []) if not importlib.util.find_spec(m)]
        signal.alarm(LIMIT)
        try:
            if missing:
                result["skipped"] = f"needs the package {', '.join(missing)}"
            else:
                with tempfile.TemporaryDirectory() as folder:
                    result["digests"] = run_case(cases[name], Path(folder))
        except BaseException as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        signal.alarm(0)
        line = {"name": name, "seconds": round(time.perf_counter() - began, 2), **result}
        print(json.dumps(line), file=out, flush=True)


def _raise_timeout(number: int, frame: object) -> None:
    raise TimeoutError(f"The case took more than {LIMIT} s.")


# --------------------------------------------------------------------------------------- Parent

# What decides digests beside the case: a change here makes those of the base stale.
FIXTURES: tuple[Callable[..., Any], ...] = (
    *(make_federation, make_model, choose_wire, make_method, make_arguments, run_case),
    *(run_command, encode, digest_rows, digest_run, digest_folder, digest_numbers),
)


def run_tree(source: Path, names: Sequence[str], python: str, jobs: int) -> Iterator[Words]:
    """Run cases with the package in `source`; yield their results as they come."""
    results: queue.Queue[Words | None] = queue.Queue()
    shares = [share for share in (list(names[k::jobs]) for k in range(jobs)) if share]
    for share in shares:
        threading.Thread(
            target=_run_share, args=(source, share, python, results), daemon=True
        ).start()
    left = len(shares)
    while left:
        result = results.get()
        left -= result is None
        if result is not None:
            yield result


def _run_share(
    source: Path, names: list[str], python: str, results: "queue.Queue[Words | None]"
) -> None:
    """Run cases in one process; start another one for the rest if a case ends it."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    while names:
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                [python, str(Path(__file__).resolve()), "--worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=environment, text=True,
            )  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(names))
            process.stdin.close()
            for line in process.stdout:
                result = json.loads(line)
                names.remove(result["name"])
                results.put(result)
            status = process.wait()
            if names:
                log.seek(0)
                last = (log.read().strip().splitlines() or [""])[-1]
                error = f"The process ended with status {status}. {last}"
                results.put({"name": names.pop(0), "seconds": 0.0, "error": error})
    results.put(None)


def unpack_base(commit: str) -> Path:
    """Write the source of a commit into the cache, once, and return its folder."""
    git = ["git", "-C", str(ROOT)]
    full = subprocess.run(
        [*git, "rev-parse", "--verify", f"{commit}^{{commit}}"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    folder = CACHE / full[:12]
    if not (folder / "src").exists():
        packed = subprocess.run([*git, "archive", full, "src"], capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(folder / "part", filter="data")
        (folder / "part" / "src").rename(folder / "src")
        (folder / "part").rmdir()
    return folder


def describe_interpreter(python: str) -> str:
    """Return a key for what decides bits beside the source: versions and the processor."""
    code = "import sys, numpy, torch; print(sys.version, numpy.__version__, torch.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else [platform.processor()]
    models = {line for line in lines if line.startswith("model name")}
    return digest([done.stdout, platform.machine(), sorted(models)])[:12]


def compare_results(base: Words, new: Words) -> str:
    """Return "same", "skipped: ..." or what differs."""
    for side, result in (("base", base), ("working tree", new)):
        if "error" in result:
            return f"FAILED in the {side}: {result['error']}"
    if "skipped" in base or "skipped" in new:
        return f"skipped: {base.get('skipped') or new.get('skipped')}"
    a, b = base["digests"], new["digests"]
    names = [k for k in {**a, **b} if a.get(k) != b.get(k)]
    return f"DIFFERENT: {', '.join(names)}" if names else "same"


def main(words: Sequence[str] | None = None) -> int:
    """Run the cases of both trees and compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default=BASE, help="commit to compare with")
    parser.add_argument("--only", default="*", help="cases: a name, or a pattern such as 'wire/*'")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--python", default=sys.executable, help="interpreter for both trees")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.worker:
        work()
        return 0
    cases = {k: v for k, v in list_cases().items() if fnmatch.fnmatch(k, given.only)}
    if given.list or not cases:
        print("\n".join(cases) or f"No case is called {given.only!r}.")
        return 0 if cases else 2
    began = time.perf_counter()
    folder = unpack_base(given.base)
    kept = folder / f"digests-{describe_interpreter(given.python)}.json"
    base: dict[str, Words] = json.loads(kept.read_text()) if kept.exists() else {}
    sources = [inspect.getsource(f) for f in FIXTURES]
    keys = {name: digest([case, sources, NETS]) for name, case in cases.items()}
    missing = [name for name, key in keys.items() if base.get(name, {}).get("case") != key]
    if missing:
        print(f"{len(missing)} cases of {given.base} are not in the cache; running them.")
    try:
        for result in run_tree(folder / "src", missing, given.python, given.jobs):
            base[result["name"]] = {**result, "case": keys[result["name"]]}
    finally:
        kept.write_text(json.dumps({k: v for k, v in base.items() if "digests" in v}, indent=1))
    between = time.perf_counter()
    verdicts = []
    for result in run_tree(ROOT / "src", list(cases), given.python, given.jobs):
        verdicts.append(compare_results(base[result["name"]], result))
        print(f"{result['name']:44} {verdicts[-1]}", flush=True)
    count = {w: sum(v.startswith(w) for v in verdicts) for w in ("same", "DIFF", "FAIL", "skip")}
    print(
        f"{len(verdicts)} cases against {given.base}: {count['same']} same, {count['DIFF']} "
        f"different, {count['FAIL']} failed, {count['skip']} skipped. {between - began:.0f} s for "
        f"the base ({len(missing)} cases), {time.perf_counter() - between:.0f} s for this tree."
    )
    return 1 if count["DIFF"] or count["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
