"""Wires around other wires: error feedback, and a choice by client and round."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..core.errors import ArgumentError, check_argument
from ..core.layout import Layout
from ..core.types import Rows, State, Vector, select_prefix
from .compressor import Packed, Sender, Wire


@dataclass(frozen=True)
class ErrorFeedback(Wire):
    """Error feedback: what a compressor drops is remembered and sent later.

    Seide et al. 2014; Stich et al., NeurIPS 2018; over a federation Fed-EF, Li & Li, ICML 2023,
    arXiv:2211.14292, Algorithm 1.

        q_i = C(v_i + e_i),     e_i <- v_i + e_i - q_i        hence   sum_t q_i + e_i = sum_t v_i

    The memory e_i starts at zero, one for each client and channel. Clients that are absent keep
    theirs, since nothing is packed for them.

    Differences from the paper: the inner compressor may have memory of its own.

    `encode` takes the corrected vector v + e, as every wire's does: `corrected` returns it.

    Args:
        inner: The compressor C, best a contraction.
    """

    inner: Wire

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.inner, ErrorFeedback):
            raise ArgumentError(
                "Cannot use ErrorFeedback around ErrorFeedback. This is because the inner one "
                "already sends what it dropped; use it once."
            )

    def init(self, x: Vector) -> State:
        inside = {f"inner.{name}": v for name, v in self.inner.init(x).items()}
        return {"error": torch.zeros_like(x), **inside}

    def corrected(self, rows: Rows, own: State) -> Rows:
        return self.inner.corrected(rows + own["error"], select_prefix(own, "inner"))

    def pack(self, rows: Rows, own: State, sender: Sender, layout: Layout) -> Packed:
        meant = rows + own["error"]
        packed = self.inner.pack(meant, select_prefix(own, "inner"), sender, layout)
        inside = {f"inner.{name}": v for name, v in packed.own.items()}
        memory = {"error": meant - packed.rows, **inside}
        return Packed(packed.rows, packed.bytes, packed.counted, memory)

    def encode(self, row: Vector, sender: Sender, layout: Layout) -> bytes:
        return self.inner.encode(row, sender, layout)

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        return self.inner.decode(data, like, sender, layout)


@dataclass(frozen=True)
class Choose(Wire):
    """A wire that depends on the client and the round.

        C_i,t = rule(i, t)

    Both ends call the rule, so that nothing about it travels; it must return the same wire for the
    same client and round, always. Wires with memory are refused: `ErrorFeedback(Choose(...))` keeps
    one error for all wires.

    Differences from the paper: none; ours, for networks whose clients differ.

    It declares no property: `contraction` is None and `unbiased` False for every rule.

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
        (wire,) = self._wires(sender, row)
        return wire.encode(row, sender, layout)

    def decode(self, data: bytes, like: Vector, sender: Sender, layout: Layout) -> Vector:
        (wire,) = self._wires(sender, like)
        return wire.decode(data, like, sender, layout)
