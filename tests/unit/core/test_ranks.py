"""Which device and backend a process takes under torchrun."""

import pytest
import torch

from tunefree.core import ranks


@pytest.mark.parametrize(
    ("gpus", "local", "size", "device", "backend"),
    [(0, 1, 2, None, "gloo"), (2, 1, 2, 1, "nccl"), (1, 1, 2, 0, "gloo"), (4, 3, 8, 3, "gloo")],
)
def test_processes_share_gpus_where_there_are_too_few(
    gpus, local, size, device, backend, monkeypatch
):
    taken, started = [], []
    for name, value in (("WORLD_SIZE", size), ("LOCAL_WORLD_SIZE", size), ("LOCAL_RANK", local)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(ranks.dist, "init_process_group", started.append)
    monkeypatch.setattr(ranks.dist, "get_rank", lambda: local)
    monkeypatch.setattr(ranks.atexit, "register", lambda call: None)
    found = ranks.init_ranks()
    assert (found.rank, found.size) == (local, size)
    assert taken == ([] if device is None else [device])
    assert started == [backend]
