"""One direction of a recurrent layer for m clients, each with its own weights, over all times.

With a (m, length, B, gates) the inputs' part, w (m, gates, hidden), y = w h + b and x = a + y:

    LSTM   i, f, o = sigmoid(x), g = tanh(x);   c' = f c + i g,   h' = o tanh(c')
    GRU    r, z = sigmoid(x), n = tanh(a_n + r y_n);   h' = n + z (h - n)
    RNN    h' = tanh(x) or relu(x)

Backwards, with d the gradient in h' and e that in c':

    LSTM   e += d o (1 - tanh(c')^2);   do = d tanh(c') o (1 - o),   df = e c f (1 - f),
           di = e g i (1 - i),   dg = e i (1 - g^2);   the time before gets e f
    GRU    dn = d (1 - z) (1 - n^2),   dz = d (h - n) z (1 - z),   dr = dn y_n r (1 - r);
           in y_n the gradient is dn r;   d of the time before gets d z
    RNN    dx = d (1 - h'^2), or d where h' > 0

and d of the time before gets w^T dy, where dy is the gradient in y.
"""

import torch
from torch import Tensor

from .gpu import recurrence as gpu

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
KEPT = {"lstm": 4, "gru": 4, "tanh": 0, "relu": 0}  # i, f, g, o; r, z, n, y_n


