import pytest
import torch

from helpers import tensor
from tunefree.server.aggregate import Mean, client_weights


def test_shares():
    sizes = torch.tensor([1, 3, 4])
    assert client_weights("uniform", sizes).tolist() == pytest.approx([1 / 3] * 3)
    assert client_weights("samples", sizes).tolist() == [0.125, 0.375, 0.5]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_mean_takes_chunks(cut):
    p, delta, loss = (
        tensor(0.1, 0.3, 0.2),
        tensor([1.0, 0.0], [2.0, 1.0], [0.0, 4.0]),
        tensor(6.0, 0.0, 3.0),
    )
    mean = Mean(float(p.sum()))
    for low in range(0, 3, cut):
        part = slice(low, low + cut)
        mean.add(p[part], {"delta": delta[part], "loss": loss[part]})
    out = mean.result()
    torch.testing.assert_close(out["delta"], tensor(0.7 / 0.6, 1.1 / 0.6))
    torch.testing.assert_close(out["loss"], tensor(2.0)[0])


def test_mean_keeps_the_dtype():
    mean = Mean(1.0)
    mean.add(tensor(0.5, 0.5), {"delta": torch.ones(2, 3)})
    assert mean.result()["delta"].dtype == torch.float32
