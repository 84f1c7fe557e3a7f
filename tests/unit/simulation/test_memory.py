import errno
import gc
import os
import shutil
import threading
from collections import namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefree.core.errors import ArgumentError, TunefreeError
from tunefree.simulation import memory as module
from tunefree.simulation.memory import ClientMemory

FIRST = {"c": torch.tensor([1.0, 2.0]), "n": torch.tensor(7.0)}
ROW = 12  # bytes
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
HOMES = [
    ("cpu", "host"),
    ("cpu", "file"),
    *(pytest.param("cuda", place, marks=CUDA) for place in ("device", "host", "file")),
]


def ids(*values):
    return torch.tensor(values)


def rows(*values):
    return {"c": torch.tensor([[v, v] for v in values]), "n": torch.tensor(values)}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Temporary folders go here."""
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_unseen_clients_have_the_first_memory():
    memory = ClientMemory(FIRST, clients=5)
    got = memory.gather(ids(3, 0))
    assert got["c"].tolist() == [[1.0, 2.0]] * 2
    assert got["n"].tolist() == [7.0, 7.0]
    got["c"] += 1  # what was handed out is the caller's
    assert memory.gather(ids(3))["c"].tolist() == [[1.0, 2.0]]
    assert FIRST["c"].tolist() == [1.0, 2.0]


def test_rows_come_back_in_the_order_asked_for():
    memory = ClientMemory(FIRST, clients=5)
    memory.scatter(ids(4, 1), rows(40.0, 10.0))
    assert memory.gather(ids(1, 2, 4))["n"].tolist() == [10.0, 7.0, 40.0]
    memory.scatter(ids(0, 1, 2, 3), rows(0.0, 11.0, 20.0, 30.0))
    assert memory.gather(ids(0, 1, 2, 3, 4))["n"].tolist() == [0.0, 11.0, 20.0, 30.0, 40.0]
    assert memory.gather(ids(4))["c"].tolist() == [[40.0, 40.0]]


@pytest.mark.parametrize("place", ["host", "file"])
def test_keeps_a_copy(place, here):
    memory, own = ClientMemory(FIRST, clients=2, place=place), rows(5.0)
    memory.scatter(ids(1), own)
    own["c"] += 1
    got = memory.gather(ids(1))["c"]
    got += 1
    assert memory.gather(ids(1))["c"].tolist() == [[5.0, 5.0]]


def test_only_clients_ever_seen_are_saved_and_restored():
    memory = ClientMemory(FIRST, clients=1000)
    memory.scatter(ids(999, 3, 500), rows(1.0, 2.0, 3.0))
    saved = memory.tensors()
    assert saved["memory_ids"].tolist() == [999, 3, 500]
    assert saved["memory.c"].shape == (3, 2)
    other = ClientMemory(FIRST, clients=1000)
    other.scatter(ids(0), rows(9.0))  # forgotten
    other.restore(saved)
    assert other.gather(ids(0, 3, 500, 999))["n"].tolist() == [7.0, 2.0, 3.0, 1.0]
    other.scatter(ids(3), rows(8.0))
    assert saved["memory.n"].tolist() == [1.0, 2.0, 3.0]
    for name, value in other.tensors().items():
        assert value.dtype == memory.tensors()[name].dtype


@pytest.mark.parametrize("place", ["auto", "file"])
def test_methods_without_memory_keep_none(place, here):
    memory = ClientMemory({}, clients=3, most=2, place=place)
    memory.prefetch(ids(0))
    memory.scatter(ids(0), {})
    assert memory.gather(ids(0, 1)) == {}
    assert memory.tensors() == {}
    memory.restore({})
    assert memory.bytes == 0
    assert not list(here.iterdir())


def test_a_name_left_out_keeps_what_it_was():
    memory = ClientMemory(FIRST, clients=3)
    memory.scatter(ids(1), rows(5.0))
    memory.scatter(ids(2, 1), {"n": torch.tensor([6.0, 8.0])})
    assert memory.gather(ids(1, 2))["c"].tolist() == [[5.0, 5.0], [1.0, 2.0]]
    assert memory.gather(ids(1, 2))["n"].tolist() == [8.0, 6.0]


N = 7
KINDS = {
    "c": torch.tensor([1.0, -2.0, 0.5]),
    "n": torch.tensor(7.0, dtype=torch.float64),
    "h": torch.tensor([[3.0, 4.0]], dtype=torch.bfloat16),
    "k": torch.tensor([1 << 60]),
    "b": torch.tensor(True),
    "e": torch.zeros(0),
}
NONE = st.none()
ACT = st.one_of(
    st.tuples(st.just("scatter"), st.lists(st.integers(0, N - 1), unique=True)),
    st.tuples(st.just("scatter what comes"), NONE),
    st.tuples(st.sampled_from(["prefetch", "arrive"]), st.lists(st.integers(0, N - 1), max_size=9)),
    st.tuples(st.just("gather"), st.lists(st.integers(0, N - 1), max_size=9)),
    st.tuples(st.just("gather what comes"), NONE),
    st.tuples(st.sampled_from(["save", "restore", "restore own"]), NONE),
)


def full(value, m, device):
    """Return rows of every kind, all different."""
    at = value + torch.arange(m)
    out = {
        n: at.reshape(m, *[1] * v.ndim).expand(m, *v.shape).to(v.dtype) for n, v in KINDS.items()
    }
    return {n: v.to(device) for n, v in out.items()}


@pytest.mark.parametrize(("device", "place"), HOMES)
@settings(deadline=None, max_examples=60)
@given(acts=st.lists(ACT, min_size=4, max_size=20), most=st.one_of(st.none(), st.integers(1, N)))
def test_behaves_as_a_dict(device, place, acts, most):
    first = {n: v.to(device) for n, v in KINDS.items()}
    memory = ClientMemory(first, N, most=most, place=place)
    assert memory.place == place
    model, coming, saved = {}, [], ({}, memory.tensors())

    def check(asked):
        got = memory.gather(torch.tensor(asked, dtype=torch.int64))
        for name, rest in KINDS.items():
            want = [model[i][name] if i in model else rest for i in asked]
            want = torch.stack(want) if want else rest.new_empty((0, *rest.shape))
            assert got[name].device.type == device
            assert got[name].dtype == rest.dtype
            assert torch.equal(got[name].cpu(), want)

    for turn, (act, asked) in enumerate(acts):
        if act.startswith("scatter"):
            asked = sorted(set(coming)) if asked is None else asked
            own = full(100 * turn, len(asked), device)
            memory.scatter(torch.tensor(asked, dtype=torch.int64), own)
            for j, i in enumerate(asked):
                model[i] = {n: v[j].cpu() for n, v in own.items()}
        elif act in ("prefetch", "arrive"):
            memory.prefetch(torch.tensor(asked, dtype=torch.int64))
            coming = asked
            if act == "arrive" and memory._prefetched is not None:  # read before what follows
                memory._prefetched[1].result(60)
        elif act.startswith("gather"):
            check(coming if asked is None else asked)
        elif act == "save":
            saved = dict(model), {n: v.clone() for n, v in memory.tensors().items()}
            assert sorted(saved[1]["memory_ids"].tolist()) == sorted(model)
        elif act == "restore":
            memory.restore(saved[1])
            model = dict(saved[0])
        else:
            memory.restore(memory.tensors())
    check(coming)
    check(list(range(N)))


class Slow:
    """Holds the reading of rows back until told; counts it."""

    def __init__(self):
        self.go, self.times, self.read = threading.Event(), 0, module._collect

    def __call__(self, *args):
        self.times += 1
        assert threading.current_thread() is threading.main_thread() or self.go.wait(10)
        return self.read(*args)


@pytest.fixture
def slow(monkeypatch):
    found = Slow()
    monkeypatch.setattr(module, "_collect", found)
    yield found
    found.go.set()


def test_what_was_prefetched_is_read_once(slow, here):
    memory = ClientMemory(FIRST, 9, place="file")
    memory.scatter(ids(1, 2, 3), rows(1.0, 2.0, 3.0))
    asked = ids(3, 8, 1)
    memory.prefetch(asked)
    memory.prefetch(asked)  # is on its way
    memory.scatter(ids(2, 4), rows(20.0, 40.0))  # others
    assert memory.gather(ids(2, 4))["n"].tolist() == [20.0, 40.0]
    slow.go.set()
    assert memory.gather(ids(3, 8, 1))["n"].tolist() == [3.0, 7.0, 1.0]
    assert slow.times == 2
    assert memory.gather(ids(3, 8, 1))["n"].tolist() == [3.0, 7.0, 1.0]
    assert slow.times == 3  # handed out once


@pytest.mark.parametrize("changed", [1, 8])
def test_what_changed_since_is_read_again(slow, here, changed):
    """A seen client's row, or that of one who was new."""
    memory = ClientMemory(FIRST, 9, place="file")
    memory.scatter(ids(1, 3), rows(1.0, 3.0))
    memory.prefetch(ids(3, 8, 1))
    memory.scatter(ids(5, changed), rows(5.0, 50.0))
    want = {3: 3.0, 8: 7.0, 1: 1.0} | {changed: 50.0}
    assert memory.gather(ids(3, 8, 1))["n"].tolist() == list(want.values())
    slow.go.set()
    assert memory.gather(ids(3, 8, 1))["n"].tolist() == list(want.values())


