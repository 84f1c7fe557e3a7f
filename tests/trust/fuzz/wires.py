"""The wires' decoders: one client's message as the server gets it."""

import torch

from trust.fuzz.target import Target, chosen, kept_head, kept_length, target
from tunefree.core.layout import Layout
from tunefree.wire import Sender, parse

LAYOUT = Layout(("w", "b", "s"), ((4, 5), (7,), ()))
SENDER = Sender(torch.tensor([3]), 2, torch.tensor([1234567]))
KINDS = (torch.float32, torch.float64)
WORDS = (
    "dense",
    "topk:0.2",
    "topk:0.4:global",
    "randk:0.3",
    "qsgd:7",
    "natural",
    "sign",
    "lowrank:2",
)


def _make(word: str) -> Target:
    wire = parse(word)
    likes = [torch.zeros(LAYOUT.size, dtype=kind) for kind in KINDS]
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randn(LAYOUT.size, generator=draw, dtype=kind) for kind in KINDS]
    seeds = chosen([wire.encode(row, SENDER, LAYOUT) for row in rows])

    def read(data: bytes) -> None:
        like = likes[data[0] % 2 if data else 0]
        found = wire.decode(data[1:], like, SENDER, LAYOUT)
        assert found.shape == like.shape
        assert found.dtype == like.dtype

    return Target(read, seeds, kept_head(kept_length))


for word in WORDS:
    target(f"wire {word}")(lambda word=word: _make(word))
