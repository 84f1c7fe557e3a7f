"""The GPU's code path on any machine: its kernels replaced by plain matrix products."""

import torch

from tunefree.models.compiled import matmul
from tunefree.models.gpu import convolution, kernels


def fake_kernels(monkeypatch):
    """Replace the kernels and report them as available; return the list of their calls."""
    calls = []

    def plain_convolution(name):
        plain = getattr(convolution, f"conv_{name}")

        def call(*args, bias=None, relu=False):
            first, geometry = args[:-4], args[-4:-1]
            calls.append(name)
            assert bias is None or bias.is_contiguous()
            with monkeypatch.context() as here:
                here.setattr(convolution, "_uses_kernels", lambda x: False)
                if name == "grad_weight":
                    return plain(*first, geometry, False)[0].float()[None]
                more = (bias,) if name == "forward" else ()
                out = plain(*first, *more, geometry).contiguous()
                return out.relu() if relu else out

        return call

    def descend(part, low, left, right, lr):
        calls.append("descend")
        each = lr[:, None, None]
        moved = part - each * torch.bmm(left.float(), right.float())
        part.copy_(torch.where(each > 0, moved, part))
        if low is not None:
            low.copy_(part)

    def evaluate(epilogue, factors, matrices, scalars):
        products = [torch.bmm(left.float(), right.float()) for left, right in factors]
        return epilogue(products, matrices, scalars)

    def update(targets, epilogue, factors, matrices, scalars):
        calls.append("update")
        assert all(t.is_contiguous() for t in (*targets, *matrices))
        values = [v.clone() for v in evaluate(epilogue, factors, matrices, scalars)]
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)

    def sum_products(epilogue, factors, matrices, scalars):
        calls.append("sum_products")
        (value,) = evaluate(epilogue, factors, matrices, scalars)
        return value.sum((1, 2))

    def channel_sums(x, centre, g=None):
        calls.append("channel_sums")
        away = x.float() - centre[:, :, None, None]
        by = away if g is None else g.float()
        return by.sum((2, 3)), (by * away).sum((2, 3))

    for name in ("forward", "grad_input", "grad_weight"):
        monkeypatch.setattr(kernels, name, plain_convolution(name))
    monkeypatch.setattr(kernels, "descend", descend)
    monkeypatch.setattr(kernels, "channel_sums", channel_sums)
    monkeypatch.setattr(kernels, "update", update)
    monkeypatch.setattr(kernels, "sum_products", sum_products)
    monkeypatch.setattr(kernels, "is_available", lambda device: True)
    monkeypatch.setattr(kernels, "weight_blocks", lambda *_: kernels.Blocks(16, 16, 16))
    monkeypatch.setattr(convolution, "_uses_kernels", lambda x: True)
    monkeypatch.setattr(matmul.BatchedMatmul, "__call__", matmul.BatchedMatmul._gpu)
    return calls
