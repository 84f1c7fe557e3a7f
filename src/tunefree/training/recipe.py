"""A run in words: what the command line takes, turned into a model, a federation and a method."""

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from .. import attacks, faults, methods, robust
from ..core.errors import ArgumentError, CheckpointError, convert_errors
from ..core.text import parse_value
from ..core.types import tensor_list
from ..data import Dataset, Federation, load, partition
from ..methods import Method
from ..models import nets
from ..models.problem import Precision

READERS = ("text", "lstm", "bert")  # networks with a row for every word


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run, by name.

    Args:
        data: Dataset name; `tunefree datasets` lists them.
        split: iid, dirichlet:ALPHA, dirichlet:ALPHA:balanced, shards:K or owner; auto is owner
            where the data has owners, else dirichlet:0.3.
        clients: Number of clients; 20 unless the split is by owner.
        model: Network name; auto picks one that fits the data.
        method: Method name; `tunefree methods` lists them. auto needs no learning rate.
        set: A setting of the method, such as lr=0.1 or weights=samples; may be repeated.
        rounds: Rounds of communication.
        cohort: Clients per round; half of them by default (all where the method needs all),
            everyone with 0.
        steps: Local steps per client and round (20 unless --epochs is given).
        epochs: Passes over each client's data instead of steps.
        batch: Samples per local step; 0 is all of a client's data.
        loss: cross_entropy, mse, or auto by the labels.
        augment: none, or crop-flip for images.
        seed: Everything random follows from it.
        device: auto, cpu, cuda, ...
        dtype: float32 or float64.
        precision: fp32, tf32 or bf16 inside the model's products; auto is tf32 on a GPU.
        eval_every: Rounds between evaluations.
        validation: Share of each client's data kept to choose the best round, e.g. 0.1.
        patience: Stop after so many evaluations without a better validation score.
        keep_best: Ship the model that was best on validation data.
        per_client: Report the worst client and the spread over clients.
        heterogeneity: Report how much clients' gradients differ (zeta, dissimilarity).
        aggregate: mean, or a rule that withstands hostile clients: median, trimmed-mean:f=2,
            geometric-median, krum:f=2, multi-krum:f=2, norm-clip or centred-clip, with nnm:f=2+ or
            bucketing:size=2+ in front where clients differ; f may be a share such as 0.2.
        faults: none, or how clients fail, such as before=0.1,after=0.1,slow=0.2,stale=0.1,delay=3
            or available=24/0.5 (there for half of every 24 rounds).
        attack: none, or hostile clients and what they do: sign-flip:0.2, large-norm, gaussian,
            misreport, label-flip, little-is-enough or inner-product, with a share of the clients or
            their numbers (0+3+7), and settings such as :scale=10.
        data_dir: Folder with dataset files, looked at before $TUNEFREE_DATA and the cache.
    """

    data: str = "digits"
    split: str = "auto"
    clients: int | None = None
    model: str = "auto"
    method: str = "auto"
    set: tuple[str, ...] | None = None
    rounds: int = 100
    cohort: int | None = None
    steps: int | None = None
    epochs: int | None = None
    batch: int = 50
    loss: str = "auto"
    augment: str = "none"
    seed: int = 0
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = "auto"
    eval_every: int = 1
    validation: float | None = None
    patience: int | None = None
    keep_best: bool = False
    per_client: bool = False
    heterogeneity: bool = False
    aggregate: str = "mean"
    faults: str = "none"
    attack: str = "none"
    data_dir: Path | None = None


def recall(words: Any) -> Recipe:
    """Return the recipe that a folder has as plain data; refuse what is not one."""
    with convert_errors("The recipe in this folder is damaged", CheckpointError):
        given = dict(words)
        given |= {"set": tuple(given["set"])} if given.get("set") else {}
        given |= {"data_dir": Path(given["data_dir"])} if given.get("data_dir") else {}
        for name, kind in typing.get_type_hints(Recipe).items():
            if name in given and not _fits(given[name], kind):
                raise TypeError(f"{name} is {given[name]!r}")
        return Recipe(**given)


def _fits(value: Any, kind: Any) -> bool:
    several = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    for one in typing.get_args(kind) if several else (kind,):
        origin = typing.get_origin(one) or one
        if origin is Literal:
            right = isinstance(value, str) and value in typing.get_args(one)
        elif origin is tuple:
            right = isinstance(value, tuple) and all(isinstance(v, str) for v in value)
        elif origin in (int, float):
            right = isinstance(value, int | origin) and not isinstance(value, bool)
        else:
            right = isinstance(value, origin)
        if right:
            return True
    return False


def read_settings(name: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Turn KEY=VALUE words into a method's arguments, by the types of its own settings.

    >>> read_settings("fedavg", ("lr=0.3", "weights=samples"))
    {'lr': 0.3, 'weights': 'samples'}
    """
    own = methods.settings(name)
    common = {"weight_decay": float, "clip": float | None}
    out: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ArgumentError(f"--set must be KEY=VALUE, such as lr=0.1, got {word!r}.")
        kind = own[key].annotation if key in own else common.get(key, str)
        out[key] = parse_value(f"--set {word}", text, kind)
    return out