def test_ids_of_a_prefetch_may_be_changed_by_their_owner(here):
    memory, asked = ClientMemory(FIRST, 9, place="file"), ids(1, 2)
    memory.scatter(ids(1, 2, 3), rows(1.0, 2.0, 3.0))
    memory.prefetch(asked)
    asked += 1
    assert memory.gather(asked)["n"].tolist() == [2.0, 3.0]


def test_a_view_of_the_rows_survives_a_restore(here):
    memory = ClientMemory(FIRST, 9, place="file")
    memory.scatter(ids(1), rows(1.0))
    before = memory.tensors()
    memory.restore({"memory_ids": ids(2), "memory.c": torch.ones(1, 2), "memory.n": torch.ones(1)})
    assert before["memory_ids"].tolist() == [1]
    assert before["memory.c"].tolist() == [[1.0, 1.0]]


def test_a_temporary_folder_is_removed(here):
    memory = ClientMemory(FIRST, 9, place="file")
    memory.prefetch(ids(1))  # its thread must not keep the memory
    (folder,) = here.iterdir()
    assert len(list(folder.iterdir())) == len(FIRST)
    del memory
    gc.collect()
    assert not folder.exists()


MANY, WIDE = 1_000_000, {"c": torch.zeros(100)}


def test_rows_are_held_for_clients_seen_alone():
    memory = ClientMemory(WIDE, MANY)
    for i in range(5):
        memory.scatter(ids(i * 99_999), {"c": torch.ones(1, 100)})
    assert memory.tensors()["memory.c"].shape == (5, 100)
    assert memory.bytes == MANY * 400


