"""What the compiler is told."""

import torch

from tunefree.models.compiler import compiled


def test_kernels_are_not_chosen_by_a_clock(monkeypatch):
    told = {}
    monkeypatch.setattr(torch, "compile", lambda function, **options: told.update(options))
    compiled(torch.sin)
    assert told == {"dynamic": False, "options": {"deterministic": True}}
    assert "deterministic" in torch._inductor.list_options()
