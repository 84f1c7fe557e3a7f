"""A federation: all clients' samples in one set of tensors, sorted by client.

Rows are reordered once so that client i owns rows starts[i] .. starts[i] + sizes[i] - 1, in the
order in which they were given. Batches are then index tensors, and clients of different sizes need
no padding.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ArgumentError, DataError, check_between, check_int, check_known
from ..core.random import bits, key
from ..core.types import MAX_CLASSES, Array, Inputs, Samples, map_inputs
from . import arrays
from .arrays import Label, bad_input, read_samples, select_rows
from .tables import Features, Table, read_table

TestBy = Literal["rows", "clients"]

MAX_SHOWN = 1024  # classes in a picture
MAX_CELLS = 1 << 28  # entries of a table of clients and classes


class Federation:
    """Samples, and the client that owns each.

    Inputs are arrays or tensors, tuples or dicts of them, or a table: a frame of pandas or polars,
    or a Hugging Face dataset, whose columns of text or categories become columns of 0 and 1.
    Targets in one axis that are text, bools or integers are classes; they are stored as int64, as
    torch's losses expect, and `labels` holds their own names. Other tensors keep their dtype until
    `to`. Arrays already in client order are shared, not copied.

    Args:
        x: Inputs; the first axis counts samples. Without `owner`, one part per client, as in `of`.
        y: Targets, one row per sample, or the name of their column (or of several) if x is a table.
        owner: Client of each sample, integers or strings, or the name of their column; clients are
            sorted by it.
        test: The common test set: inputs and targets, or a table with the columns of x; or the
            fraction of each client's rows that becomes it, as in `with_test`.
        held: Inputs and targets that the server holds, in the same forms.
        test_owner: Owner of each test sample; one that owns no training samples becomes id -1.
        sample_weight: Weight of each sample in training, or the name of their column; only ratios
            matter.
        classes: Number of classes, or their labels in the order of the model's outputs. By default
            the largest integer seen, plus 1; text, bools and negative integers are sorted.
        clients: Number of clients N; owners must then be 0 .. N-1, each with a sample.
        name: The data's name in tables and reports.

    Attributes:
        sizes: Samples of each client, (N,).
        starts: First row of each client, (N,).
        names: The owner label of each client.
        labels: The label of each class, None if classes are 0 .. classes - 1 as given.
        features: The columns of the table that x was, and how they are encoded.
        target_name: The name of the targets in samples that are dicts, if `of` was given one.

    >>> fed = Federation([[1.0], [2.0], [3.0]], ["no", "yes", "yes"], owner=["b", "a", "b"])
    >>> fed.names, fed.sizes.tolist(), fed.x.flatten().tolist()
    (('a', 'b'), [1, 2], [2.0, 1.0, 3.0])
    >>> fed.labels, fed.y.tolist()
    (('no', 'yes'), [1, 0, 1])
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        owner: Any = None,
        *,
        test: Any = None,
        held: Any = None,
        test_owner: Any = None,
        sample_weight: Any = None,
        classes: int | Sequence[Label] | None = None,
        clients: int | None = None,
        name: str = "custom",
    ) -> None:
        if owner is None:
            is_named = y is None or isinstance(y, str)
            unused = (test_owner, sample_weight, clients)
            has_parts = isinstance(x, Mapping | Sequence) and read_table(x) is None
            if not (has_parts and is_named and all(one is None for one in unused)):
                remedy = "; owner=np.arange(len(x)) % 10 divides rows without owners among 10"
                if has_parts and is_named:
                    remedy = ", which is for one part per client, as in Federation.of"
                raise bad_input("owner", f"name the client of each sample, got None{remedy}")
            parts = {"test": test, "held": held, "classes": classes, "name": name}
            self.__dict__.update(self.of(x, y=y, **parts).__dict__)
            return
        others, self.features = {"test": test, "held": held}, None
        if (table := read_table(x)) is not None:
            y = table.target_name() if y is None else y
            names = [v for v in (y, owner, sample_weight) if isinstance(v, str)]
            values = {name: table.column(name, "x") for name in names}
            names += [] if isinstance(y, str) or not table.has_names(y) else y
            target = table.targets(y, "x")
            self.features = Features.find(table, names)
            tested = read_table(test)
            if tested is not None and test_owner is None and isinstance(owner, str):
                test_owner = tested.column(owner, "test") if owner in tested.columns else None
            others = {of: self._read_set(value, of, y) for of, value in others.items()}
            x, y = self.features.encode(table), target
            owner = values[owner] if isinstance(owner, str) else owner
            if isinstance(sample_weight, str):
                sample_weight = values[sample_weight]
        self._fill([("", (x, y))], owner, others, classes, name, clients, test_owner, sample_weight)

    def _fill(
        self,
        parts: Sequence[tuple[str, tuple[Any, Any]]],
        owner: Any,
        others: Mapping[str, Any],
        classes: int | Sequence[Label] | None,
        name: str,
        clients: int | None = None,
        test_owner: Any = None,
        sample_weight: Any = None,
    ) -> None:
        """Set everything but `features` from arrays: of clients, by title, or of all under ""."""
        self.name, test = name, others["test"]
        self.target_name: str | None = None
        fraction = test if isinstance(test, float) else None
        sets = [
            (of, _as_two(value, of))
            for of, value in others.items()
            if value is not None and (of != "test" or fraction is None)
        ]
        self.labels = _as_label_list(classes)
        if classes is None:
            self.labels = arrays.find_labels([pair[1] for _, pair in (*parts, *sets)])
        read = []
        for of, (x, y) in (*parts, *sets):
            y = y if self.labels is None else arrays.number_labels(y, self.labels, of)
            read.append((of, arrays.as_pair(x, y, of)))
        pairs = [pair for _, pair in read[: len(parts)]]
        for of, pair in read[: len(parts)]:
            arrays.check_match(pair, pairs[0], of, parts[0][0])
        x, y = pairs[0]
        if len(pairs) > 1:
            x, y = arrays.concatenate([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
        self.x, self.y = x, y
        found: dict[str, Samples] = dict(read[len(parts) :])
        for of, pair in found.items():
            arrays.check_match(pair, (x, y), of, "the training data")
        self.test, self.held = found.get("test"), found.get("held")
        owners = arrays.as_labels(owner, "owner", len(y))
        if clients is None:
            unique, ids = np.unique(owners, return_inverse=True)
        else:
            unique, ids = np.arange(clients), arrays.as_ids(owners, clients)
        sizes = torch.from_numpy(np.bincount(ids, minlength=len(unique)))
        if not bool(sizes.all()):
            empty = f"client {int((sizes == 0).nonzero()[0])} has no samples"
            remedy = f"lower clients={clients} or give it one"
            raise bad_input("owner", f"give every client a sample, but {empty}; {remedy}")
        self.sizes, self.starts = sizes, sizes.cumsum(0) - sizes
        self.names: tuple[int | str, ...] = tuple(unique.tolist())
        count = len(self.labels) if self.labels is not None else classes
        self.classes = self._classes(count)  # type: ignore[arg-type]
        self.test_owner = None if test_owner is None else self._test_ids(test_owner, unique)
        self.sample_weight = None
        if sample_weight is not None:
            self.sample_weight = arrays.as_weights(sample_weight, len(y))
        if (np.diff(ids) < 0).any():  # last, so that errors above name rows as they were given
            order = torch.from_numpy(np.argsort(ids, kind="stable"))
            self.x, self.y = select_rows((x, y), order)
            if self.sample_weight is not None:
                self.sample_weight = self.sample_weight[order]
        if fraction is not None:
            self.__dict__.update(self.with_test(fraction).__dict__)

    @classmethod
    def of(
        cls,
        parts: Iterable[Any] | Mapping[Any, Any],
        *,
        y: str | None = None,
        test: Any = None,
        held: Any = None,
        classes: int | Sequence[Label] | None = None,
        name: str = "custom",
    ) -> Self:
        """Join one part per client.

        Args:
            parts: For each client a pair (x, y) of arrays, a table, a map-style Dataset or a
                DataLoader of (x, y) samples; a list, or a dict by the clients' names.
            y: The name of the column of targets, for tables and for samples that are dicts; by
                default "label" or "labels".
            test: The common test set, in any of these forms, or the fraction of each client's rows.
            held: The server's own sample, in any of these forms.
            classes: Number of classes, or their labels, as in the class itself.
            name: The data's name in tables and reports.

        >>> Federation.of({"a": ([[1.0]], ["no"]), "b": ([[2.0], [3.0]], ["yes", "no"])}).names
        ('a', 'b')
        """
        names: tuple[int | str, ...] | None = None
        if isinstance(parts, Mapping):
            names = tuple(n if isinstance(n, int | str) else str(n) for n in parts)
        values = list(parts.values() if isinstance(parts, Mapping) else parts)
        titles = [f"client {i if names is None else repr(names[i])}" for i in range(len(values))]
        if not values:
            raise DataError("Federation.of(parts=...) must hold at least one client, got none.")
        read = [read_samples(v, title, y) for v, title in zip(values, titles, strict=True)]
        owner = np.repeat(
            np.arange(len(read)), [len(p) if isinstance(p, Table) else len(p[1]) for p in read]
        )
        pairs = [part for part in read if isinstance(part, tuple)]
        inside = [part if isinstance(part, Table) else read_table(part[0]) for part in read]
        tables = [table for table in inside if table is not None]
        if tables:
            if len(tables) < len(read) or 0 < len(pairs) < len(read):
                raise DataError(
                    "Federation.of(parts=...) must hold tables for all clients or none."
                )
            target: Any = np.concatenate([np.asarray(t) for _, t in pairs]) if pairs else y
            sets: dict[str, Any] = {"test": test, "held": held, "classes": classes, "name": name}
            fed = cls(Table.concatenate(tables), target, owner, **sets)
        else:
            sets = {"test": test, "held": held}
            for of, value in sets.items():
                if value is not None and not isinstance(value, float):
                    sets[of] = read_samples(value, of, y)
                if isinstance(sets[of], Table):
                    like = "must be as the clients' data, got a table"
                    raise DataError(f"Federation.of: {of} {like}.")
            fed = cls.__new__(cls)
            fed.features = None
            fed._fill(list(zip(titles, pairs, strict=True)), owner, sets, classes, name)
        fed.target_name = y
        return fed if names is None else fed.replace(names=names)

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        return len(self.sizes)

    @property
    def samples(self) -> int:
        """Number of training samples of all clients together."""
        return len(self.y)

    def client(self, i: int) -> Samples:
        """Return the inputs and targets of client i."""
        if not 0 <= i < self.clients:
            last = self.clients - 1
            raise ArgumentError(f"Federation.client(i=...) must be in 0..{last}, got {i!r}.")
        start, size = int(self.starts[i]), int(self.sizes[i])
        return map_inputs(lambda t: t[start : start + size], self.x), self.y[start : start + size]

    def owners(self) -> Tensor:
        """Return the client id of each row, (samples,)."""
        return torch.repeat_interleave(self.sizes)

    def label_counts(self) -> Tensor:
        """Return how often each client has each class, (N, classes)."""
        if self.classes is None:
            raise DataError(
                f"Federation.label_counts() needs class labels, but y of {self.name!r} is "
                f"{self.y.dtype} of shape {tuple(self.y.shape)}; give integers in one axis."
            )
        if self.clients * self.classes > MAX_CELLS:
            size = f"{self.clients} clients and {self.classes} classes"
            raise DataError(f"Federation.label_counts() would have too many entries, for {size}.")
        cell = self.owners().to(self.y.device) * self.classes + self.y
        return torch.bincount(cell, minlength=self.clients * self.classes).view(self.clients, -1)

    def picture(self, limit: int = 100) -> dict[str, list[Any]]:
        """Return sizes and label counts of at most `limit` evenly spaced clients, as plain lists.

        `clients` are their names, `sizes` their numbers of samples, and `labels` (for
        classification with up to 1,024 classes) how often each has each class.
        """
        count = min(limit, self.clients)
        ids = torch.arange(count) * (self.clients - 1) // max(count - 1, 1)
        names = [self.names[i] for i in ids.tolist()]
        out: dict[str, list[Any]] = {"clients": names, "sizes": self.sizes[ids].tolist()}
        if self.classes is not None and self.classes <= MAX_SHOWN:
            targets = (self.client(i)[1] for i in ids.tolist())
            out["labels"] = [torch.bincount(y, minlength=self.classes).tolist() for y in targets]
        return out

    def with_test(self, fraction: float, by: TestBy = "rows", seed: int = 0) -> Self:
        """Return the federation with a test set that is split off its training samples.

        Args:
            fraction: Fraction of the rows, or of the clients.
            by: "rows" takes the fraction of each client's rows, as `hold_out` does; "clients" takes
                all rows of that fraction of the clients, which then are not in training.
            seed: Seed of the choice.

        >>> fed = Federation([[float(i)] for i in range(9)], [0, 1, 0] * 3, list("aaabbbccc"))
        >>> fed.with_test(0.3).test_owner.tolist(), fed.with_test(0.3, by="clients").clients
        ([0, 1, 2], 2)
        """
        check_between("Federation.with_test", "fraction", fraction, 0, 1)
        check_known("by", by, get_args(TestBy))
        if self.test is not None:
            raise DataError("Federation.with_test splits off a test set, but there is one already.")
        if by == "rows":
            taken = self.choose_rows(fraction, seed)
            rest, owner = self._take(~taken), self.owners()[taken]
        else:
            count = min(max(round(fraction * self.clients), 1), self.clients - 1)
            if count < 1:
                raise DataError(
                    "Federation.with_test(by='clients') needs at least two clients, got one."
                )
            chosen = torch.argsort(bits(key(seed, "test"), torch.arange(self.clients)))[:count]
            taken = torch.isin(self.owners(), chosen)
            rest, owner = self._take(~taken), None
        return rest.replace(
            test=select_rows((self.x, self.y), taken.nonzero()[:, 0]), test_owner=owner
        )

    def hold_out(self, fraction: float, seed: int = 0) -> tuple[Self, Samples]:
        """Split a validation set off every client's samples; return the rest and the set.

        Each client gives round(fraction * n_i) of its samples but keeps at least one. The choice
        depends on the seed and the client's id only.

        >>> fed = Federation([[float(i)] for i in range(10)], [0] * 10, [0] * 6 + [1] * 4)
        >>> rest, (x, y) = fed.hold_out(0.5, seed=0)
        >>> rest.sizes.tolist(), len(y)
        ([3, 2], 5)
        """
        check_between("Federation.hold_out", "fraction", fraction, 0, 1)
        taken = self.choose_rows(fraction, seed)
        return self._take(~taken), select_rows((self.x, self.y), taken.nonzero().squeeze(1))

    def choose_rows(self, fraction: float, seed: int = 0) -> Tensor:
        """Return which rows `hold_out` takes, (samples,)."""
        give = count_held(self.sizes, fraction)
        if not bool(give.any()):
            raise DataError(
                f"A fraction of {fraction!r} takes no sample from any of the {self.clients} "
                "clients; use a larger one."
            )
        ids = self.owners()
        position = torch.arange(self.samples, device=ids.device) - self.starts[ids]
        draws = bits(key(seed, "hold-out", ids), position)
        order = torch.argsort(draws, stable=True)
        order = order[torch.argsort(ids[order], stable=True)]  # shuffled within each client
        taken = torch.zeros_like(ids, dtype=torch.bool)
        taken[order] = position < give[ids]
        return taken

    def _take(self, rows: Tensor) -> Self:
        """Return the federation of some rows; clients without any are left out."""
        sizes = torch.bincount(self.owners()[rows], minlength=self.clients)
        kept = sizes > 0
        x, y = select_rows((self.x, self.y), rows.nonzero().squeeze(1))
        names = tuple(n for n, keeps in zip(self.names, kept.tolist(), strict=True) if keeps)
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        sizes = sizes[kept]
        starts = sizes.cumsum(0) - sizes
        return self.replace(x=x, y=y, sizes=sizes, starts=starts, names=names, sample_weight=weight)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """Return the same data on a device, with every floating tensor in `dtype`.

        `sizes`, `starts` and `test_owner` stay on the CPU.
        """

        def move(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else None)

        return self._map(lambda x: map_inputs(move, x), move)

    def with_numbers(self) -> Self:
        """Return the federation with integer targets as they were given, instead of classes."""
        if self.labels is None or not all(type(label) is int for label in self.labels):
            return self
        values = torch.tensor(self.labels, device=self.y.device)
        return self._map(lambda x: x, lambda y: values[y], labels=None, classes=None)

    def with_classes(self, count: int) -> Self:
        """Return the federation with its integer labels numbered in order, if there are `count`.

        Otherwise, and if they are below `count`, they are classes as they are.
        """
        if self.classes is None or self.labels is not None or self.classes <= count:
            return self
        pairs = [pair for pair in (self.test, self.held) if pair is not None]
        found = np.unique(np.concatenate([y.cpu() for y in (self.y, *(p[1] for p in pairs))]))
        if len(found) != count:
            return self
        order = torch.from_numpy(found)
        return self._map(
            lambda x: x,
            lambda y: torch.searchsorted(order.to(y.device), y),
            labels=tuple(found.tolist()),
            classes=count,
        )

    def map_x(self, f: Callable[[Inputs], Inputs]) -> Self:
        """Return the federation with `f` applied to the inputs of all its sets."""
        return self._map(f, lambda y: y)

    def _map(
        self, f: Callable[[Inputs], Inputs], g: Callable[[Tensor], Tensor], **changes: Any
    ) -> Self:
        """Return the federation with `f` of the inputs and `g` of the targets of all its sets."""
        pairs = {"test": self.test, "held": self.held}
        moved = {n: None if p is None else (f(p[0]), g(p[1])) for n, p in pairs.items()}
        return self.replace(x=f(self.x), y=g(self.y), **moved, **changes)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some attributes, which must fit the others."""
        other = copy.copy(self)
        other.__dict__.update(changes)
        return other

    def digest(self) -> str:
        """Return a digest of the data, 16 hex digits; it does not depend on the device.

        It reads every shape, dtype, client size and target, but only a few hundred evenly spaced
        rows of each input, so that it is fast for large data.
        """
        total = hashlib.sha256()
        for pair in ((self.x, self.y), self.test, self.held):
            arrays.update_digest(total, pair)
        total.update(str(self.sizes.tolist()).encode())
        if self.sample_weight is not None:
            total.update(self.sample_weight.numpy().tobytes())
        return total.hexdigest()[:16]

    def __repr__(self) -> str:
        facts = arrays.describe_set(self.samples, self.classes, self.test)
        return f"Federation({self.name!r}, {self.clients} clients, {facts})"

    def _read_set(self, value: Any, of: str, y: Any) -> Any:
        """Return another set of a federation whose inputs are a table, as a pair."""
        assert self.features is not None
        if (table := read_table(value)) is not None:
            if not table.has_names(y):
                raise bad_input(of, "be a pair (table, targets), as y is no column's name")
            return self.features.encode(table), table.targets(y, of)
        if isinstance(value, Sequence) and len(value) == 2:
            inside = read_table(value[0])
            return (value[0] if inside is None else self.features.encode(inside)), value[1]
        return value

    def _classes(self, classes: int | None) -> int | None:
        """Return the number of classes, after checking labels; None if targets are not labels."""
        if classes is not None:
            check_int("Federation", "classes", classes, below=MAX_CLASSES)
        if not arrays.is_class(self.y):
            if classes is not None:
                raise DataError(
                    f"Federation(classes={classes!r}) needs integer labels in one axis, but y "
                    f"is {self.y.dtype} of shape {tuple(self.y.shape)}."
                )
            return None
        named = [("y", self.y)]
        named += [(f"y of {n}", p[1]) for n, p in (("test", self.test), ("held", self.held)) if p]
        count = classes or max(int(y.max()) for _, y in named) + 1
        if count > MAX_CLASSES:
            remedy = "number the classes from 0, or give floats for regression"
            raise bad_input(
                "y", f"hold labels below {MAX_CLASSES:,}, but has {count - 1}; {remedy}"
            )
        for what, y in named:
            wrong = ((y < 0) | (y >= count)).nonzero()
            if len(wrong):
                found = f"{what} has {int(y[wrong[0]])} in row {int(wrong[0])}"
                remedy = "number the classes from 0, or give floats for regression"
                raise bad_input("y", f"hold labels in 0..{count - 1}, but {found}; {remedy}")
        return count

    def _test_ids(self, test_owner: Any, unique: Array) -> Tensor:
        if self.test is None:
            raise DataError("Federation(test_owner=...) needs test=(x, y) as well, got test=None.")
        labels = arrays.as_labels(test_owner, "test_owner", len(self.test[1]))
        if labels.dtype.kind != unique.dtype.kind and "U" in (labels.dtype.kind, unique.dtype.kind):
            problem = "one of them holds strings and the other ints"
            raise bad_input("test_owner", f"use the labels of owner, but {problem}")
        place = np.searchsorted(unique, labels).clip(max=len(unique) - 1)
        return torch.from_numpy(np.where(unique[place] == labels, place, -1).astype(np.int64))


def count_held(sizes: Tensor, fraction: float) -> Tensor:
    """Return how many samples clients with these numbers give, if each gives a fraction."""
    return (sizes.double() * fraction).round().long().minimum(sizes - 1)


def _as_two(pair: Any, of: str) -> tuple[Any, Any]:
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise bad_input(of, f"be a pair (x, y), got {type(pair).__name__}")
    return pair[0], pair[1]


def _as_label_list(classes: int | Sequence[Label] | None) -> tuple[Label, ...] | None:
    """Return the labels of the classes if they were given, None for a number of classes."""
    if classes is None or isinstance(classes, int | np.integer):
        return None
    labels = tuple(classes) if isinstance(classes, Sequence | np.ndarray) else ()
    if not labels or isinstance(classes, str) or len(set(labels)) < len(labels):
        rule = "be a number of classes, or a list of different labels"
        raise bad_input("classes", f"{rule}, got {classes!r}")
    return labels
