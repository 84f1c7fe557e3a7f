"""Read samples from Datasets, DataLoaders and tables, for training and for predictions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.types import Inputs, list_tensors, map_inputs
from ._arrays import PREDICTED, as_inputs, check_plain
from .tables import Features, Table, read_table


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
    samples = _list_samples(part, of)
    pairs = [_as_sample(sample, of, y) for sample in samples]
    try:
        return _stack([x for x, _ in pairs]), _stack([t for _, t in pairs])
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        raise DataError(
            f"Federation.of: {of} must return samples of one form and shape, made of arrays, "
            f"tensors or numbers ({error})."
        ) from error


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
    parts = [as_inputs(x, of) for x, _ in batches]
    joined = iter([torch.cat(column) for column in zip(*map(list_tensors, parts), strict=True)])
    targets = [y for _, y in batches]
    is_tensor = all(isinstance(y, Tensor) for y in targets)
    y = torch.cat(targets) if is_tensor else [one for y in targets for one in y]
    return map_inputs(lambda _: next(joined), parts[0]), y


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
