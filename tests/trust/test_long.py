"""Very many rounds: nothing grows with them but the history, by a few bytes a round."""

import gc
import json
import os
import statistics
import sys
import tracemalloc
from array import array

import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import count_calls
from tunefree.report import collect, page, watch
from tunefree.training.history import History

MB = 1 << 20


class Meter:
    """A callback that looks at this process now and then, and counts the calls of some rounds."""

    def __init__(self, rounds, looks):
        self.every, self.sampled = max(1, rounds // looks), max(1, rounds // 400)
        self.rss, self.files, self.blocks, self.traced = [], [], [], []
        self.calls = array("q")  # of the rounds that are counted
        self._count, self._counting = 0, False

    def __call__(self, event):
        sys.setprofile(None)
        if self._counting:
            self.calls.append(self._count)
        done = event.round + 1
        if done % self.every == 0:
            gc.collect()
            with open("/proc/self/statm") as file:
                self.rss.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
            self.files.append(len(os.listdir("/proc/self/fd")))
            self.blocks.append(sys.getallocatedblocks())
            self.traced.append(tracemalloc.get_traced_memory()[0])
        self._count, self._counting = 0, done % self.sampled == 0
        if self._counting:
            sys.setprofile(self._note)

    def _note(self, frame, event, arg):
        self._count += event in ("call", "c_call")

    def end(self, run):
        sys.setprofile(None)


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


def tenths(calls):
    """Return the median number of calls of a round in the second tenth and in the last."""
    tenth = len(calls) // 10
    first, last = calls[tenth : 2 * tenth], calls[-tenth:]  # the first has the warm-up
    return statistics.median(first), statistics.median(last)


def usable(out, rounds):
    """Read a run's folder as people do; return the calls that it took, and the page's size."""
    calls, found = {}, {}
    calls["load"] = count_calls(lambda: found.update(run=tf.Run.load(out)))
    assert [row["round"] for row in found["run"].history] == list(range(rounds))
    target = out / "page.html"
    calls["page"] = count_calls(lambda: page.write(collect.load_groups([out]), target))
    monitor = watch.RunMonitor([out])
    monitor.payload()
    with (out / "history.jsonl").open("a") as file:
        file.write(json.dumps({"round": rounds, "train_loss": 0.5}) + "\n")
    parsed, parse = [], collect.parse_history
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "parse_history", lambda lines: parsed.extend(lines) or parse(lines))
        groups = monitor.payload()["groups"]
    assert len(parsed) == 1  # what was read before is not read again
    assert groups[0]["curves"]["train_loss"]["at"][-1] == rounds + 1
    return calls, target.stat().st_size


def measured(rounds, out, looks, every=500):
    meter = Meter(rounds, looks)
    linear(rounds, out, meter, every)
    calls, size = usable(out, rounds)
    first, last = tenths(meter.calls)
    return meter, calls, size, first, last


def test_eight_hundred_rounds(tmp_path):
    meter, calls, size, first, last = measured(800, tmp_path, 4, every=200)
    print(first, last, calls)
    assert slope(meter.blocks, 800) < 1  # a dictionary a round would be a dozen
    assert meter.files[-1] <= meter.files[len(meter.files) // 2]
    assert last <= 1.05 * first
    assert size < 1.5 * MB
    assert max(calls.values()) < 300 * 800


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
    meter, calls, size, first, last = measured(rounds, tmp_path, 20)
    grown = slope(meter.rss, rounds)
    found = {
        "calls a round, second tenth": first,
        "calls a round, last tenth": last,
        "RSS in MB": [round(v / MB, 1) for v in meter.rss],
        "growth in bytes a round": grown,
        "growth in objects a round": slope(meter.blocks, rounds),
        "open files": meter.files,
        "history in MB": (tmp_path / "history.jsonl").stat().st_size / MB,
        "page in MB": size / MB,
        **{f"calls a round to {k}": v / rounds for k, v in calls.items()},
    }
    print(json.dumps(found, indent=2))
    assert grown < 600
    assert len(set(meter.files)) == 1
    assert last <= 1.05 * first
    assert size < 1.5 * MB
    assert max(calls.values()) < 300 * rounds


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