def test_room_ends_at_the_most_and_grows_beyond(here):
    for place in ("host", "file"):
        memory = ClientMemory(FIRST, 100, most=5, place=place)
        assert memory.bytes == 5 * ROW
        for seen, room in ((3, 5), (5, 5), (6, 10), (11, 20)):
            memory.scatter(torch.arange(seen), rows(*map(float, range(seen))))
            store = memory.tensors()["memory.n"].untyped_storage()
            assert store.nbytes() == 4 * room
        assert memory.gather(torch.arange(12))["n"].tolist() == [*map(float, range(11)), 7.0]


def test_rows_that_may_come_are_not_taken_before_they_do():
    """Room for a terabyte, or none: where the system refuses, the store doubles as it fills."""
    memory = ClientMemory({"n": torch.zeros(1 << 20)}, 1 << 18, most=1 << 18, place="host")
    memory.scatter(torch.tensor([7]), {"n": torch.ones(1, 1 << 20)})
    memory.scatter(torch.tensor([9, 7]), {"n": torch.full((2, 1 << 20), 2.0)})
    assert memory.gather(torch.tensor([9, 8, 7]))["n"].mean(1).tolist() == [2, 0, 2]


def test_a_file_is_sparse(here):
    memory = ClientMemory(WIDE, MANY, place="file")
    memory.scatter(ids(999_999, 0), {"c": torch.ones(2, 100)})
    (file,) = here.glob("*/*")
    assert file.stat().st_size == MANY * 400
    assert file.stat().st_blocks * 512 <= 1 << 16


