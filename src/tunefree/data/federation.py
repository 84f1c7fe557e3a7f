"""A federation: all clients' samples in one set of tensors, sorted by client.

Rows are reordered once so that client i owns rows starts[i] .. starts[i] + sizes[i] - 1, in the
order in which they were given. Batches are then index tensors, and clients of different sizes need
no padding.
"""

import copy
import hashlib
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ArgumentError, DataError, check_between, check_int
from ..core.random import bits, key
from ..core.types import MAX_CLASSES, Pair, map_inputs
from . import _arrays
from ._arrays import Array, refusal, select_rows

MAX_SHOWN = 1024  # classes in a picture
MAX_CELLS = 1 << 28  # entries of a table of clients and classes


class Federation:
    """Samples, and the client that owns each.

    Integer targets in one axis are classes and are stored as int64, as torch's losses expect; other
    tensors keep their dtype until `to`. Arrays already in client order are shared, not copied.

    Args:
        x: Inputs: an array or tensor, or a tuple or dict of them; first axis counts samples.
        y: Targets, one row per sample; integers in one axis mean classes.
        owner: Client of each sample, integers or strings; clients are sorted by it.
        test: Inputs and targets of the common test set.
        held: Inputs and targets that the server holds.
        test_owner: Owner of each test sample; one that owns no training samples becomes id -1.
        classes: Number of classes; by default the largest label seen, plus 1.
        clients: Number of clients N; owners must then be 0 .. N-1, each with a sample.
        name: The data's name in tables and reports.

    Attributes:
        sizes: Samples of each client, (N,).
        starts: First row of each client, (N,).
        names: The owner label of each client.

    >>> fed = Federation([[1.0], [2.0], [3.0]], [0, 1, 1], owner=["b", "a", "b"])
    >>> fed.names, fed.sizes.tolist(), fed.x.flatten().tolist()
    (('a', 'b'), [1, 2], [2.0, 1.0, 3.0])
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        owner: Any,
        *,
        test: tuple[Any, Any] | None = None,
        held: tuple[Any, Any] | None = None,
        test_owner: Any = None,
        classes: int | None = None,
        clients: int | None = None,
        name: str = "custom",
    ) -> None:
        self.name = name
        self.x, self.y = x, y = _arrays.as_pair(x, y)
        labels = _arrays.as_labels(owner, "owner", len(y))
        if clients is None:
            unique, ids = np.unique(labels, return_inverse=True)
        else:
            unique, ids = np.arange(clients), _arrays.as_ids(labels, clients)
        sizes = torch.from_numpy(np.bincount(ids, minlength=len(unique)))
        if not bool(sizes.all()):
            empty = f"client {int((sizes == 0).nonzero()[0])} has no samples"
            remedy = f"lower clients={clients} or give it one"
            raise refusal("owner", f"give every client a sample, but {empty}; {remedy}")
        self.sizes, self.starts = sizes, sizes.cumsum(0) - sizes
        self.names: tuple[int | str, ...] = tuple(unique.tolist())
        self.test = _arrays.as_optional_pair(test, "test", (x, y))
        self.held = _arrays.as_optional_pair(held, "held", (x, y))
        self.classes = self._classes(classes)
        self.test_owner = None if test_owner is None else self._test_ids(test_owner, unique)
        if (np.diff(ids) < 0).any():  # last, so that errors above name rows as they were given
            self.x, self.y = select_rows((x, y), torch.from_numpy(np.argsort(ids, kind="stable")))

    @classmethod
    def of(
        cls,
        parts: Iterable[Any],
        *,
        test: Any = None,
        held: Any = None,
        classes: int | None = None,
        name: str = "custom",
    ) -> Self:
        """Join one torch Dataset, or one pair (x, y) of arrays, per client.

        Args:
            parts: For each client a map-style Dataset of (x, y) samples, or a pair of arrays.
            test: The common test set, in either form.
            held: The server's own sample, in either form.
            classes: Number of classes, as in the class itself.
            name: The data's name in tables and reports.

        >>> Federation.of([([[1.0]], [0]), ([[2.0], [3.0]], [1, 0])]).sizes.tolist()
        [1, 2]
        """
        pairs = [_arrays.materialize(part, f"client {i}") for i, part in enumerate(parts)]
        if not pairs:
            raise DataError("Federation.of(parts=...) must hold at least one client, got none.")
        for i, pair in enumerate(pairs):
            _arrays.check_match(pair, pairs[0], f"client {i}", "client 0")
        x, y = _arrays.concatenate(pairs)
        return cls(
            x,
            y,
            owner=np.repeat(np.arange(len(pairs)), [len(pair[1]) for pair in pairs]),
            test=None if test is None else _arrays.materialize(test, "test"),
            held=None if held is None else _arrays.materialize(held, "held"),
            classes=classes,
            name=name,
        )

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        return len(self.sizes)

    @property
    def samples(self) -> int:
        """Number of training samples of all clients together."""
        return len(self.y)

    def client(self, i: int) -> Pair:
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

        `clients` are their ids, `sizes` their numbers of samples, and `labels` (for classification
        with up to 1,024 classes) how often each has each class.
        """
        count = min(limit, self.clients)
        ids = torch.arange(count) * (self.clients - 1) // max(count - 1, 1)
        out = {"clients": ids.tolist(), "sizes": self.sizes[ids].tolist()}
        if self.classes is not None and self.classes <= MAX_SHOWN:
            targets = (self.client(i)[1] for i in out["clients"])
            out["labels"] = [torch.bincount(y, minlength=self.classes).tolist() for y in targets]
        return out

    def hold_out(self, fraction: float, seed: int = 0) -> tuple["Federation", Pair]:
        """Split a validation set off every client's samples; return the rest and the set.

        Each client gives round(fraction * n_i) of its samples but keeps at least one. The choice
        depends on the seed and the client's id only.

        >>> fed = Federation([[float(i)] for i in range(10)], [0] * 10, [0] * 6 + [1] * 4)
        >>> rest, (x, y) = fed.hold_out(0.5, seed=0)
        >>> rest.sizes.tolist(), len(y)
        ([3, 2], 5)
        """
        check_between("Federation.hold_out", "fraction", fraction, 0, 1)
        give = (self.sizes.double() * fraction).round().long().minimum(self.sizes - 1)
        if not bool(give.any()):
            raise DataError(
                f"Federation.hold_out(fraction={fraction!r}) takes no sample from any of the "
                f"{self.clients} clients; use a larger fraction."
            )
        ids = self.owners()
        position = torch.arange(self.samples, device=ids.device) - self.starts[ids]
        draws = bits(key(seed, "hold-out", ids), position)
        order = torch.argsort(draws, stable=True)
        order = order[torch.argsort(ids[order], stable=True)]  # shuffled within each client
        taken = torch.zeros_like(ids, dtype=torch.bool)
        taken[order] = position < give[ids]
        sizes = self.sizes - give
        x, y = select_rows((self.x, self.y), (~taken).nonzero().squeeze(1))
        rest = self._with(x=x, y=y, sizes=sizes, starts=sizes.cumsum(0) - sizes)
        return rest, select_rows((self.x, self.y), taken.nonzero().squeeze(1))

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "Federation":
        """Return the same data on a device, with every floating tensor in `dtype`.

        `sizes`, `starts` and `test_owner` stay on the CPU.
        """

        def move(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else None)

        def move_pair(pair: Pair | None) -> Pair | None:
            return None if pair is None else (map_inputs(move, pair[0]), move(pair[1]))

        return self._with(
            x=map_inputs(move, self.x),
            y=move(self.y),
            test=move_pair(self.test),
            held=move_pair(self.held),
        )

    def with_names(
        self, names: tuple[int | str, ...], test_owner: Tensor | None = None
    ) -> "Federation":
        """Return the same data with other client names, and owners of the test rows as ids."""
        assert len(names) == self.clients
        return self._with(names=names, test_owner=test_owner)

    def digest(self) -> str:
        """Return a digest of the data, 16 hex digits; it does not depend on the device.

        It reads every shape, dtype, client size and target, but only a few hundred evenly spaced
        rows of each input, so that it is fast for large data.
        """
        total = hashlib.sha256()
        for pair in ((self.x, self.y), self.test, self.held):
            _arrays.update_digest(total, pair)
        total.update(str(self.sizes.tolist()).encode())
        return total.hexdigest()[:16]

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        tested = "no test set" if self.test is None else f"{len(self.test[1])} test samples"
        facts = f"{self.clients} clients, {self.samples} samples, {kind}, {tested}"
        return f"Federation({self.name!r}, {facts})"

    def _with(self, **changes: Any) -> "Federation":
        other = copy.copy(self)
        other.__dict__.update(changes)
        return other

    def _classes(self, classes: int | None) -> int | None:
        """Return the number of classes, after checking labels; None if targets are not labels."""
        if classes is not None:
            check_int("Federation", "classes", classes, below=MAX_CLASSES)
        if not _arrays.is_class(self.y):
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
            raise refusal("y", f"hold labels below {MAX_CLASSES:,}, but has {count - 1}; {remedy}")
        for what, y in named:
            wrong = ((y < 0) | (y >= count)).nonzero()
            if len(wrong):
                found = f"{what} has {int(y[wrong[0]])} in row {int(wrong[0])}"
                remedy = "number the classes from 0, or give floats for regression"
                raise refusal("y", f"hold labels in 0..{count - 1}, but {found}; {remedy}")
        return count

    def _test_ids(self, test_owner: Any, unique: Array) -> Tensor:
        if self.test is None:
            raise DataError("Federation(test_owner=...) needs test=(x, y) as well, got test=None.")
        labels = _arrays.as_labels(test_owner, "test_owner", len(self.test[1]))
        if labels.dtype.kind != unique.dtype.kind and "U" in (labels.dtype.kind, unique.dtype.kind):
            problem = "one of them holds strings and the other ints"
            raise refusal("test_owner", f"use the labels of owner, but {problem}")
        place = np.searchsorted(unique, labels).clip(max=len(unique) - 1)
        return torch.from_numpy(np.where(unique[place] == labels, place, -1).astype(np.int64))
