import torch

from tunefree.engines.memory import Memory

FIRST = {"c": torch.tensor([1.0, 2.0]), "n": torch.tensor(7.0)}


def ids(*values):
    return torch.tensor(values)


def rows(*values):
    return {"c": torch.tensor([[v, v] for v in values]), "n": torch.tensor(values)}


def test_unseen_clients_have_the_first_memory():
    memory = Memory(FIRST, clients=5)
    got = memory.gather(ids(3, 0))
    assert got["c"].tolist() == [[1.0, 2.0]] * 2
    assert got["n"].tolist() == [7.0, 7.0]
    got["c"] += 1  # what was handed out is the caller's
    assert memory.gather(ids(3))["c"].tolist() == [[1.0, 2.0]]
    assert FIRST["c"].tolist() == [1.0, 2.0]


def test_rows_come_back_in_the_order_asked_for():
    memory = Memory(FIRST, clients=5)
    memory.scatter(ids(4, 1), rows(40.0, 10.0))
    assert memory.gather(ids(1, 2, 4))["n"].tolist() == [10.0, 7.0, 40.0]
    memory.scatter(ids(0, 1, 2, 3), rows(0.0, 11.0, 20.0, 30.0))
    assert memory.gather(ids(0, 1, 2, 3, 4))["n"].tolist() == [0.0, 11.0, 20.0, 30.0, 40.0]
    assert memory.gather(ids(4))["c"].tolist() == [[40.0, 40.0]]


def test_keeps_a_copy():
    memory, own = Memory(FIRST, clients=2), rows(5.0)
    memory.scatter(ids(1), own)
    own["c"] += 1
    assert memory.gather(ids(1))["c"].tolist() == [[5.0, 5.0]]


def test_only_clients_ever_seen_are_saved_and_restored():
    memory = Memory(FIRST, clients=1000)
    memory.scatter(ids(999, 3, 500), rows(1.0, 2.0, 3.0))
    saved = memory.tensors()
    assert saved["memory_ids"].tolist() == [999, 3, 500]
    assert saved["memory.c"].shape == (3, 2)
    other = Memory(FIRST, clients=1000)
    other.scatter(ids(0), rows(9.0))  # forgotten
    other.restore(saved)
    assert other.gather(ids(0, 3, 500, 999))["n"].tolist() == [7.0, 2.0, 3.0, 1.0]
    other.scatter(ids(3), rows(8.0))
    assert saved["memory.n"].tolist() == [1.0, 2.0, 3.0]
    for name, value in other.tensors().items():
        assert value.dtype == memory.tensors()[name].dtype


def test_methods_without_memory_keep_none():
    memory = Memory({}, clients=3)
    memory.scatter(ids(0), {})
    assert memory.gather(ids(0, 1)) == {}
    assert memory.tensors() == {}
    memory.restore({})
