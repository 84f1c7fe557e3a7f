"""Products that are computed by the kernel that uses them, so that they are never written.

A gradient of a large layer is a product with a short sum (the batch): as large as the weights, and
cheap to compute. What a local step does with it is elementwise: it shifts it, moves the weights,
adds to a sum. `take_epilogues` takes such operations, the epilogue of a product, out of the graph
of a step, up to the buffers that they change. The graph then returns the product's factors, and a
kernel computes product and epilogue tile by tile (`kernels.update`). Sums over a client's numbers,
and values that other operations need as a whole, such as the trial point of a line search, become
calls of `sum_products` and `write_products` inside the graph, since what follows depends on them.

A product that is itself needed as a whole remains with the compiler.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

from . import kernels
from .epilogue import Epilogue, has_text, is_elementwise, known_dtype, known_shape
from .graphs import (
    GraphNode,
    add_call,
    aten,
    canonical_strides,
    finish,
    mutated_nodes,
    output_node,
    placeholders,
    storage_node,
    traced_shape,
)
from .rewrite import FACTOR_DTYPES, MIN_FACTORED


@dataclass(frozen=True)
class Update:
    """An epilogue that changes arguments of a graph, after the graph has been called.

    Args:
        epilogue: What is written, in the order of `targets`.
        targets: Indices of the graph's arguments that are changed.
        matrices: Indices of the arguments that are read.
        start: Index of its first number among the graph's results: the factors, then `scalars`.
    """

    epilogue: Epilogue
    targets: tuple[int, ...]
    matrices: tuple[int, ...]
    start: int

    def __call__(self, given: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Change the targets among the graph's arguments, with the results of its call."""
        count, some = self.epilogue.products, list(results[self.start :])
        factors, scalars = (
            some[: 2 * count],
            some[2 * count : 2 * count + len(self.epilogue.booleans)],
        )
        pairs = list(zip(factors[::2], factors[1::2], strict=True))
        matrices = [given[k] for k in self.matrices]
        kernels.update([given[k] for k in self.targets], self.epilogue, pairs, matrices, scalars)


_KNOWN: dict[str, Epilogue] = {}  # of the operations below, by key


@torch.library.custom_op("tunefree::sum_products", mutates_args=())
def sum_products(
    key: str, factors: list[Tensor], matrices: list[Tensor], scalars: list[Tensor]
) -> Tensor:
    """Return the sums (m,) over each client's numbers of an epilogue with one value."""
    pairs = list(zip(factors[::2], factors[1::2], strict=True))
    return kernels.sum_products(_KNOWN[key], pairs, matrices, scalars)


@sum_products.register_fake
def _(key: str, factors: list[Tensor], *_: object) -> Tensor:
    return factors[0].new_empty(len(factors[0]), dtype=torch.float32)


@torch.library.custom_op("tunefree::write_products", mutates_args=())
def write_products(
    key: str, factors: list[Tensor], matrices: list[Tensor], scalars: list[Tensor], low: bool
) -> Tensor:
    """Return the only value (m, o, i) of an epilogue, in bfloat16 with `low`."""
    pairs = list(zip(factors[::2], factors[1::2], strict=True))
    out = _empty_product(factors, low)
    kernels.update([out], _KNOWN[key], pairs, matrices, scalars)
    return out


@write_products.register_fake
def _(key: str, factors: list[Tensor], matrices: object, scalars: object, low: bool) -> Tensor:
    return _empty_product(factors, low)


def _empty_product(factors: list[Tensor], low: bool) -> Tensor:
    shape = (*factors[0].shape[:2], factors[1].shape[2])
    return factors[0].new_empty(shape, dtype=torch.bfloat16 if low else torch.float32)


