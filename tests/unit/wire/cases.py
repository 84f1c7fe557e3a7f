"""What the tests of wires share: layouts, senders, and every wire."""

import torch

from tunefree.core import random
from tunefree.core.layout import Layout
from tunefree.wire import (
    QSGD,
    Choose,
    Dense,
    ErrorFeedback,
    LowRank,
    Natural,
    RandK,
    Sender,
    Sign,
    TopK,
)


def layout(*shapes):
    return Layout(tuple(f"layer{j}" for j in range(len(shapes))), shapes)


LAYOUTS = {
    "network": layout((6, 5), (6,), (3, 2, 2, 2), (), (1,)),
    "one number": layout((1,)),
    "one layer": layout((37,)),
    "empty layers": layout((0,), (9, 4), (3, 0), (2,)),
    "thin matrices": layout((1, 12), (12, 1), (1, 1), (2, 2)),
    "wide matrix": layout((4, 30)),
}
DTYPES = [torch.float32, torch.float64]


def by_turns(client, t):
    """Ratios by client, kinds by round."""
    return [TopK(0.1 + 0.2 * (client % 3)), QSGD(1 + client), Dense()][t % 3]


WIRES = [
    Dense(),
    TopK(),
    TopK(0.3),
    TopK(0.5, per_layer=False),
    TopK(1.0),
    RandK(),
    RandK(0.4, unbiased=False),
    RandK(0.6, per_layer=True),
    RandK(1.0),
    QSGD(),
    QSGD(1, bucket=None),
    QSGD(65535, bucket=7),
    QSGD(4, bucket=1),
    Natural(),
    Sign(),
    Sign(per_layer=False),
    LowRank(),
    LowRank(2, passes=1),
    LowRank(100),
    ErrorFeedback(TopK(0.2)),
    ErrorFeedback(Choose(by_turns)),
    Choose(by_turns),
]


def rows_like(lay, m=3, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(m, lay.size, generator=draw, dtype=torch.float64).to(dtype)


def sender(m=3, t=1, seed=0):
    ids = 5 * torch.arange(m) + 2
    return Sender(ids, t, random.key(seed, "wire", t, ids))


def memory(wire, rows):
    """Every row's first memory."""
    return {name: v.expand(len(rows), -1).clone() for name, v in wire.init(rows[0]).items()}


def pack(wire, rows, lay, who=None, own=None):
    own = memory(wire, rows) if own is None else own
    return wire.pack(rows, own, sender(len(rows)) if who is None else who, lay)


def same_bits(a, b):
    kind = torch.int32 if a.dtype == torch.float32 else torch.int64
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))
    )


def crossed(wire, rows, lay, who=None):
    """Encode and decode each row by itself; return what arrives, and the messages."""
    who = sender(len(rows)) if who is None else who
    meant = wire.corrected(rows, memory(wire, rows))
    sent = [wire.encode(v, who.row(j), lay) for j, v in enumerate(meant)]
    got = [wire.decode(data, rows[0], who.row(j), lay) for j, data in enumerate(sent)]
    return torch.stack(got), sent
