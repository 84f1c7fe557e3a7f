"""Callbacks that are told of begin and end."""

import pytest

from tunefree.training.callbacks import Event, begin_callbacks
from tunefree.training.run import Run

RUN = Run(None, None, [], {}, "finished")
EVENT = Event(0, None, None, {"round": 0})


class Note:
    def __init__(self, seen, name):
        self.seen, self.name = seen, name

    def begin(self, settings, history):
        self.seen.append((self.name, "begin", settings, history))

    def __call__(self, event):
        self.seen.append((self.name, event))

    def end(self, run):
        self.seen.append((self.name, "end", run))


def test_everyone_is_told_in_order():
    seen = []
    with begin_callbacks([Note(seen, "a"), seen.append], {"rounds": 1}, [{"round": 0}]) as watch:
        watch.call(EVENT)
        watch.run = RUN
    assert seen == [
        ("a", "begin", {"rounds": 1}, [{"round": 0}]),
        ("a", EVENT),
        EVENT,
        ("a", "end", RUN),
    ]


def test_an_error_ends_those_who_were_begun():
    seen = []

    class Falls(Note):
        def begin(self, settings, history):
            raise RuntimeError("fell")

    callbacks = [Note(seen, "a"), Falls(seen, "b"), Note(seen, "c")]
    with pytest.raises(RuntimeError, match="fell"), begin_callbacks(callbacks, {}, []):
        pass
    assert seen == [("a", "begin", {}, []), ("a", "end", None)]


def test_an_end_that_fails_does_not_keep_others_from_theirs():
    seen = []

    class Falls(Note):
        def end(self, run):
            raise RuntimeError("fell")

    callbacks = [Note(seen, "a"), Falls(seen, "b")]
    with pytest.raises(RuntimeError, match="fell"), begin_callbacks(callbacks, {}, []) as watch:
        watch.run = RUN
    assert seen[-1] == ("a", "end", RUN)


def test_the_history_is_the_callbacks_own():
    history = [{"round": 0}]

    class Clears(Note):
        def begin(self, settings, history):
            history.clear()

    with begin_callbacks([Clears([], "a")], {}, history):
        pass
    assert history == [{"round": 0}]
