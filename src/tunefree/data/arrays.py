"""Convert and check users' data: arrays, tables, Datasets and DataLoaders become tensors."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError, check_int, convert_errors
from ..core.types import Array, Inputs, Samples, list_tensors, map_inputs
from .tables import Features, Table, read_table, tidy

Label: TypeAlias = str | int | bool
"""A class as the user names it."""

_SAMPLED = 256  # rows of each input that a digest reads
PREDICTED = "predict"  # the name of the inputs of a prediction, as a set
ONE_FORM = "must return samples of one form and shape, made of arrays, tensors or numbers"


def bad_input(name: str, rule: str, of: str = "") -> DataError:
    """Return the error of an argument; `of` names the set that it is in, if not training data."""
    argument = f"Federation: {name} of {of}" if of else f"Federation({name}=...)"
    if of == PREDICTED:
        argument = f"Run.predict(inputs): {name}"
    return DataError(f"{argument} must {rule}.")


def as_pair(x: Any, y: Any, of: str = "") -> Samples:
    """Convert and check inputs and targets; `of` names their set, "" for the training data."""
    inputs, target = as_inputs(x, of), _as_tensor(y, "y", of)
    if is_class(target):
        target = target.long()
    arrays = [*_named(inputs), ("y", target)]
    if len(arrays) == 1:
        raise bad_input("x", f"hold at least one array, got {x!r}", of)
    for name, t in arrays:
        if t.ndim == 0:
            raise bad_input(name, "have one row per sample, got one number", of)
    for name, t in arrays:
        if len(t) != len(target):
            raise bad_input(name, f"have as many rows as y, got {len(t)} and {len(target)}", of)
    if len(target) == 0:
        raise bad_input("y", "have at least one row, but has no samples", of)
    for name, t in arrays:
        if not all_finite(t):
            row = int((~torch.isfinite(t)).reshape(len(t), -1).any(1).nonzero()[0])
            kind = "NaN" if bool(torch.isnan(t[row]).any()) else "Inf"
            rule = f"be finite, but row {row} holds {kind}; drop or fill such rows first"
            raise bad_input(name, rule, of)
    return inputs, target


def check_match(a: Samples, b: Samples, a_name: str, b_name: str) -> None:
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
        raise bad_input(name, f"be one int or string per sample, got {found}")
    if len(labels) != rows:
        raise bad_input(name, f"have one entry per sample, got {len(labels)} for {rows} samples")
    return labels


def as_ids(labels: Array, clients: int) -> Array:
    """Return owners that are already client ids in 0 .. clients - 1 as int64."""
    check_int("Federation", "clients", clients)
    is_text = labels.dtype.kind == "U"
    wrong = labels if is_text else labels[(labels < 0) | (labels >= clients)]
    if len(wrong):
        rule = f"be ints in 0..{clients - 1} with clients={clients}, got {wrong[0].item()!r}"
        raise bad_input("owner", rule)
    return labels.astype(np.int64)


def as_weights(given: Any, rows: int) -> Tensor:
    """Return the weights of samples as float64, after checking them."""
    weight = _as_tensor(given, "sample_weight", "").double()
    if weight.shape != (rows,):
        found = f"shape {tuple(weight.shape)} for {rows} samples"
        raise bad_input("sample_weight", f"be one number per sample, got {found}")
    if not bool(((weight >= 0) & torch.isfinite(weight)).all()) or not bool(weight.any()):
        raise bad_input("sample_weight", "be finite numbers >= 0 of which some are positive")
    return weight


def is_class(y: Tensor) -> bool:
    """Return whether targets are class labels: integers in one axis."""
    is_int = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    return is_int and y.ndim == 1


def select_rows(pair: Samples, rows: Tensor) -> Samples:
    """Return some rows of inputs and targets."""
    return map_inputs(lambda t: t[rows.to(t.device)], pair[0]), pair[1][rows.to(pair[1].device)]


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """Concatenate inputs of one structure along the sample axis."""
    columns = zip(*map(list_tensors, parts), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return map_inputs(lambda _: next(joined), parts[0])


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
        raise bad_input("y", f"hold the labels {known}, but row {row} has {given[row]!r}", of)
    return torch.tensor(found, dtype=torch.int64)


def update_digest(total: "hashlib._Hash", pair: Samples | None) -> None:
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
        raise bad_input(name, f"have rows of one shape ({error})", of) from error
    if array.dtype.kind == "O" and array.ndim == 1:
        missing = [i for i, one in enumerate(array) if one is None or one != one]
        if missing:
            rule = f"have a value in every row, but row {missing[0]} has {array[missing[0]]!r}"
            raise bad_input(name, f"{rule}; drop or fill such rows first", of)
    if array.dtype.kind not in "fiub":
        remedy = "turn text into numbers and give every sample the same shape"
        if name == "x" and array.ndim == 2:
            remedy = "give columns of text or categories as a frame of pandas or polars"
        raise bad_input(name, f"hold numbers, got an array of {array.dtype}; {remedy}", of)
    if array.dtype == np.longdouble or not array.dtype.isnative:
        kind = np.float64 if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
        array = array.astype(kind)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch shares memory, which must be writeable with positive strides
    return torch.from_numpy(array)


def check_plain(value: Any, name: str, of: str = "") -> None:
    """Refuse arrays whose numbers are not all there: masked, sparse, quantized, or on "meta"."""
    if isinstance(value, Tensor):
        is_strided = value.layout == torch.strided and not value.is_nested
        if not is_strided or value.is_quantized or value.is_meta or value.is_complex():
            kind = f"{value.dtype} of layout {value.layout} on {value.device}"
            rule = f"be a dense tensor of real numbers, got {kind}; use to_dense() or dequantize()"
            raise bad_input(name, rule, of)
    elif isinstance(value, list | tuple):
        for part in value[:1000]:
            if isinstance(part, Tensor | np.ma.MaskedArray):
                check_plain(part, name, of)
    elif isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any()):
        count = int(np.ma.getmaskarray(value).sum())
        rule = f"have no masked entries, but has {count}; fill them (filled) or drop such rows"
        raise bad_input(name, rule, of)


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


def _describe_sample(pair: Samples) -> str:
    parts = [*_named(pair[0]), ("y", pair[1])]
    return ", ".join(f"{name} {tuple(t.shape[1:])}" for name, t in parts)


def describe_set(samples: int, classes: int | None, test: Samples | None) -> str:
    """Return the size and kind of a data set in a few words."""
    kind = "regression" if classes is None else f"{classes} classes"
    tested = "no test set" if test is None else f"{len(test[1])} test samples"
    return f"{samples} samples, {kind}, {tested}"


def all_finite(t: Tensor) -> bool:
    """Return whether a tensor has no NaN or Inf, in one pass and without a copy."""
    if not t.is_floating_point() or t.numel() == 0:
        return True
    return bool(torch.isfinite(torch.stack(t.aminmax())).all())


def read_samples(part: Any, of: str, y: str | None = None) -> tuple[Any, Any] | Table:
    """Return the inputs and targets of a client's part, or the part as a table.

    A part is a pair (x, y), a table, a map-style Dataset, or a DataLoader.
    """
    table = read_table(part)
    if table is not None:
        return table
    if isinstance(part, torch.utils.data.TensorDataset) and len(part.tensors) == 2:
        part = part.tensors
    if isinstance(part, tuple | list) and len(part) == 2:
        return part[0], part[1]
    if isinstance(part, torch.utils.data.DataLoader):
        if (whole := _whole_dataset(part)) is None:
            return _join_batches([_as_sample(batch, of, y) for batch in part], of)
        part = whole
    pairs = [_as_sample(sample, of, y) for sample in _list_samples(part, of)]
    with convert_errors(f"Federation.of: {of} {ONE_FORM}"):
        return _stack([x for x, _ in pairs]), _stack([t for _, t in pairs])


def read_inputs(value: Any, features: Features | None, y: str | None = None) -> Inputs:
    """Return the inputs of a prediction as tensors, from what training took.

    Targets in it are ignored: those of a Dataset's pairs, those named `y` in samples that are
    dicts, or further columns of a table.
    """
    table = read_table(value)
    if table is not None:
        if features is None:
            raise DataError(
                "The model was not trained on a table, so predict takes arrays as training did; "
                "got a table."
            )
        return as_inputs(features.encode(table), PREDICTED)
    is_dataset = isinstance(value, torch.utils.data.Dataset)
    if isinstance(value, torch.utils.data.DataLoader):
        if (whole := _whole_dataset(value)) is None:
            return _join_batches([(_without_target(batch, y), []) for batch in value], PREDICTED)[0]
        value, is_dataset = whole, True
    if isinstance(value, torch.utils.data.TensorDataset):
        value = value.tensors[0]
    elif is_dataset:
        samples = [_without_target(sample, y) for sample in _list_samples(value, PREDICTED)]
        with convert_errors(f"Run.predict(inputs): the dataset {ONE_FORM}"):
            value = _stack(samples)
    try:
        return as_inputs(value, PREDICTED)
    except DataError as error:
        if features is None:
            raise
        names = ", ".join(one.name for one in features.each[:10])
        more = ", …" if len(features.each) > 10 else ""
        raise DataError(
            f"The model was trained on a table, so predict takes a frame with its columns ({names}"
            f"{more}), or the encoded columns as numbers; got {type(value).__name__}."
        ) from error


def _list_samples(part: Any, of: str) -> list[Any]:
    if isinstance(part, torch.utils.data.IterableDataset):
        samples = list(part)
    elif hasattr(part, "__len__") and hasattr(part, "__getitem__") and not isinstance(part, dict):
        samples = [part[i] for i in range(len(part))]
    else:
        wanted = "a pair (x, y), a table, a Dataset or a DataLoader"
        raise DataError(f"Federation.of: {of} must be {wanted}, got {type(part).__name__}.")
    if not samples:
        raise DataError(f"Federation.of: {of} has no samples; leave it out or give it one.")
    return samples


def _whole_dataset(loader: Any) -> Any:
    """Return the dataset of a DataLoader that loads all of it as it is, else None."""
    data = torch.utils.data
    if not isinstance(loader.sampler, data.SequentialSampler | data.RandomSampler):
        return None
    is_whole = len(loader.sampler) == len(loader.dataset)
    return loader.dataset if is_whole and loader.collate_fn is data.default_collate else None


def _target_name(sample: Mapping[str, Any], y: str | None) -> str | None:
    names = ("label", "labels") if y is None else (y,)
    return next((name for name in names if name in sample), None)


def _as_sample(sample: Any, of: str, y: str | None) -> tuple[Any, Any]:
    if isinstance(sample, Mapping) and (name := _target_name(sample, y)) is not None:
        inputs = {k: v for k, v in sample.items() if k != name}
        return (inputs if len(inputs) != 1 else next(iter(inputs.values()))), sample[name]
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise DataError(
            f"Federation.of: {of} must return a pair (x, y) for every sample, or a dict whose "
            f"targets are named 'label' or given by y=..., got {type(sample).__name__}."
        )
    return sample[0], sample[1]


def _without_target(sample: Any, y: str | None) -> Any:
    is_pair = isinstance(sample, tuple | list) and len(sample) == 2
    is_named = isinstance(sample, Mapping) and _target_name(sample, y) is not None
    return _as_sample(sample, PREDICTED, y)[0] if is_pair or is_named else sample


def _join_batches(batches: list[tuple[Any, Any]], of: str) -> tuple[Inputs, Any]:
    if not batches:
        raise DataError(f"Federation.of: {of} has no samples; leave it out or give it one.")
    targets = [y for _, y in batches]
    is_tensor = all(isinstance(y, Tensor) for y in targets)
    y = torch.cat(targets) if is_tensor else [one for y in targets for one in y]
    return concatenate([as_inputs(x, of) for x, _ in batches]), y


def _stack(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {name: _stack([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(_stack(list(column)) for column in zip(*values, strict=True))
    for value in values:
        check_plain(value, "every sample")
    if isinstance(first, Tensor):
        return torch.stack(values)
    if isinstance(first, str):
        return np.array(values, dtype=object)
    return np.stack([np.asarray(value) for value in values])
