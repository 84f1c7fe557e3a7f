"""PyTorch's recurrent layers for batched clients.

Equations and order of the gates as in nn.LSTM, nn.GRU and nn.RNN, with a = W_ih u + b_ih and
b = W_hh h + b_hh:

    LSTM   c' = sigmoid(a_f + b_f) c + sigmoid(a_i + b_i) tanh(a_g + b_g)
           h' = sigmoid(a_o + b_o) tanh(c')
    GRU    n  = tanh(a_n + sigmoid(a_r + b_r) b_n)
           h' = n + sigmoid(a_z + b_z) (h - n)
    RNN    h' = tanh(a + b), or relu(a + b)

The products W_ih u of all times are one product. What remains of a time step is the product with
W_hh and its cell, for all clients: one kernel each way on a GPU (`gpu.recurrence`), else a batched
product and pointwise operations. The gradient of W_hh is one product over all times at the end.
Each direction of a layer is one operation for the compiler, so that it does not compile each step.

Differences from PyTorch's: it can be differentiated once, not twice. Under autocast, h is bfloat16
and c is float32.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack

from . import recurrence
from .conv2d import clients_first

States = tuple[Tensor, ...]  # h, and c of an LSTM
Drop = Callable[[Tensor, float], Tensor]

CELLS: dict[Any, str] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "tanh",
    torch.rnn_relu: "relu",
}
"""The cell of each of the functions that the layers call."""


@contextmanager
def quiet_weights(device: torch.device) -> Iterator[None]:
    """Silence cuDNN's warning that weights, slices of a vector here, are copied at every call."""
    if device.type != "cuda":
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")
        yield


def is_batched() -> bool:
    """Return whether this is called inside a transform of torch.func, such as vmap."""
    return peek_interpreter_stack() is not None


def is_plain(input: Tensor, hidden: Any, *rest: Any) -> bool:
    """Return whether `run_layers` has these arguments: no packed sequence, no projection."""
    if isinstance(hidden, Tensor) and not isinstance(rest[0], list | tuple):
        return False  # the sizes of a packed sequence
    weights, biases, layers, _, _, both = rest[:6]
    return bool(len(weights) == layers * (1 + both) * (4 if biases else 2))


def read_sequence(layer: nn.LSTM | nn.GRU, u: Tensor) -> Tensor:
    """Return layer(u)[0] of a layer without dropout, also where vmap batches clients."""
    if not is_batched():
        out: Tensor = layer(u)[0]
        return out
    kind = "lstm" if isinstance(layer, nn.LSTM) else "gru"
    zero = u.new_zeros(layer.num_layers, u.shape[0], layer.hidden_size)
    start = (zero, zero) if kind == "lstm" else zero
    weights = [w for group in layer.all_weights for w in group]
    rest = (layer.bias, layer.num_layers, 0.0, True, False, True)
    return run_layers(kind, F.dropout, u, start, weights, *rest)[0]


