"""Elementwise operations on products, written as statements of a Triton kernel."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.passes.shape_prop import TensorMetadata

from .graphs import GraphNode, aten, output_node

Printer = Callable[..., str]


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Elementwise operations on products (m, o, i) and other operands.

    Args:
        graph: (*products, *matrices, *scalars) -> [value, ...].
        products: Number of products.
        per_client: For each matrix operand, whether each client has its own: (m, o, i), else
            (1, o, i).
        booleans: For each scalar operand, one number per client (m, 1, 1) or one for all, whether
            it is boolean.
    """

    graph: GraphModule
    products: int
    per_client: tuple[bool, ...]
    booleans: tuple[bool, ...]

    @cached_property
    def lines(self) -> tuple[list[str], list[str]]:
        """The operations as statements of a Triton kernel, and the names of the values."""
        names: dict[GraphNode, str] = {}
        given = [f"product{k}" for k in range(self.products)]
        given += [f"long{k}" for k in range(len(self.per_client))]
        given += [f"each{k}" for k in range(len(self.booleans))]
        made: list[str] = []

        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                names[node] = given[len(names)]
            elif node.op == "call_function":
                names[node] = f"value{len(made)}"
                made.append(f"{names[node]} = {_print(node, names.__getitem__)}")
        return made, [names[value] for value in output_node(self.graph).args[0]]

    @cached_property
    def key(self) -> str:
        """A name that is the same for equal epilogues, in any process."""
        text = f"{self.graph.code} {self.products} {self.per_client} {self.booleans}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __call__(
        self, products: Iterable[Tensor], matrices: Iterable[Tensor], scalars: Iterable[Tensor]
    ) -> list[Tensor]:
        """Return the values, computed by PyTorch."""
        values: list[Tensor] = self.graph(*products, *matrices, *scalars)
        return values


def has_text(node: GraphNode) -> bool:
    """Return whether a kernel can have an operation."""
    kinds = (torch.float32,) if node.target in _FLOATS else (torch.float32, torch.bool)
    if node.target not in _PRINTERS or known_dtype(node) not in kinds:
        return False
    if node.target is aten._to_copy.default and known_dtype(node.args[0]) is torch.bool:
        return False
    return bool(_print(node, lambda value: "x"))


def is_elementwise(operation: Any) -> bool:
    """Return whether kernels have an operation on some operands."""
    return operation in _PRINTERS


def known_shape(node: GraphNode) -> tuple[int, ...] | None:
    """Return the shape at tracing time, or None if it is unknown."""
    meta = node.meta.get("tensor_meta")
    return tuple(meta.shape) if isinstance(meta, TensorMetadata) else None


def known_dtype(node: GraphNode) -> Any:
    """Return the type at tracing time, or None if it is unknown."""
    meta = node.meta.get("tensor_meta")
    return meta.dtype if isinstance(meta, TensorMetadata) else None


def _binary(sign: str) -> Printer:
    def text(a: str, b: str, alpha: float | str = 1) -> str:
        return f"({a} {sign} {b})" if float(alpha) == 1 else f"({a} {sign} {float(alpha)!r} * {b})"

    return text


def _reversed_sub(a: str, b: str, alpha: float | str = 1) -> str:
    return _binary("-")(b, a, alpha)


def _add_product(sign: str) -> Printer:
    def text(a: str, b: str, c: str, value: float = 1) -> str:
        return f"({a} + {float(value)!r} * ({b} {sign} {c}))"

    return text


def _clamp(a: str, low: str | None = None, high: str | None = None) -> str:
    a = a if low is None else _extreme("maximum")(a, low)
    return a if high is None else _extreme("minimum")(a, high)


def _extreme(name: str) -> Printer:
    """Return the larger or smaller of two; NaN if one of them is, as in PyTorch."""

    def text(a: str, b: str) -> str:
        return f"tl.{name}({a}, {b}, propagate_nan=tl.PropagateNan.ALL)"

    return text


def _power(a: str, exponent: str) -> str:
    known = {"2.0": f"({a} * {a})", "0.5": f"tl.sqrt({a})", "1.0": a}
    return known.get(exponent, "")


def _copy_sign(a: str, b: str) -> str:
    return f"tl.where({b}.to(tl.int32, bitcast=True) < 0, -tl.abs({a}), tl.abs({a}))"


def _same(a: str, *_: object, **__: object) -> str:
    return a


def _constant(value: str) -> Printer:
    def text(*_: object, **__: object) -> str:
        return value

    return text


_PRINTERS: dict[Any, Printer] = {
    aten.add.Tensor: _binary("+"),
    aten.add.Scalar: _binary("+"),
    aten.sub.Tensor: _binary("-"),
    aten.sub.Scalar: _binary("-"),
    aten.rsub.Scalar: _reversed_sub,
    aten.mul.Tensor: _binary("*"),
    aten.mul.Scalar: _binary("*"),
    aten.div.Tensor: _binary("/"),
    aten.div.Scalar: _binary("/"),
    aten.addcmul.default: _add_product("*"),
    aten.addcdiv.default: _add_product("/"),
    aten.reciprocal.default: lambda a: f"(1.0 / {a})",
    aten.neg.default: lambda a: f"(-{a})",
    aten.abs.default: lambda a: f"tl.abs({a})",
    aten.sign.default: lambda a: f"tl.where({a} > 0, 1.0, tl.where({a} < 0, -1.0, 0.0))",
    aten.copysign.Tensor: _copy_sign,
    aten.sqrt.default: lambda a: f"tl.sqrt({a})",
    aten.rsqrt.default: lambda a: f"(1.0 / tl.sqrt({a}))",
    aten.square.default: lambda a: f"({a} * {a})",
    aten.pow.Tensor_Scalar: _power,
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.clamp_min.default: _extreme("maximum"),
    aten.clamp_max.default: _extreme("minimum"),
    aten.maximum.default: _extreme("maximum"),
    aten.minimum.default: _extreme("minimum"),
    aten.where.self: lambda at, a, b: f"tl.where({at}, {a}, {b})",
    aten.bitwise_and.Tensor: _binary("&"),
    aten.bitwise_or.Tensor: _binary("|"),
    aten.bitwise_not.default: lambda a: f"({a} == 0)",
    aten.logical_not.default: lambda a: f"({a} == 0)",
    aten.zeros_like.default: _constant("0.0"),
    aten.ones_like.default: _constant("1.0"),
    aten.full_like.default: lambda _, value, **__: value,
    aten.scalar_tensor.default: lambda value, *_, **__: value,
    aten.expand.default: _same,
    aten.view.default: _same,
    aten.clone.default: _same,
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten._to_copy.default: _same,
}
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    for _kind in ("Tensor", "Scalar"):
        _PRINTERS[getattr(getattr(aten, _name), _kind)] = _binary(_sign)


_FLOATS = {  # which have no text for other types
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.scalar_tensor.default,
    aten._to_copy.default,
}


def _print(node: GraphNode, name: Callable[[GraphNode], str]) -> str:
    """Return an operation as text, or an empty text."""

    def word(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return name(value)
        if not isinstance(value, int | float):
            return value
        return repr(float(value)) if isfinite(value) else f'float("{float(value)}")'

    return _PRINTERS[node.target](*map(word, node.args), **node.kwargs)
