"""Convert and check users' data: arrays, lists, tables and Datasets become tensors, or an error."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError, check_int
from ..core.types import Inputs, Pair, list_tensors, map_inputs
from .tables import tidy

Array: TypeAlias = "np.ndarray[Any, Any]"
Label: TypeAlias = str | int | bool
"""A class as the user names it."""

_SAMPLED = 256  # rows of each input that a digest reads


PREDICTED = "predict"  # the name of the inputs of a prediction, as a set


def refusal(name: str, rule: str, of: str = "") -> DataError:
    """Return the error of an argument; `of` names the set that it is in, if not training data."""
    argument = f"Federation: {name} of {of}" if of else f"Federation({name}=...)"
    if of == PREDICTED:
        argument = f"Run.predict(inputs): {name}"
    return DataError(f"{argument} must {rule}.")


def as_pair(x: Any, y: Any, of: str = "") -> Pair:
    """Convert and check inputs and targets; `of` names their set, "" for the training data."""
    inputs, target = as_inputs(x, of), _as_tensor(y, "y", of)
    if is_class(target):
        target = target.long()
    arrays = [*_named(inputs), ("y", target)]
    if len(arrays) == 1:
        raise refusal("x", f"hold at least one array, got {x!r}", of)
    for name, t in arrays:
        if t.ndim == 0:
            raise refusal(name, "have one row per sample, got one number", of)
    for name, t in arrays:
        if len(t) != len(target):
            raise refusal(name, f"have as many rows as y, got {len(t)} and {len(target)}", of)
    if len(target) == 0:
        raise refusal("y", "have at least one row, but has no samples", of)
    for name, t in arrays:
        if not all_finite(t):
            row = int((~torch.isfinite(t)).reshape(len(t), -1).any(1).nonzero()[0])
            kind = "NaN" if bool(torch.isnan(t[row]).any()) else "Inf"
            rule = f"be finite, but row {row} holds {kind}; drop or fill such rows first"
            raise refusal(name, rule, of)
    return inputs, target


def check_match(a: Pair, b: Pair, a_name: str, b_name: str) -> None:
    """Raise if the samples of two sets differ in arrays, shapes or kind of target."""
    a_form, b_form = _describe_sample(a), _describe_sample(b)
    if a_form != b_form:
        raise DataError(
            f"Federation: {a_name} must have the same arrays and shapes per sample as {b_name}, "
            f"got {a_form} and {b_form}."
        )
    if is_class(a[1]) != is_class(b[1]):
        raise DataError(
            f"Federation: y of {a_name} and of {b_name} must both be integer labels or both "
            f"not, got {a[1].dtype} and {b[1].dtype}."
        )


def as_labels(owner: Any, name: str, rows: int) -> Array:
    """Return owners, integers or strings, as an array with one entry per sample."""
    check_plain(owner, name)
    labels = owner.cpu().numpy() if isinstance(owner, Tensor) else tidy(np.asarray(owner))
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels.flat):
        labels = labels.astype(str)
    if labels.dtype.kind not in "iuU" or labels.ndim != 1:
        found = f"{labels.dtype} of shape {labels.shape}"
        raise refusal(name, f"be one int or string per sample, got {found}")
    if len(labels) != rows:
        raise refusal(name, f"have one entry per sample, got {len(labels)} for {rows} samples")
    return labels


def as_ids(labels: Array, clients: int) -> Array:
    """Return owners that are already client ids in 0 .. clients - 1 as int64."""
    check_int("Federation", "clients", clients)
    is_text = labels.dtype.kind == "U"
    wrong = labels if is_text else labels[(labels < 0) | (labels >= clients)]
    if len(wrong):
        rule = f"be ints in 0..{clients - 1} with clients={clients}, got {wrong[0].item()!r}"
        raise refusal("owner", rule)
    return labels.astype(np.int64)


def as_weights(given: Any, rows: int) -> Tensor:
    """Return the weights of samples as float64, after checking them."""
    weight = _as_tensor(given, "sample_weight", "").double()
    if weight.shape != (rows,):
        found = f"shape {tuple(weight.shape)} for {rows} samples"
        raise refusal("sample_weight", f"be one number per sample, got {found}")
    if not bool(((weight >= 0) & torch.isfinite(weight)).all()) or not bool(weight.any()):
        raise refusal("sample_weight", "be finite numbers >= 0 of which some are positive")
    return weight


def is_class(y: Tensor) -> bool:
    """Return whether targets are class labels: integers in one axis."""
    is_int = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    return is_int and y.ndim == 1


def select_rows(pair: Pair, rows: Tensor) -> Pair:
    """Return some rows of inputs and targets."""
    return map_inputs(lambda t: t[rows.to(t.device)], pair[0]), pair[1][rows.to(pair[1].device)]


def concatenate(pairs: Sequence[Pair]) -> Pair:
    """Concatenate inputs of one structure, and targets, along the sample axis."""
    columns = zip(*(list_tensors(x) for x, _ in pairs), strict=True)
    joined = (torch.cat(column) for column in columns)
    return map_inputs(lambda _: next(joined), pairs[0][0]), torch.cat([y for _, y in pairs])


def find_labels(targets: Sequence[Any]) -> tuple[Label, ...] | None:
    """Return the sorted labels of targets that are text, bools or negative integers, else None.

    Integers from 0 are classes as they are: a client may have few of them.
    """
    for y in targets:
        check_plain(y, "y")
    try:
        arrays = [
            tidy(y.cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)) for y in targets
        ]
    except ValueError:  # ragged; `as_pair` says so
        return None
    if any(a.ndim != 1 or not len(a) for a in arrays):
        return None
    kinds = {a.dtype.kind for a in arrays}
    is_number = kinds <= set("iu") and any(int(a.min()) < 0 for a in arrays)
    is_text = kinds == {"O"} and all(isinstance(v, str) for a in arrays for v in a)
    if not (is_number or is_text or kinds == {"b"}):
        return None
    if kinds == {"b"}:
        return (False, True)
    return tuple(sorted(set().union(*(a.tolist() for a in arrays))))


def number_labels(y: Any, labels: Sequence[Label], of: str = "") -> Tensor:
    """Return the position of each target in the labels."""
    given = y if isinstance(y, Tensor) else tidy(np.asarray(y))
    place = {label: i for i, label in enumerate(labels)}
    found = [place.get(value, -1) for value in given.tolist()] if given.ndim == 1 else [-1]
    if -1 in found:
        row = found.index(-1)
        known = ", ".join(repr(label) for label in labels[:10]) + ("…" if len(labels) > 10 else "")
        raise refusal("y", f"hold the labels {known}, but row {row} has {given[row]!r}", of)
    return torch.tensor(found, dtype=torch.int64)


def update_digest(total: "hashlib._Hash", pair: Pair | None) -> None:
    """Add a set's shapes, dtypes, targets and evenly spaced input rows to a digest."""
    if pair is None:
        total.update(b"none")
        return
    x, y = pair
    total.update(str([(name, t.dtype, tuple(t.shape)) for name, t in _named(x)]).encode())
    total.update(str((y.dtype, tuple(y.shape))).encode())
    rows = torch.linspace(0, len(y) - 1, min(len(y), _SAMPLED), dtype=torch.float64).long()
    for t in [*(t[rows.to(t.device)] for t in list_tensors(x)), y]:
        total.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _as_tensor(value: Any, name: str, of: str) -> Tensor:
    """Return an array as a tensor of the same dtype, or say why it cannot be one."""
    check_plain(value, name, of)
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise refusal(name, f"have rows of one shape ({error})", of) from error
    if array.dtype.kind == "O" and array.ndim == 1:
        missing = [i for i, one in enumerate(array) if one is None or one != one]
        if missing:
            rule = f"have a value in every row, but row {missing[0]} has {array[missing[0]]!r}"
            raise refusal(name, f"{rule}; drop or fill such rows first", of)
    if array.dtype.kind not in "fiub":
        remedy = "turn text into numbers and give every sample the same shape"
        if name == "x" and array.ndim == 2:
            remedy = "give columns of text or categories as a frame of pandas or polars"
        raise refusal(name, f"hold numbers, got an array of {array.dtype}; {remedy}", of)
    if array.dtype == np.longdouble or not array.dtype.isnative:
        kind = np.float64 if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
        array = array.astype(kind)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch shares memory, which must be writeable with positive strides
    return torch.from_numpy(array)


