"""What the tests of trust share: a small problem, and what a run leaves."""

import pytest
import torch
from torch import nn

import tunefree as tf
from trust.kills import left


@pytest.fixture
def train(tmp_path):
    """Fit a small problem whose clients and server remember something."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=draw)
    y = (x @ torch.randn(6, 3, generator=draw)).argmax(1)
    federation = tf.Federation(x, y, torch.arange(40) // 10, test=(x, y))

    def run(method="scaffold", out=None, **settings):
        torch.manual_seed(0)
        given = {"rounds": 3, "cohort": 3, "steps": 2, "batch": 5, "device": "cpu"}
        given |= {"checkpoint_every": 1} if out is not None else {}
        return tf.fit(nn.Linear(6, 3), federation, method, out=out, **(given | settings))

    run.federation = federation
    return run


@pytest.fixture
def whole(train, tmp_path):
    """What a run leaves that nothing happened to."""
    train(out=tmp_path / "whole")
    return left(tmp_path / "whole")
