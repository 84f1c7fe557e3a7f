"""The host's part of feeding clients."""

import pytest
import torch
from torch import nn

import tunefree as tf
from helpers import bound
from tunefree.core.threads import one_thread
from tunefree.models.loop import LoopEngine


class Widen(nn.Module):
    """Keeps megabytes for the backward pass, and has no parameters."""

    def forward(self, x):
        return x.flatten(2).repeat(1, 1, 2000).exp().mean(-1)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_one_thread():
    with one_thread(wanted=False):
        assert torch.get_num_threads() == 2
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(KeyboardInterrupt), one_thread():
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("net", "inside"),
    [
        (nn.Linear(4, 3), 1),
        (nn.Sequential(nn.Linear(4, 900), nn.ReLU(), nn.Linear(900, 90)), 2),
        (
            nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 9, 1), Widen(), nn.Linear(9, 3)),
            2,
        ),
    ],
    ids=["small", "many operations", "many activations"],
)
def test_threads_go_by_the_work(net, inside, monkeypatch):
    seen, real = [], LoopEngine.value_and_grad
    monkeypatch.setattr(
        LoopEngine,
        "value_and_grad",
        lambda *args: seen.append(torch.get_num_threads()) or real(*args),
    )
    x, y = torch.randn(60, 4), torch.randint(3, (60,))
    fed = tf.Federation(x, y, torch.arange(60) % 3)
    words = {"rounds": 1, "steps": 1, "batch": 20, "device": "cpu"}
    tf.fit(net, fed, tf.methods.get("fedprox", lr=0.1), engine="loop", **words)
    assert set(seen) == {inside}
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