def take_epilogues(graph: GraphModule, max_terms: int) -> list[Update]:
    """Take the epilogues of large products out of the graph of a step.

    Args:
        graph: Takes and returns a list of tensors; changed in place. What is taken out is returned
            as updates, and the tensors that these need are added to the results.
        max_terms: Largest number of terms of a product's sums.

    Returns:
        The updates, which are to follow each call of the graph in this order.
    """
    _replace_in_place(graph)
    ends = _find_products(graph, max_terms)
    order = {node: k for k, node in enumerate(graph.graph.nodes)}
    taken: set[GraphNode] = set()
    regions: list[_Region] = []
    for end in ends:
        if end in taken:
            continue
        region = _Region(graph, ends, order, traced_shape(end))
        try:
            region.grow(end)
            region.complete()
        except _NotFusibleError:
            continue
        region = region.with_neighbours()
        changed = {target for other in regions for target in other.targets}
        if changed & region.matrix_arguments:
            continue
        taken |= region.products
        regions.append(region)
    given = {node: k for k, node in enumerate(placeholders(graph))}
    for region in regions:
        for node in region.results:
            region.replace(node)
    made = []
    results = [r for r in output_node(graph).args[0] if r is not None]
    for region in regions:
        if not region.copies:
            continue
        found = region.slice([copy.args[1] for copy in region.copies])
        written, read = (
            tuple(given[node] for node in some) for some in (region.targets, found.matrices)
        )
        made.append(Update(found.epilogue, written, read, len(results)))
        results += [*found.factors, *(region.keep(e) for e in found.scalars)]
    for region in regions:
        for copy in reversed(region.copies):
            graph.graph.erase_node(copy)
    if regions:
        output_node(graph).args = (results,)
        finish(graph)
    return made


class _NotFusibleError(Exception):
    """A product has a use that no epilogue has."""


def _replace_in_place(graph: GraphModule) -> None:
    """Replace operations that change an intermediate result by those that return a new one."""
    order = {node: k for k, node in enumerate(graph.graph.nodes)}
    for node in graph.graph.nodes:
        name, overload = _names(node.target)
        plain = getattr(getattr(aten, name.removesuffix("_"), None), overload, None)
        if not name.endswith("_") or not is_elementwise(plain):
            continue
        changed = node.args[0]
        if changed.op == "placeholder" or storage_node(changed) is not changed:
            continue
        kinds = {known_dtype(n) for n in node.all_input_nodes if known_shape(n) != ()}
        if kinds != {known_dtype(changed)}:
            continue  # the new one might have another type
        aliases = [user for user in changed.users if user is not node]
        if any(order[user] > order[node] or storage_node(user) is changed for user in aliases):
            continue
        node.target = plain