@pytest.mark.parametrize(
    ("ram", "processes", "place"), [(240, 1, "host"), (238, 1, "file"), (240, 2, "file")]
)
def test_auto_takes_half_of_what_is_free_at_most(ram, processes, place, monkeypatch, here):
    monkeypatch.setattr(module, "measure_free_ram", lambda: ram)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    memory = ClientMemory(FIRST, clients=1000, most=10)
    assert memory.bytes == 120
    assert memory.place == place
    assert ClientMemory(FIRST, clients=1000).place == "file"  # all of them may take part
    assert ClientMemory(FIRST, clients=10, most=10**9).place == place


@pytest.mark.parametrize(
    ("device", "ram", "place"), [(240, 0, "device"), (238, 240, "host"), (238, 238, "file")]
)
def test_auto_prefers_the_device(device, ram, place, monkeypatch):
    monkeypatch.setattr(module, "measure_free_ram", lambda: ram)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda on: (device, 10**12))
    assert module._choose(torch.device("cuda"), 120) == place


Usage = namedtuple("Usage", "total used free")


def test_a_disk_that_is_too_small_is_refused(monkeypatch, here):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, 11_900_000_000))
    with pytest.raises(ArgumentError) as caught:
        ClientMemory({"c": torch.zeros(3000)}, 10**7, most=10**6, place="file")
    assert str(caught.value) == (
        "The memory of 1,000,000 clients needs 12.0 GB on disk, but "
        f"{str(here)!r} has 11.9 GB free. Free some space, name a folder on a larger disk in "
        "TMPDIR, or take fewer rounds, a smaller cohort, or a method whose clients keep less."
    )
    assert not list(here.iterdir())


def test_a_disk_that_fills_up_is_said_and_changes_nothing(monkeypatch, here):
    memory = ClientMemory(FIRST, 9, place="file")
    memory.scatter(ids(1), rows(1.0))

    def refuse(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        memory.scatter(ids(1), rows(2.0))  # has its place
        with pytest.raises(TunefreeError, match=r"No space left on device\. Free some space"):
            memory.scatter(ids(1, 2), rows(3.0, 4.0))
    assert memory.gather(ids(1, 2))["n"].tolist() == [2.0, 7.0]
    memory.scatter(ids(2), rows(5.0))
    assert memory.gather(ids(1, 2))["n"].tolist() == [2.0, 5.0]


def test_bad_arguments(here, monkeypatch):
    with pytest.raises(ArgumentError, match=r"Unknown place 'disc'\."):
        ClientMemory(FIRST, 9, place="disc")
    with pytest.raises(ArgumentError, match=r"Memory\(most=\.\.\.\) must be an int >= 1"):
        ClientMemory(FIRST, 9, most=0)
    (here / "file").touch()
    monkeypatch.setattr(module.tempfile, "tempdir", str(here / "file"))
    with pytest.raises(TunefreeError, match="cannot be kept in"):
        ClientMemory(FIRST, 9, place="file")


@CUDA
@pytest.mark.parametrize("place", ["host", "file"])
def test_copies_keep_their_order_on_the_device(place):
    """Rows are the device's own, while it is still busy with them."""
    first = {"c": torch.zeros(100_000, device="cuda")}
    memory, plain = ClientMemory(first, 40, place=place), ClientMemory(first, 40, place="device")
    heavy = torch.randn(4096, 4096, device="cuda")
    for t in range(30):
        part, after = (torch.randperm(40)[:8] for _ in range(2))
        memory.prefetch(part)
        got, want = memory.gather(part)["c"], plain.gather(part)["c"]
        memory.prefetch(after)
        for _ in range(5):
            heavy = (heavy @ heavy).tanh()
        new = got + heavy.flatten()[:100_000] + t
        memory.scatter(part, {"c": new})
        plain.scatter(part, {"c": new})
        assert torch.equal(got, want)
        assert torch.equal(memory.gather(after)["c"], plain.gather(after)["c"])


@CUDA
def test_auto_asks_the_device():
    free = torch.cuda.mem_get_info()[0]
    first = {"c": torch.zeros(1 << 20, device="cuda")}  # 4 MiB
    fits = free // (16 << 20)
    assert ClientMemory(first, 10**6, most=fits).place == "device"
    assert ClientMemory(first, 10**6, most=4 * fits).place != "device"
