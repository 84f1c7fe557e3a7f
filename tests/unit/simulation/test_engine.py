"""How many clients are trained at once on a GPU, as far as that can be told without one."""

import pytest
import torch

from tunefree.models import Problem
from tunefree.simulation import engine


@pytest.fixture
def fit(monkeypatch):
    """Return the chunk size of 50 clients of 16 bytes each, 10,000 bytes being free."""
    monkeypatch.setattr(engine, "_measure_free", lambda device: 10_000)
    problem = Problem(torch.nn.Linear(3, 1), "mse")

    def fit(peak, batched=True):
        monkeypatch.setattr(engine, "_measure_peak", lambda problem, batches, m: peak(m))
        return engine.fit_gpu_memory(problem, None, 50, batched)

    return fit


def test_rows_and_activations_share_the_memory(fit):
    assert fit(lambda m: 500 * m) == 10  # 11 times 12 * 16 + 500 bytes, in even chunks
    assert fit(lambda m: 500 * m, batched=False) == 25  # 41 times 12 * 16 bytes


def test_one_client_at_a_time_where_two_do_not_fit(fit):
    def peak(m):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    assert fit(peak) == 1


def test_a_model_that_cannot_be_batched_is_measured_by_its_rows(fit):
    def peak(m):
        raise RuntimeError("vmap: no batching rule")

    assert fit(peak) == 25