@torch.library.custom_op("tunefree::recurrence", mutates_args=())
def forward(
    a: Tensor, w: Tensor, b: Tensor | None, h: Tensor, c: Tensor | None, kind: str, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h and c at all times, and what the backward pass needs of the gates.

    Args:
        a: (m, length, B, gates).
        w: (m, gates, hidden).
        b: (m, gates), or None.
        h: h before the first time, (m, B, hidden).
        c: c before the first time, of an LSTM.
        kind: A key of `GATES`.
        reverse: Whether the last time is read first.
    """
    out, cells, gates = _empty(a, h, kind)
    step = gpu.step if gpu.is_available(w, kind) else _step
    a, h = a.contiguous(), h.contiguous()
    for t in _times(a, reverse):
        step(kind, a[:, t], w, b, h, c, out[:, t], cells[:, t], gates[:, t])
        h, c = out[:, t], None if c is None else cells[:, t]
    return out, cells, gates


@forward.register_fake
def _(a: Tensor, w: Tensor, b: object, h: Tensor, c: object, kind: str, *_: object) -> object:
    return _empty(a, h, kind)


def _empty(a: Tensor, h: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    lead, hidden = a.shape[:3], h.shape[-1]
    cells = a.new_empty((*lead, hidden if kind == "lstm" else 0), dtype=_exact(a))
    return a.new_empty((*lead, hidden)), cells, a.new_empty((*lead, KEPT[kind] * hidden))


@torch.library.custom_op("tunefree::recurrence_backward", mutates_args=())
def backward(
    g: Tensor,
    g_end: Tensor,
    w: Tensor,
    h: Tensor,
    c: Tensor | None,
    out: Tensor,
    cells: Tensor,
    gates: Tensor,
    kind: str,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients in a, in y, in h and in c; that in y is empty where it is that in a.

    Args:
        g: Gradient in h at all times.
        g_end: Gradient in c after the last time, of an LSTM.
        w, h, c: As in `forward`.
        out, cells, gates: The results of `forward`.
        kind, reverse: As in `forward`.
    """
    ga, gy, _, carry = _empty_gradients(g, g_end, kind)
    carry.copy_(g_end) if kind == "lstm" else carry.zero_()
    step = gpu.step_back if gpu.is_available(w, kind) else _step_back
    g, h, after = g.contiguous(), h.contiguous(), None
    order = list(_times(g, not reverse))
    for t, before in zip(order, [*order[1:], None], strict=True):
        h_before = h if before is None else out[:, before]
        c_before = c if before is None or c is None else cells[:, before]
        now = (out[:, t], cells[:, t], gates[:, t])
        step(kind, g[:, t], after, w, h_before, c_before, *now, carry, ga[:, t], gy[:, t])
        after = (gy if kind == "gru" else ga)[:, t]
    assert after is not None
    gh = torch.bmm(after, w)
    if kind == "gru":
        gh = (gh.to(carry.dtype) + carry).to(g.dtype)
    return ga, gy, gh, carry


@backward.register_fake
def _(g: Tensor, g_end: Tensor, *args: object) -> object:
    return _empty_gradients(g, g_end, str(args[-2]))


def _empty_gradients(g: Tensor, g_end: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (m, _, batch, hidden), lead = g.shape, g.shape[:3]
    ga = g.new_empty((*lead, GATES[kind] * hidden))
    gy = g.new_empty((*lead, ga.shape[-1] if kind == "gru" else 0))
    gh = g.new_empty((m, batch, hidden))
    return ga, gy, gh, torch.empty_like(gh, dtype=_exact(g))


def _exact(t: Tensor) -> torch.dtype:
    """Return the dtype of c and of sums over times."""
    return torch.promote_types(t.dtype, torch.float32)


def _times(a: Tensor, reverse: bool) -> range:
    return range(a.shape[1] - 1, -1, -1) if reverse else range(a.shape[1])


def _step(
    kind: str,
    a: Tensor,
    w: Tensor,
    b: Tensor | None,
    h: Tensor,
    c: Tensor | None,
    out: Tensor,
    cell: Tensor,
    gates: Tensor,
) -> None:
    """Write one time's h, c and gates into the last three."""
    exact = _exact(a)
    if kind == "gru":
        y = torch.bmm(h, w.mT) if b is None else torch.baddbmm(b.unsqueeze(1), h, w.mT)
        (a_r, a_z, a_n), (y_r, y_z, y_n) = (t.to(exact).chunk(3, -1) for t in (a, y))
        r, z = (a_r + y_r).sigmoid(), (a_z + y_z).sigmoid()
        n = (a_n + r * y_n).tanh()
        out.copy_(n + z * (h - n))
        gates.copy_(torch.cat([r, z, n, y_n], -1))
        return
    x = torch.baddbmm(a if b is None else a + b.unsqueeze(1), h, w.mT).to(exact)
    if c is not None:
        x_i, x_f, x_g, x_o = x.chunk(4, -1)
        i, f, g, o = x_i.sigmoid(), x_f.sigmoid(), x_g.tanh(), x_o.sigmoid()
        cell.copy_(f * c + i * g)
        out.copy_(o * cell.tanh())
        gates.copy_(torch.cat([i, f, g, o], -1))
    else:
        out.copy_(x.tanh() if kind == "tanh" else x.relu())


def _step_back(
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
) -> None:
    """Write the gradients at one time into the last two, and update the carry.

    Args:
        kind: A key of `GATES`.
        g: Gradient in this time's h by its direct uses.
        after: Gradient in the next time's y; None at the end.
        w: The weights.
        h, c: h and c before this time.
        out, cell, gates: What the step wrote.
        carry: What the next time hands back: the gradient in c, or d z of a GRU.
        ga, gy: The gradients in a and in y.
    """
    d = g.to(carry.dtype)
    if after is not None:
        d = d + torch.bmm(after, w)
    kept = gates.to(carry.dtype)
    if kind == "gru":
        r, z, n, y_n = kept.chunk(4, -1)
        d = d + carry
        dn, dz = d * (1 - z) * (1 - n * n), d * (h - n) * z * (1 - z)
        dr = dn * y_n * r * (1 - r)
        ga.copy_(torch.cat([dr, dz, dn], -1))
        gy.copy_(torch.cat([dr, dz, dn * r], -1))
        carry.copy_(d * z)
    elif c is not None:
        i, f, u, o = kept.chunk(4, -1)
        end = cell.tanh()
        e = carry + d * o * (1 - end * end)
        di, df, du = e * u * i * (1 - i), e * c * f * (1 - f), e * i * (1 - u * u)
        ga.copy_(torch.cat([di, df, du, d * end * o * (1 - o)], -1))
        carry.copy_(e * f)
    else:
        slope = 1 - out * out if kind == "tanh" else out > 0
        ga.copy_(d * slope)
