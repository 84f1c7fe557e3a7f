"""What a run would cost, before it is trained."""

import pytest
import torch
from torch import nn

import tunefree as tf
from tunefree.training.bind import bind, estimate_cost
from tunefree.training.client_data import SimulatedClients
from tunefree.training.config import RunConfig

D = 4 * 3 + 3  # numbers of the model


@pytest.mark.parametrize(("method", "vectors"), [("fedavg", 1), ("feddua", 1), ("fedexp", 2)])
def test_a_tensor_of_the_server_counts_once(method, vectors):
    """The state of the server may have the model under several names."""
    fed = tf.Federation(torch.ones(12, 4), torch.arange(12) % 3, torch.arange(12) % 6)
    config = RunConfig(method=method, rounds=3, steps=2, batch=2, device="cpu")
    costs = estimate_cost(bind(config, nn.Linear(4, 3), SimulatedClients(fed)))
    assert costs["server_memory"] == 4 * vectors * D
