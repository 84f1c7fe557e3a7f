"""The host's part of feeding clients."""

import pytest
import torch

from tunefree.engines.feed import _one_thread


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
