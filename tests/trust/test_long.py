"""Very many rounds: nothing grows with them but the history, by a few bytes a round."""

import gc
import json
import os
import statistics
import sys
import time
import tracemalloc
from array import array

import pytest
import torch
from torch import nn

import tunefree as tf
from tunefree.report import collect, page, watch
from tunefree.training.history import History

MB = 1 << 20


class Meter:
    """A callback that looks at this process now and then."""

    def __init__(self, rounds, looks):
        self.every, self.seconds = max(1, rounds // looks), array("d")
        self._since = time.process_time()  # what others do on this machine must not count
        self.rss, self.files, self.blocks, self.traced = [], [], [], []

    def __call__(self, event):
        now = time.process_time()
        self.seconds.append(now - self._since)
        if (event.round + 1) % self.every == 0:
            gc.collect()
            with open("/proc/self/statm") as file:
                self.rss.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
            self.files.append(len(os.listdir("/proc/self/fd")))
            self.blocks.append(sys.getallocatedblocks())
            self.traced.append(tracemalloc.get_traced_memory()[0])
        self._since = time.process_time()


def linear(rounds, out, meter, every=500):
    """The linear net on the digits: five clients, one step a round."""
    fed = tf.data.load("digits").split(tf.data.Iid(), 5)
    torch.manual_seed(0)
    settings = {"rounds": rounds, "steps": 1, "batch": 10, "device": "cpu", "eval_every": every}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    settings |= {"callbacks": [meter, tf.sinks.Csv(out / "history.csv")], "out": out}
    settings["checkpoint_every"] = every  # the first one imports what it needs
    return tf.fit(model, fed, "fedavg", **settings)


def slope(values, rounds):
    """Return the growth of the second half, a round."""
    half = values[len(values) // 2 :]
    return (half[-1] - half[0]) / (rounds * (len(half) - 1) / len(values))


def deciles(seconds):
    tenth = len(seconds) // 10
    first, last = seconds[tenth : 2 * tenth], seconds[-tenth:]  # the first has the warm-up
    return statistics.median(first), statistics.median(last)


def usable(out, rounds):
    """Look at a run's folder as people do; return how long it took, and the size of the page."""
    took, clock = {}, time.perf_counter
    began = clock()
    run = tf.Run.load(out)
    took["load"], began = clock() - began, clock()
    assert [row["round"] for row in run.history] == list(range(rounds))
    target = page.write(collect.load_groups([out]), out / "page.html")
    took["page"] = clock() - began
    monitor = watch.RunMonitor([out])
    monitor.payload()
    began = clock()
    with (out / "history.jsonl").open("a") as file:
        file.write(json.dumps({"round": rounds, "train_loss": 0.5}) + "\n")
    groups = monitor.payload()["groups"]
    took["look again"] = clock() - began
    assert groups[0]["curves"]["train_loss"]["at"][-1] == rounds + 1
    return took, target.stat().st_size


def measured(rounds, out, looks, every=500):
    meter = Meter(rounds, looks)
    linear(rounds, out, meter, every)
    took, size = usable(out, rounds)
    first, last = deciles(meter.seconds)
    return meter, took, size, first, last


def test_eight_hundred_rounds(tmp_path):
    meter, took, size, first, last = measured(800, tmp_path, 4, every=200)
    assert slope(meter.blocks, 800) < 1  # a dictionary a round would be a dozen
    assert meter.files[-1] <= meter.files[len(meter.files) // 2]
    assert last < 3 * first
    assert size < 1.5 * MB
    assert max(took.values()) < 20


@pytest.mark.trust
def test_what_grows_is_the_history_alone(tmp_path):
    tracemalloc.start()
    try:
        meter = Meter(5000, 10)
        linear(5000, tmp_path, meter)
    finally:
        tracemalloc.stop()
    print("traced bytes a round:", slope(meter.traced, 5000))
    assert slope(meter.traced, 5000) < 400  # the rows twice, with the sink's, and the meter's own


@pytest.mark.trust
def test_a_hundred_thousand_rounds(tmp_path):
    rounds = 100_000
    meter, took, size, first, last = measured(rounds, tmp_path, 20)
    grown = slope(meter.rss, rounds)
    found = {
        "ms a round, second tenth": 1e3 * first,
        "ms a round, last tenth": 1e3 * last,
        "RSS in MB": [round(v / MB, 1) for v in meter.rss],
        "growth in bytes a round": grown,
        "growth in objects a round": slope(meter.blocks, rounds),
        "open files": meter.files,
        "history in MB": (tmp_path / "history.jsonl").stat().st_size / MB,
        "page in MB": size / MB,
        **{f"seconds to {k}": v for k, v in took.items()},
    }
    print(json.dumps(found, indent=2))
    assert grown < 600
    assert len(set(meter.files)) == 1
    assert last < 1.5 * first
    assert size < 1.5 * MB
    assert took["load"] < 20
    assert took["page"] < 20
    assert took["look again"] < 5


def test_rows_come_out_as_they_went_in():
    rows = [
        {"round": 0, "loss": 0.5, "said": None},
        {"round": 1, "loss": float("inf"), "bytes": 1 << 70, "fine": True},
        {"loss": 1, "round": 2},
        {},
        {"round": 3, "loss": -0.0, "name": "x"},
    ]
    assert list(History(rows)) == rows
    assert [list(map(type, r.values())) for r in History(rows)] == [
        list(map(type, r.values())) for r in rows
    ]
    assert len(History(rows)) == 5
    many = History({"round": i, "loss": 0.5 * i, "bytes": 7} for i in range(1000))
    held = len(many._ints) * 8 + len(many._floats) * 8 + len(many._rows) * 8
    assert held == 32 * 1000
    assert not many._objects