def check_plain(
    value: Any, name: str, of: str = "", error: Callable[[str, str, str], DataError] = refusal
) -> None:
    """Refuse arrays whose numbers are not all there: masked, sparse, quantized, or on "meta"."""
    if isinstance(value, Tensor):
        is_strided = value.layout == torch.strided and not value.is_nested
        if not is_strided or value.is_quantized or value.is_meta or value.is_complex():
            kind = f"{value.dtype} of layout {value.layout} on {value.device}"
            rule = f"be a dense tensor of real numbers, got {kind}; use to_dense() or dequantize()"
            raise error(name, rule, of)
    elif isinstance(value, list | tuple):
        for part in value[:1000]:
            if isinstance(part, Tensor | np.ma.MaskedArray):
                check_plain(part, name, of, error)
    elif isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any()):
        count = int(np.ma.getmaskarray(value).sum())
        rule = f"have no masked entries, but has {count}; fill them (filled) or drop such rows"
        raise error(name, rule, of)


def as_inputs(value: Any, of: str = "") -> Inputs:
    """Convert inputs to tensors: an array, or a tuple or dict of them."""
    if isinstance(value, dict):
        return {str(k): _as_tensor(part, f"x[{k!r}]", of) for k, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_as_tensor(part, f"x[{i}]", of) for i, part in enumerate(value))
    return _as_tensor(value, "x", of)


def _named(x: Inputs) -> list[tuple[str, Tensor]]:
    if isinstance(x, Tensor):
        return [("x", x)]
    items: Iterable[tuple[object, Tensor]] = x.items() if isinstance(x, dict) else enumerate(x)
    return [(f"x[{name!r}]", part) for name, part in items]


def _describe_sample(pair: Pair) -> str:
    parts = [*_named(pair[0]), ("y", pair[1])]
    return ", ".join(f"{name} {tuple(t.shape[1:])}" for name, t in parts)


def all_finite(t: Tensor) -> bool:
    """Return whether a tensor has no NaN or Inf, in one pass and without a copy."""
    if not t.is_floating_point() or t.numel() == 0:
        return True
    return bool(torch.isfinite(torch.stack(t.aminmax())).all())