def run_layers(
    kind: str,
    drop: Drop,
    input: Tensor,
    hidden: Tensor | States,
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Return the outputs and the last states; arguments as of `torch.lstm` after the first two.

    Args:
        kind: One of the values of `CELLS`.
        drop: Dropout of a tensor, with a probability; between layers, in training.
    """
    u = input.transpose(0, 1) if batch_first else input  # (length, B, inputs)
    starts: States = (hidden,) if isinstance(hidden, Tensor) else tuple(hidden)
    each, last = 4 if biases else 2, []
    for k in range(layers):
        outs = []
        for reverse in range(1 + both):
            index = k * (1 + both) + reverse
            state = tuple(s[index] for s in starts)
            out, ends = _run_layer(
                kind, u, state, *weights[index * each : (index + 1) * each], reverse=bool(reverse)
            )
            outs.append(out)
            last.append(ends)
        u = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
        if train and dropout and k < layers - 1:
            u = drop(u, dropout)
    parts = (torch.stack(of_layers) for of_layers in zip(*last, strict=True))
    return (u.transpose(0, 1) if batch_first else u, *parts)


def _run_layer(
    kind: str,
    u: Tensor,
    state: States,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    reverse: bool,
) -> tuple[Tensor, States]:
    """Return one direction's outputs (length, B, hidden) and its last states."""
    if b_ih is not None and b_hh is not None and kind != "gru":
        b_hh, b_ih = b_ih + b_hh, None  # added in the steps, which read a anyway
    a = F.linear(u.flatten(0, 1), w_ih, b_ih).reshape(*u.shape[:2], -1)  # all times at once
    exact = torch.promote_types(a.dtype, torch.float32)
    c = state[1].to(exact) if kind == "lstm" else None
    w, h = w_hh.to(a.dtype), state[0].to(a.dtype)
    b = None if b_hh is None else b_hh.to(a.dtype)
    out, end, *_ = _Recurrence.apply(a, w, b, h, c, kind, reverse)  # type: ignore[no-untyped-call]
    last = out[0 if reverse else -1]
    return out, (last, end) if kind == "lstm" else (last,)


class _Recurrence(torch.autograd.Function):
    """(out, c at the end, c at all times, gates) of a (length, B, gates), w, b, h and c."""

    @staticmethod
    def forward(
        a: Tensor, w: Tensor, b: Any, h: Tensor, c: Any, kind: str, reverse: bool
    ) -> tuple[Tensor, ...]:
        one = [None if t is None else t.unsqueeze(0) for t in (a, w, b, h, c)]
        given: list[Any] = [*one, kind, reverse]
        return tuple(t.squeeze(0) for t in _forward(*given))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, w, b, h, c, ctx.kind, ctx.reverse = inputs
        out, _, cells, gates = output
        ctx.bias = b is not None
        ctx.mark_non_differentiable(cells, gates)
        ctx.save_for_backward(w, h, c, out, cells, gates)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        given = (*grads[:2], *ctx.saved_tensors, ctx.bias, ctx.kind, ctx.reverse)
        ga, gw, gb, gh, gc = _RecurrenceGrad.apply(*given)  # type: ignore[no-untyped-call]
        has_c = ctx.kind == "lstm"
        return ga, gw, gb if ctx.bias else None, gh, gc if has_c else None, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, a: Tensor, w: Tensor, b: Any, h: Tensor, c: Any, *more: Any
    ) -> tuple[Any, int]:
        a, w, b, h, c = clients_first(info, dims[:5], a, w, b, h, c)
        return _forward(a, w, b, h, c, *more), 0


class _RecurrenceGrad(torch.autograd.Function):
    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        one: list[Any] = [None if t is None else t.unsqueeze(0) for t in args[:8]]
        return tuple(t.squeeze(0) for t in _backward(*one, *args[8:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> tuple[Any, int]:
        return _backward(*clients_first(info, dims[:8], *args[:8]), *args[8:]), 0


def _forward(
    a: Tensor, w: Tensor, b: Tensor | None, h: Tensor, c: Tensor | None, kind: str, reverse: bool
) -> tuple[Tensor, ...]:
    out, cells, gates = recurrence.forward(a, w, b, h, c, kind, reverse)
    end = cells[:, 0 if reverse else -1].clone() if kind == "lstm" else cells
    return out, end, cells, gates


def _backward(
    g: Tensor,
    g_end: Tensor,
    w: Tensor,
    h: Tensor,
    c: Tensor | None,
    out: Tensor,
    cells: Tensor,
    gates: Tensor,
    bias: bool,
    kind: str,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Return the gradients in a, w, b, h and c; empty ones of what there is not."""
    ga, gates_of_h, gh, gc = recurrence.backward(
        g, g_end, w, h, c, out, cells, gates, kind, reverse
    )
    gb = gates_of_h if kind == "gru" else ga  # the gradient in W_hh h + b
    now, before = (
        (slice(None, -1), slice(1, None)) if reverse else (slice(1, None), slice(None, -1))
    )
    first = gb[:, -1 if reverse else 0]
    gw = torch.bmm(first.mT, h)
    gw = torch.baddbmm(gw, gb[:, now].flatten(1, 2).mT, out[:, before].flatten(1, 2))
    return ga, gw, gb.sum((1, 2)) if bias else gb.new_empty(len(gb), 0), gh, gc
