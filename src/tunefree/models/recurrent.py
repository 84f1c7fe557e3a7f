"""PyTorch's recurrent layers in plain operations, which vmap can batch and the compiler can trace.

Equations and order of the gates as in nn.LSTM, nn.GRU and nn.RNN, with a = W_ih u + b_ih and
b = W_hh h + b_hh:

    LSTM   c' = sigmoid(a_f + b_f) c + sigmoid(a_i + b_i) tanh(a_g + b_g)
           h' = sigmoid(a_o + b_o) tanh(c')
    GRU    n  = tanh(a_n + sigmoid(a_r + b_r) b_n)
           h' = n + sigmoid(a_z + b_z) (h - n)
    RNN    h' = tanh(a + b), or relu(a + b)
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

States = tuple[Tensor, ...]  # h, and c of an LSTM
Cell = Callable[[Tensor, Tensor, States], States]
Drop = Callable[[Tensor, float], Tensor]


def _lstm(a: Tensor, b: Tensor, state: States) -> States:
    i, f, g, o = (a + b).chunk(4, dim=-1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(a: Tensor, b: Tensor, state: States) -> States:
    (r, z, n), (r_h, z_h, n_h) = a.chunk(3, dim=-1), b.chunk(3, dim=-1)
    new = torch.tanh(n + torch.sigmoid(r + r_h) * n_h)
    return (new + torch.sigmoid(z + z_h) * (state[0] - new),)


def _tanh(a: Tensor, b: Tensor, state: States) -> States:
    return (torch.tanh(a + b),)


def _relu(a: Tensor, b: Tensor, state: States) -> States:
    return (torch.relu(a + b),)


CELLS: dict[Any, Cell] = {
    torch.lstm: _lstm,
    torch.gru: _gru,
    torch.rnn_tanh: _tanh,
    torch.rnn_relu: _relu,
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


def is_plain(input: Tensor, hidden: Any, *rest: Any) -> bool:
    """Return whether `run_layers` has these arguments: no packed sequence, no projection."""
    if isinstance(hidden, Tensor) and not isinstance(rest[0], list | tuple):
        return False  # the sizes of a packed sequence
    weights, biases, layers, _, _, both = rest[:6]
    return bool(len(weights) == layers * (1 + both) * (4 if biases else 2))


def run_layers(
    cell: Cell,
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
        cell: The equations of one time step.
        drop: Dropout of a tensor, with a probability; between layers, in training.
    """
    u = input.transpose(0, 1) if batch_first else input  # (length, B, inputs)
    starts: States = (hidden,) if isinstance(hidden, Tensor) else tuple(hidden)
    each, last = 4 if biases else 2, []
    for k in range(layers):
        outs = []
        for reverse in range(1 + both):
            index = k * (1 + both) + reverse
            w_ih, w_hh, *bias = weights[index * each : (index + 1) * each]
            b_ih, b_hh = bias or (None, None)
            state, out = tuple(s[index] for s in starts), []
            read = F.linear(u, w_ih, b_ih).unbind(0)  # all times at once
            for now in reversed(read) if reverse else read:
                state = cell(now, F.linear(state[0], w_hh, b_hh), state)
                out.append(state[0])
            outs.append(torch.stack(out[::-1] if reverse else out))
            last.append(state)
        u = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
        if train and dropout and k < layers - 1:
            u = drop(u, dropout)
    ends = (torch.stack(parts) for parts in zip(*last, strict=True))
    return (u.transpose(0, 1) if batch_first else u, *ends)
