"""Every sink: how it is made in a folder, and how another program reads what it wrote.

A reader returns {round: {name: number}} of the newest run, and fails on a round that is there
twice.
"""

import csv
import json
import struct
from pathlib import Path

import pytest

import tunefree as tf


def once(pairs):
    out = {}
    for step, row in pairs:
        assert step not in out, f"round {step} is there twice"
        out[step] = row
    return out


def read_csv(folder):
    with (folder / "history.csv").open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    return once((int(row.pop("round")), row) for row in rows)


def read_parquet(folder):
    table = pytest.importorskip("pyarrow.parquet").read_table(folder / "history.parquet")
    rows = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
    return once((row.pop("round"), row) for row in rows)


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard")).Reload()
    out = {}
    for name in found.Tags()["scalars"]:
        values = found.Scalars(name)
        assert len(values) == len({v.step for v in values}), f"{name} has a round twice"
        for v in values:
            out.setdefault(v.step, {})[name] = v.value
    return out


def mlflow_runs(folder):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    home = client.get_experiment_by_name("tunefree").experiment_id
    return client, client.search_runs([home], order_by=["attributes.start_time DESC"])


def read_mlflow(folder):
    client, runs = mlflow_runs(folder)
    out = {}
    for name in runs[0].data.metrics:
        values = client.get_metric_history(runs[0].info.run_id, name)
        assert len(values) == len({v.step for v in values}), f"{name} has a round twice"
        for v in values:
            out.setdefault(v.step, {})[name] = v.value
    return out


def wandb_runs(folder):
    __import__("wandb").teardown()  # wait until its own process has written everything
    return sorted((folder / "wandb").glob("offline-run-*"), key=lambda p: p.name.split("-")[-1])


def wandb_records(path):
    """The records of a .wandb file: a log in blocks of 32 KiB of parts with length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(part)
            part = b""
            yield record


def read_wandb(folder):
    newest = wandb_runs(folder)[-1]
    (path,) = newest.glob("run-*.wandb")
    rows = [
        {
            i.nested_key[0] if i.nested_key else i.key: json.loads(i.value_json)
            for i in r.history.item
        }
        for r in wandb_records(path)
        if r.WhichOneof("record_type") == "history"
    ]
    kept = [{k: v for k, v in row.items() if k == "_step" or k[0] != "_"} for row in rows]
    return once((row.pop("_step"), row) for row in kept)


NEEDS = {
    "csv": None,
    "mlflow": "mlflow",
    "parquet": "pyarrow",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
READERS = {
    "csv": read_csv,
    "mlflow": read_mlflow,
    "parquet": read_parquet,
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
}


def make(kind, folder):
    """Return the sink, or skip where its package is not installed."""
    if NEEDS[kind]:
        pytest.importorskip(NEEDS[kind], reason=f"{NEEDS[kind]} is not installed")
    (sink,) = tf.sinks.make_sinks(Path(folder), [kind])
    return sink
