"""A wire that depends on the client and the round.

    C_i,t = rule(i, t)

Both ends call the rule, so that nothing about it travels; it must return the same wire for the
same client and round, always. Wires with memory are refused: `ErrorFeedback(Choose(...))` keeps
one error for all wires.

Differences from the paper: none; ours, for networks whose clients differ.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..core.errors import ArgumentError, check_argument
from ..core.layout import Layout
from ..core.types import Rows, State, Vector
from .compressor import Packed, Sender, Wire


@dataclass(frozen=True)
class Choose(Wire):
    """Wire that packs each row by the wire its client uses in this round.

    It promises nothing: `contraction` is None and `unbiased` False for every rule.

    Args:
        rule: From client and round to a wire without memory.
    """

    rule: Callable[[int, int], Wire]

    def __post_init__(self) -> None:
        rule = "a function of client and round"
        check_argument("Choose", "rule", self.rule, rule, callable(self.rule))

    def __repr__(self) -> str:
        return f"Choose(rule={getattr(self.rule, '__qualname__', repr(self.rule))})"

    def _wires(self, sender: Sender, x: Vector) -> list[Wire]:
        wires = [self.rule(int(client), sender.round) for client in sender.ids]
        for wire in wires:
            if not isinstance(wire, Wire):
                raise ArgumentError(f"Choose(rule=...) must return a Wire, got {wire!r}.")
            if wire.init(x):
                raise ArgumentError(
                    f"Cannot use {type(wire).__name__} in Choose. This is because it has memory, "
                    "and the next round may choose another wire; use ErrorFeedback(Choose(...))."
                )
        return wires

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        """Pack the rows of each wire together, and put them back in order."""
        groups: list[tuple[Wire, list[int]]] = []
        for j, wire in enumerate(self._wires(sender, rows[0])):
            same = next((js for other, js in groups if other == wire), None)
            if same is None:
                groups.append((wire, [j]))
            else:
                same.append(j)
        arrived, total, counted = torch.empty_like(rows), 0, 0
        for wire, js in groups:
            packed = wire.pack(rows[js], {}, sender.rows(js), layout)
            arrived[js] = packed.rows
            total, counted = total + packed.bytes, counted + packed.counted
        return Packed(arrived, total, counted, own)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        """Return the chosen wire's encoding."""
        (wire,) = self._wires(sender, row)
        return wire.encode(row, sender, layout)

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        """Return what the chosen wire decodes."""
        (wire,) = self._wires(sender, like)
        return wire.decode(data, like, sender, layout)
