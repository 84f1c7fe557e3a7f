"""One time step of an LSTM or a GRU of m clients, each way, in one launch.

The product with the weights and the cell are one kernel: a program computes some hidden units of
one client, all of their gates. So a time step reads the weights once and writes its results once.
"""

import torch
from torch import Tensor

from ..enabled import are_engines_enabled
from . import kernels
from .kernels import Blocks

FORWARD = {torch.float32: Blocks(32, 16, 64, 4, 2), torch.bfloat16: Blocks(32, 16, 128, 2, 2)}
BACKWARD = {torch.float32: Blocks(32, 32, 64, 4, 3), torch.bfloat16: Blocks(32, 64, 64, 4, 4)}


def is_available(w: Tensor, kind: str) -> bool:
    """Return whether these kernels run: an LSTM or a GRU in TF32 or bfloat16, on such a GPU."""
    tf32 = w.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    fits = tf32 or w.dtype == torch.bfloat16
    here = fits and kernels.is_available(w.device) and are_engines_enabled()
    return here and kind in ("lstm", "gru")


def step(
    kind: str,
    a: Tensor,
    w: Tensor,
    b: Tensor | None,
    h: Tensor,
    c: Tensor | None,
    out: Tensor,
    cell: Tensor,
    gates: Tensor,
    blocks: Blocks | None = None,
) -> None:
    """Write one time's h, c and gates into the last three tensors; see `models.recurrence`."""
    from . import _triton_recurrence

    w, b, c = _rows(w), w if b is None else b.contiguous(), h if c is None else _rows(c)
    (m, batch, hidden), at = out.shape, blocks or FORWARD[w.dtype]
    grid = (-(-batch // at.rows) * -(-hidden // at.cols), m)
    _triton_recurrence.step[grid](
        a,
        w,
        b,
        h,
        c,
        out,
        cell,
        gates,
        batch,
        *(t.stride(0) for t in (a, w, b, h, c, out, cell, gates)),
        hidden,
        kind == "lstm",
        b is not w,
        "tf32",
        *at[:3],
        num_warps=at.warps,
        num_stages=at.stages,
    )


def step_back(
    kind: str,
    g: Tensor,
    after: Tensor | None,
    w: Tensor,
    h: Tensor,
    c: Tensor | None,
    out: Tensor,
    cell: Tensor,
    gates: Tensor,
    carry: Tensor,
    ga: Tensor,
    gy: Tensor,
    blocks: Blocks | None = None,
) -> None:
    """Write one time's gradients into the last two tensors; see `models.recurrence`."""
    from . import _triton_recurrence

    w, h, c = _rows(w), _rows(h), h if c is None else _rows(c)
    (m, batch, hidden), at = out.shape, blocks or BACKWARD[w.dtype]
    grid = (-(-batch // at.rows) * -(-hidden // at.cols), m)
    tensors = (g, g if after is None else after, w, h, c, cell, gates, carry, ga, gy)
    _triton_recurrence.step_back[grid](
        *tensors,
        batch,
        *(t.stride(0) for t in tensors),
        hidden,
        kind == "lstm",
        after is not None,
        "tf32",
        *at[:3],
        num_warps=at.warps,
        num_stages=at.stages,
    )


def _rows(t: Tensor) -> Tensor:
    """Return a tensor whose last two axes are contiguous; clients may share its memory."""
    return t if t.stride(-1) == 1 and t.stride(-2) == t.shape[-1] else t.contiguous()