def _names(target: Any) -> tuple[str, str]:
    """Return the name and the overload of an operation of PyTorch, or empty texts."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.name.startswith("aten::"):
        return "", ""
    return schema.name.removeprefix("aten::"), schema.overload_name or "default"


@dataclass
class _Slice:
    """An epilogue and the nodes of the whole graph that are its operands."""

    epilogue: Epilogue
    factors: list[GraphNode]
    matrices: list[GraphNode]
    scalars: list[GraphNode]


def _find_products(
    graph: GraphModule, max_terms: int
) -> dict[GraphNode, tuple[GraphNode, GraphNode, bool]]:
    """Return the large products with short sums: (left, right, transposed), by their last node."""
    found = {}
    changed = mutated_nodes(graph)
    for node in graph.graph.nodes:
        if node.target is not aten.bmm.default or prod(traced_shape(node)[1:]) < MIN_FACTORED:
            continue
        if traced_shape(node.args[0])[2] > max_terms:
            continue
        if any(side.meta["tensor_meta"].dtype not in FACTOR_DTYPES for side in node.args):
            continue
        if changed & {storage_node(side) for side in node.args}:
            continue
        end, transposed = node, False
        while len(end.users) == 1:
            (user,) = end.users
            if user.target is aten.transpose.int and sorted(d % 3 for d in user.args[1:]) == [1, 2]:
                transposed = not transposed
            elif user.target is not aten._to_copy.default:
                break
            end = user
        if end.meta["tensor_meta"].dtype == torch.float32:
            found[end] = (*node.args, transposed)
    return found


@dataclass
class _Region:
    """Products, the operations that depend on them, and what those read and change."""

    graph: GraphModule
    ends: dict[GraphNode, tuple[GraphNode, GraphNode, bool]]
    order: dict[GraphNode, int]
    shape: tuple[int, ...]
    products: set[GraphNode] = field(default_factory=set)
    members: set[GraphNode] = field(default_factory=set)  # operations that are taken out
    matrices: set[GraphNode] = field(default_factory=set)  # arguments that are read
    copies: list[GraphNode] = field(default_factory=list)  # what changes arguments
    results: list[GraphNode] = field(default_factory=list)  # of which the graph needs the value

    @property
    def targets(self) -> list[GraphNode]:
        """The arguments that are changed."""
        return [copy.args[0] for copy in self.copies]

    @property
    def matrix_arguments(self) -> set[GraphNode]:
        """All arguments that are read or changed."""
        return self.matrices | set(self.targets)

    def grow(self, end: GraphNode) -> None:
        """Add a product and all that depends on it, or raise `_NotFusibleError`."""
        todo = [end]
        self.products.add(end)
        while todo:
            node = todo.pop()
            for user in node.users:
                if user.target is aten.copy_.default:
                    self._add_copy(user)
                elif _is_matrix_sum(user) or self._is_low(user):
                    self._add_result(user)
                elif user not in self.members:
                    try:
                        self._check_member(user)
                    except _NotFusibleError:
                        self._add_result(node)
                    else:
                        self.members.add(user)
                        todo.append(user)
            for before in node.all_input_nodes if node in self.members else ():
                todo += self._add_operand(before)

    def _add_result(self, node: GraphNode) -> None:
        """Add a value that the graph needs; a product itself is none that is worth it."""
        if node in self.products or known_dtype(node) is torch.bool:
            raise _NotFusibleError
        if node not in self.results:
            self.results.append(node)

    def _is_low(self, node: GraphNode) -> bool:
        """Return whether a node casts a value to bfloat16."""
        return node.target is aten._to_copy.default and known_dtype(node) is torch.bfloat16

    def _add_copy(self, copy: GraphNode) -> None:
        """Add a change of an argument, and those that read it afterwards: copies in bfloat16."""
        target, shape = copy.args[0], known_shape(copy.args[0])
        if target.op != "placeholder" or shape != self.shape or not _is_contiguous(target):
            raise _NotFusibleError
        if copy not in self.copies:
            self.copies.append(copy)
        for after in copy.users:
            if after.target is not aten.copy_.default or after.args[1] is not copy:
                raise _NotFusibleError
            self._add_copy(after)

    def _check_member(self, node: GraphNode) -> None:
        """Raise `_NotFusibleError` unless a kernel has this operation."""
        fits = known_shape(node) in (self.shape, (1, *self.shape[1:]))
        if not has_text(node) or not (fits or node.target is aten.scalar_tensor.default):
            raise _NotFusibleError

    def _add_operand(self, node: GraphNode) -> list[GraphNode]:
        """Add what an operation reads; return the products that are new, for `grow`."""
        if node in self.members or node in self.products or node in self.matrices:
            return []
        if node in self.ends:
            if known_shape(node) != self.shape:
                raise _NotFusibleError
            self.products.add(node)
            return [node]
        if self._is_each(node):
            return []
        if node.op == "placeholder":
            if known_shape(node) not in (self.shape, (1, *self.shape[1:])):
                raise _NotFusibleError
            if not _is_contiguous(node) or known_dtype(node) is not torch.float32:
                raise _NotFusibleError
            self.matrices.add(node)
            return []
        self._check_member(node)  # computed again, where others use it too
        found = []
        for before in node.all_input_nodes:
            found += self._add_operand(before)
        return found

    def _is_each(self, node: GraphNode) -> bool:
        """Return whether a node has one number per client, or one for all."""
        if node.target is aten.scalar_tensor.default:
            return False
        shape, kind = known_shape(node), known_dtype(node)
        if shape is None or not (kind.is_floating_point or kind is torch.bool):
            return False
        fits = prod(shape) == 1 or (len(shape) == 3 and shape[1:] == (1, 1))
        return fits and _device(node) == _device(next(iter(self.products)))

    def with_neighbours(self) -> "_Region":
        """Return the region with other changes that read what it reads, where they can be added."""
        region = self
        for node in self.graph.graph.nodes:
            if node.target is not aten.copy_.default or node in region.copies:
                continue
            wider = replace(
                region,
                products=set(region.products),
                members=set(region.members),
                matrices=set(region.matrices),
                copies=list(region.copies),
                results=list(region.results),
            )
            try:
                wider.add_change(node)
                wider.complete()
            except _NotFusibleError:
                continue
            if region.matrices & set(wider.slice([node.args[1]]).matrices):
                region = wider
        return region

    def add_change(self, copy: GraphNode) -> None:
        """Add a change of an argument and what it depends on, or raise `_NotFusibleError`."""
        self._add_copy(copy)
        for product in self._add_operand(copy.args[1]):
            self.grow(product)

    def complete(self) -> None:
        """Add the changes of what is read; raise unless the kernels may run after the graph."""
        seen = -1
        while seen != len(self.copies):
            seen = len(self.copies)
            for node in self.graph.graph.nodes:
                if node.target is not aten.copy_.default or node in self.copies:
                    continue
                if node.args[0] in self.matrices:
                    self.add_change(node)
        if len(set(self.targets)) < len(self.copies):
            raise _NotFusibleError
        when = {copy.args[0]: self.order[copy] for copy in self.copies}
        if any(self.order[node] > at for node in self.results for at in when.values()):
            raise _NotFusibleError
        for node in self.graph.graph.nodes:
            if node.op != "call_function" or node in self.copies:
                continue
            for argument in node.all_input_nodes:
                if self.order[node] > when.get(storage_node(argument), self.order[node]):
                    raise _NotFusibleError  # it reads what is changed
            schema = getattr(node.target, "_schema", None)
            changes = schema is not None and schema.is_mutable
            if changes and storage_node(node.args[0]) in self.matrix_arguments:
                raise _NotFusibleError

    def slice(self, values: Sequence[GraphNode]) -> _Slice:
        """Return the epilogue with these values."""
        values = [self._skip_copies(value) for value in values]
        needed: set[GraphNode] = set()
        todo = list(values)
        while todo:
            node = todo.pop()
            if node not in needed:
                needed.add(node)
                todo += [] if self._is_leaf(node) else node.all_input_nodes
        some = sorted(needed, key=self.order.__getitem__)
        products = [n for n in some if n in self.products]
        matrices = [n for n in some if n in self.matrices]
        scalars = [n for n in some if self._is_leaf(n) and n not in self.products | self.matrices]
        inner, here = Graph(), dict[GraphNode, GraphNode]()
        for node in (*products, *matrices, *scalars):
            here[node] = inner.placeholder(f"arg{len(here)}")
        for node in some:
            if node not in here:
                here[node] = inner.node_copy(node, here.__getitem__)
        inner.output([here[value] for value in values])
        per_client = tuple(traced_shape(n)[0] == self.shape[0] for n in matrices)
        whole = GraphModule({}, inner)
        factors = [side for n in products for side in self._factors(n)]
        booleans = tuple(known_dtype(n) is torch.bool for n in scalars)
        return _Slice(
            Epilogue(whole, len(products), per_client, booleans), factors, matrices, scalars
        )

    def _is_leaf(self, node: GraphNode) -> bool:
        return node in self.products or node in self.matrices or self._is_each(node)

    def _skip_copies(self, value: GraphNode) -> GraphNode:
        while value.target is aten.copy_.default:
            value = value.args[1]
        return value

    def _factors(self, end: GraphNode) -> tuple[GraphNode, GraphNode]:
        """Return the factors (m, o, k) and (m, k, i) of a product."""
        left, right, transposed = self.ends[end]
        if not transposed:
            return left, right
        with self.graph.graph.inserting_after(max(left, right, key=self.order.__getitem__)):
            first = add_call(self.graph, aten.transpose.int, right, 1, 2)
            return first, add_call(self.graph, aten.transpose.int, left, 1, 2)

    def replace(self, node: GraphNode) -> None:
        """Compute a result by a call of `sum_products` or `write_products`."""
        is_sum, is_low = _is_matrix_sum(node), self._is_low(node)
        found = self.slice([node.args[0] if is_sum or is_low else node])
        _KNOWN[found.epilogue.key] = found.epilogue
        operands = (found.epilogue.key, found.factors, found.matrices, found.scalars)
        own = torch.ops.tunefree
        with self.graph.graph.inserting_before(node):
            if is_sum:
                call = add_call(self.graph, own.sum_products.default, *operands)
            else:
                call = add_call(self.graph, own.write_products.default, *operands, is_low)
        call.meta = node.meta
        self.order[call] = self.order[node]
        inside = {*self.members, *self.results, *self.copies}
        node.replace_all_uses_with(call, delete_user_cb=lambda user: user not in inside)

    def keep(self, node: GraphNode) -> GraphNode:
        """Return a node with the numbers of this one, which no later operation changes."""
        if storage_node(node).op != "placeholder":
            return node
        after = placeholders(self.graph)[-1] if node.op == "placeholder" else node
        with self.graph.graph.inserting_after(after):
            return add_call(self.graph, aten.clone.default, node)


def _device(node: GraphNode) -> torch.device | None:
    value = node.meta.get("val")
    return None if value is None else value.device


def _is_contiguous(node: GraphNode) -> bool:
    meta = node.meta["tensor_meta"]
    dense = [prod(meta.shape[k + 1 :]) for k in range(len(meta.shape))]
    found: bool = canonical_strides(meta.shape, meta.stride) == canonical_strides(meta.shape, dense)
    return found


def _is_matrix_sum(node: GraphNode) -> bool:
    """Return whether a node is the sum over all axes of (m, o, i) but the first."""
    if node.target is not aten.sum.dim_IntList or node.kwargs or len(node.args) != 2:
        return False
    return sorted(d % 3 for d in node.args[1]) == [1, 2]
