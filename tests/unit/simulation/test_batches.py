"""The host's part of feeding clients."""

import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import bound
from tunefree.simulation.batches import _one_thread


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("device", "inside"), [("cuda", 1), ("cpu", 2)])
def test_threads_beside_a_gpu(device, inside):
    with _one_thread(torch.device(device)):
        assert torch.get_num_threads() == inside
    assert torch.get_num_threads() == 2
    with pytest.raises(KeyboardInterrupt), _one_thread(torch.device(device)):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2


def feed(batch):
    """Clients of 7, 1 and 20 rows, a server's sample of 9, and a network that drops units."""
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor([7, 1, 20]))
    x, y = torch.randn(28, 4), torch.randint(3, (28,))
    fed = tf.Federation(x, y, owner, held=(x[:9], y[:9]))
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    job = bound(model=model, federation=fed, method="fedlin", rounds=1, batch=batch, device="cpu")
    return job.pool.batches


@pytest.mark.parametrize("whose", [None, torch.tensor([2, 0])])
def test_each_block_of_all_data_has_its_own_key(whose):
    source = feed(batch=3)
    keys = torch.stack([block.key for _, block in source.blocks(whose, 5)])
    assert len(keys) == (3 if whose is None else 7)
    assert len(keys.unique()) == keys.numel()
    again = torch.stack([block.key for _, block in source.blocks(whose, 5)])
    assert torch.equal(keys, again)
    whole = [block.key for _, block in feed(batch=20).blocks(whose, 5)]
    assert torch.equal(whole[0], keys[0])
