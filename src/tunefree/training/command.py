"""A run as the command line describes it: names, texts and numbers only.

A `CommandConfig` can be written to JSON, sent to another process and read back; `build_run` turns
it into a configuration, a model and a federation.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import nn

from .. import methods
from ..core.errors import ArgumentError, CheckpointError, check_known, convert_errors
from ..core.text import parse_value
from ..core.types import list_tensors
from ..data import Dataset, Federation, load, partition
from ..methods import Method
from ..models import nets
from .config import OPTIONS, RunConfig

TOKEN_MODELS = ("text", "lstm", "bert")  # networks with an embedding of the dataset's vocabulary
CLI_OPTIONS = {about.name: about for _, about in OPTIONS if about.metadata["cli"] is not None}


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """Everything that decides a run, by name: data, model and the options of `RunConfig`.

    `options` holds the options by name, in the types of the command line; those that are missing
    have their defaults.
    """

    data: str = _option("digits", "Dataset name; `tunefree datasets` lists them.")
    split: str = _option(
        "auto",
        "iid, dirichlet:ALPHA, dirichlet:ALPHA:balanced, shards:K or owner; auto is owner where "
        "the data has owners, else dirichlet:0.3.",
    )
    clients: int | None = _option(None, "Number of clients; 20 unless the split is by owner.")
    model: str = _option("auto", "Network name; auto picks one that fits the data.")
    set: tuple[str, ...] | None = _option(
        None, "A setting of the method, such as lr=0.1 or weights=samples; may be repeated."
    )
    data_dir: Path | None = _option(
        None, "Folder with dataset files, searched before $TUNEFREE_DATA and the cache."
    )
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.options:
            check_known("option", name, CLI_OPTIONS)
        defaults = {n: about.metadata["cli_default"] for n, about in CLI_OPTIONS.items()}
        object.__setattr__(self, "options", defaults | dict(self.options))

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.options["method"])

    @property
    def rounds(self) -> int:
        """Communication rounds."""
        return int(self.options["rounds"])

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, options of the run included."""
        own = {f.name for f in fields(CommandConfig)}
        options = {n: v for n, v in changes.items() if n not in own}
        changes = {n: v for n, v in changes.items() if n in own}
        return replace(self, options={**self.options, **options}, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return the command as one flat dict of plain data."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "options"}
        own["data_dir"] = None if self.data_dir is None else str(self.data_dir)
        return own | dict(self.options)

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """Return the command that `to_json` wrote.

        Raises:
            CheckpointError: If it is not one.
        """
        with convert_errors("The command in this folder is damaged", CheckpointError):
            given = dict(found)
            given |= {"set": tuple(given["set"])} if given.get("set") else {}
            given |= {"data_dir": Path(given["data_dir"])} if given.get("data_dir") else {}
            own = typing.get_type_hints(CommandConfig)
            kinds = own | {n: about.metadata["cli"] for n, about in CLI_OPTIONS.items()}
            for name, kind in kinds.items():
                if name in given and name != "options" and not _has_type(given[name], kind):
                    raise TypeError(f"{name} is {given[name]!r}")
            options = {n: v for n, v in given.items() if n not in own}
            return cls(**{n: v for n, v in given.items() if n in own}, options=options)


def _has_type(value: Any, kind: Any) -> bool:
    """Whether a value of JSON has a type of the command line."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_has_type(value, one) for one in inside)
    if origin is Literal:
        return isinstance(value, str) and value in inside
    if origin is tuple:
        return isinstance(value, tuple) and all(isinstance(v, str) for v in value)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, kind)


def parse_method_settings(name: str, texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of a method from KEY=VALUE texts.

    >>> parse_method_settings("fedavg", ("lr=0.3", "weights=samples"))
    {'lr': 0.3, 'weights': 'samples'}
    """
    own = methods.settings(name)
    common = {"weight_decay": float, "clip": float | None}
    out: dict[str, Any] = {}
    for text in texts:
        key, equals, rest = text.partition("=")
        if not equals or not key:
            raise ArgumentError(f"--set must be KEY=VALUE, such as lr=0.1, got {text!r}.")
        kind = own[key].annotation if key in own else common.get(key, str)
        out[key] = parse_value(f"--set {text}", rest, kind)
    return out


def make_method(command: CommandConfig) -> Method:
    """Return the method with its settings."""
    return methods.get(command.method, **parse_method_settings(command.method, command.set or ()))


def make_federation(command: CommandConfig, dataset: Dataset) -> Federation:
    """Return the dataset, divided among clients."""
    split = command.split
    if split == "auto":
        split = "dirichlet:0.3" if dataset.owner is None else "owner"
    partitioner = partition.parse(split)
    clients = command.clients
    if clients is None and not isinstance(partitioner, partition.ByOwner):
        clients = 20
    return dataset.split(partitioner, clients=clients, seed=command.options["seed"])


def make_model(command: CommandConfig, dataset: Dataset) -> nn.Module:
    """Return the network, initialised from the seed."""
    x, classes = dataset.x, dataset.classes or 1
    first = list_tensors(x)[0]
    shape: Any = tuple(first.shape[1:])
    shapes = {k: tuple(v.shape[1:]) for k, v in x.items()} if isinstance(x, Mapping) else shape
    name = command.model
    if name == "auto":
        name = nets.default_for(shapes, classes, not first.is_floating_point(), dataset.name)
    extra = {"vocab": len(dataset.words)} if dataset.words and name in TOKEN_MODELS else {}
    seed = command.options["seed"]
    return nets.build(name, shape=shape, classes=classes, seed=seed, **extra)


def choose_cohort(command: CommandConfig, clients: int, method: Method) -> int | None:
    """Return the number of clients per round; None for all."""
    cohort = command.options["cohort"]
    if cohort is None:
        return None if method.full else max(1, clients // 2)
    return cohort or None


def make_config(command: CommandConfig, clients: int) -> RunConfig:
    """Return the configuration of a run over this many clients."""
    method = make_method(command)
    options = dict(command.options) | {
        "method": method,
        "cohort": choose_cohort(command, clients, method),
        "batch": command.options["batch"] or None,
        "dtype": getattr(torch, command.options["dtype"]),
    }
    return RunConfig().replace(**options)


class CommandRun(NamedTuple):
    """The configuration, model and federation of a command."""

    config: RunConfig
    model: nn.Module
    federation: Federation


def build_run(command: CommandConfig) -> CommandRun:
    """Return the configuration, the model and the federation; the texts are checked first."""
    make_config(command, clients=2)  # refuses wrong texts before the data is loaded
    dataset = load(command.data, command.data_dir)
    federation = make_federation(command, dataset)
    model = make_model(command, dataset)
    config = make_config(command, federation.clients)
    if command.method == "auto" and not command.set:
        config = config.replace(method="auto")  # by name, which standardises the columns of tables
    return CommandRun(config, model, federation)