def make_method(recipe: Recipe) -> Method:
    """Return the method with its settings."""
    return methods.get(recipe.method, **read_settings(recipe.method, recipe.set or ()))


def make_federation(recipe: Recipe, dataset: Dataset) -> Federation:
    """Return the dataset dealt to clients."""
    natural = dataset.owner is not None
    words = ("owner" if natural else "dirichlet:0.3") if recipe.split == "auto" else recipe.split
    parts = partition.parse(words)
    clients = recipe.clients
    if clients is None and not isinstance(parts, partition.ByOwner):
        clients = 20
    return dataset.split(parts, clients=clients, seed=recipe.seed)


def make_model(recipe: Recipe, dataset: Dataset) -> nn.Module:
    """Return the network, initialised from the seed."""
    x, classes = dataset.x, dataset.classes or 1
    first = tensor_list(x)[0]
    shape: Any = tuple(first.shape[1:])
    shapes = {k: tuple(v.shape[1:]) for k, v in x.items()} if isinstance(x, Mapping) else shape
    name = recipe.model
    if name == "auto":
        name = nets.default_for(shapes, classes, not first.is_floating_point(), dataset.name)
    extra = {"vocab": len(dataset.words)} if dataset.words and name in READERS else {}
    return nets.build(name, shape=shape, classes=classes, seed=recipe.seed, **extra)


def cohort_size(recipe: Recipe, federation: Federation, method: Method) -> int | None:
    """Return the number of clients a round; None for everyone."""
    if recipe.cohort is None:
        return None if method.full else max(1, federation.clients // 2)
    return recipe.cohort or None


def arguments(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments of `fit` that this recipe stands for, data and model included."""
    method = make_method(recipe)
    trust = {
        "aggregate": robust.parse(recipe.aggregate),
        "faults": faults.parse(recipe.faults),
        "attack": attacks.parse(recipe.attack),
    }
    dataset = load(recipe.data, recipe.data_dir)
    federation = make_federation(recipe, dataset)
    return {
        "model": make_model(recipe, dataset),
        "federation": federation,
        "method": method,
        "rounds": recipe.rounds,
        "cohort": cohort_size(recipe, federation, method),
        "steps": recipe.steps,
        "epochs": recipe.epochs,
        "batch": recipe.batch or None,
        "loss": recipe.loss,
        "augment": recipe.augment,
        "seed": recipe.seed,
        "device": recipe.device,
        "dtype": getattr(torch, recipe.dtype),
        "precision": recipe.precision,
        "eval_every": recipe.eval_every,
        "validation": recipe.validation,
        "patience": recipe.patience,
        "keep_best": recipe.keep_best,
        "per_client": recipe.per_client,
        "heterogeneity": recipe.heterogeneity,
        **trust,
    }
