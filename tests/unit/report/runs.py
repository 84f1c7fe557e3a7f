"""Runs with made-up numbers, and run folders of them."""

import json

import torch

from tunefree import Run, __version__

HOSTILE = "</script><script>alert(1)</script><!--"


def row(t, **more):
    plain = {"train_loss": 2.0 / (t + 1), "bytes_up": 100, "bytes_down": 50, "seconds": 0.5}
    tested = {"test_loss": 1.5 / (t + 1), "test_accuracy": 1 - 0.5 / (t + 1), "gradients": 10}
    return {"round": t, **plain, "bytes_up.delta": 90, "bytes_up.q": 10, **tested, **more}


def settings(method="fedavg", seed=0, **more):
    picture = {"clients": [0, 1], "sizes": [3, 4 + seed], "labels": [[3, 0], [1, 3 + seed]]}
    data = {"name": "digits", "clients": 2, "digest": f"d{seed}", "picture": picture}
    own = {"name": method, "step": {"part": "Constant", "lr": 0.1}}
    model = {"name": "Mlp", "parameters": 12}
    asked = {"method": method, "seed": seed, "rounds": 3, "set": ["lr=0.1"]}
    fixed = {"tunefree": __version__, "torch": "2", "device": "cpu", "start": f"s{seed}"}
    rest = {"seed": seed, "rounds": 3, "cohort": 2, "command": asked}
    return {**fixed, "data": data, "model": model, "method": own, **rest, **more}


def run(method="fedavg", seed=0, rounds=3, *, status="finished", history=None, path=None, **more):
    rows = [row(t) for t in range(rounds)] if history is None else history
    nothing = torch.empty(0)
    return Run(nothing, nothing, rows, settings(method, seed, **more), status, path)


def folder(path, made, *, checkpoint=True):
    """Write a run as `fit` does, without its model."""
    path.mkdir(parents=True)
    (path / "settings.json").write_text(json.dumps(made.settings))
    (path / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in made.history))
    if checkpoint:
        entry = {"file": "x", "rounds": 3, "sha256": "", "facts": {"status": made.status}}
        (path / "checkpoint.json").write_text(json.dumps([entry]))
    return path
