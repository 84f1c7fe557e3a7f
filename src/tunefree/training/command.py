"""A run as the command line describes it: names, texts and numbers only.

A `CommandConfig` can be written to JSON, sent to another process and read back; `build_run` turns
it into a configuration, a model and a federation.
"""

import inspect
import typing
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import nn

from .. import methods
from ..core.errors import (
    ArgumentError,
    CheckpointError,
    check_between,
    check_known,
    convert_errors,
)
from ..core.fields import has_type
from ..core.plugins import get_user_object, is_user_object, load_user_object
from ..core.random import torch_seed
from ..core.text import parse_value
from ..core.types import list_tensors
from ..data import Dataset, Federation, load, partition
from ..methods import Method
from ..methods.registry import add_user_method
from ..models import nets
from .config import OPTIONS, RunConfig

TOKEN_MODELS = ("text", "lstm", "gru", "bert")  # that embed the dataset's vocabulary


class TypedOption(NamedTuple):
    """An option of `RunConfig` as it is typed: its type and its default."""

    kind: Any
    default: Any


def _as_typed(option: Field[Any]) -> TypedOption:
    kind = option.metadata["cli"]
    return TypedOption(option.type if kind is True else kind, option.metadata["cli_default"])


CLI_OPTIONS = {one.name: _as_typed(one) for _, one in OPTIONS if one.metadata["cli"] is not None}


@dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """Everything that decides a run, by name: data, model and the options of `RunConfig`.

    Args:
        data: Dataset name (`tunefree datasets` lists them), or FILE.py:NAME of your own.
        table: A table as data instead: a CSV file with a header, or Parquet.
        target: The table's column of targets.
        owner: The table's column with the client of each row; without it, rows are split.
        sample_weight: The table's column with the weight of each row in training.
        drop: Columns of the table that are no features, such as id,name; may be repeated.
        test_size: Fraction that becomes the test set, if the data has none; 0.2 for tables.
        test_by: Whether that fraction is of each client's rows or of the clients.
        split: iid, dirichlet:ALPHA, dirichlet:ALPHA:balanced, relaysum:ALPHA, shards:K or owner;
            auto is owner where the data has owners, else dirichlet:0.3.
        clients: Number of clients; 20 unless the split is by owner.
        model: Network name, or FILE.py:NAME of your own; auto picks one that fits the data.
        set: A setting of the method, such as lr=0.1 or weights=samples; may be repeated.
        data_dir: Folder with dataset files, searched before $TUNEFREE_DATA and the cache.
        options: Options of the run by name, in the types of the command line; those that are
            missing have their defaults.
    """

    data: str = "digits"
    table: Path | None = None
    target: str | None = None
    owner: str | None = None
    sample_weight: str | None = None
    drop: tuple[str, ...] | None = None
    test_size: float | None = None
    test_by: Literal["rows", "clients"] = "rows"
    split: str = "auto"
    clients: int | None = None
    model: str = "auto"
    set: tuple[str, ...] | None = None
    data_dir: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.options:
            check_known("option", name, CLI_OPTIONS)
        defaults = {name: option.default for name, option in CLI_OPTIONS.items()}
        object.__setattr__(self, "options", defaults | dict(self.options))
        if self.table is None:
            for name in ("target", "owner", "sample_weight", "drop"):
                if getattr(self, name) is not None:
                    text = f"--{name.replace('_', '-')} names a column of a table"
                    raise ArgumentError(f"{text}; give --csv or --parquet as well.")
        elif self.target is None:
            raise ArgumentError("A table needs --target, the name of the column of targets.")
        elif self.data != "digits":
            raise ArgumentError(
                f"{self.table} and --data {self.data} are both data; give one of them."
            )
        if self.test_size is not None:
            check_between("run", "test_size", self.test_size, 0, 1)

    @property
    def title(self) -> str:
        """The data's name, for folders."""
        return self.data.rpartition(":")[2] if self.table is None else self.table.stem

    @property
    def user_objects(self) -> list[str]:
        """The texts that name objects of the user's files."""
        texts = (self.data, self.model, self.method, self.options["loss"])
        return [text for text in texts if is_user_object(text)]

    def load_user_objects(self) -> None:
        """Import the user's files that a typed command names."""
        for text in self.user_objects:
            found = load_user_object(text)
            if text == self.method:
                add_user_method(text, found)

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
        own |= {n: None if own[n] is None else str(own[n]) for n in ("data_dir", "table")}
        return own | dict(self.options)

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """Return the command that `to_json` wrote.

        Raises:
            CheckpointError: If it is not one.
        """
        with convert_errors("The command in this folder is damaged", CheckpointError):
            given = dict(found)
            given |= {n: tuple(given[n]) for n in ("set", "drop") if given.get(n)}
            given |= {n: Path(given[n]) for n in ("data_dir", "table") if given.get(n)}
            own = typing.get_type_hints(CommandConfig)
            kinds = own | {name: option.kind for name, option in CLI_OPTIONS.items()}
            for name, kind in kinds.items():
                if name in given and name != "options" and not has_type(given[name], kind):
                    raise TypeError(f"{name} is {given[name]!r}")
            options = {n: v for n, v in given.items() if n not in own}
            return cls(**{n: v for n, v in given.items() if n in own}, options=options)


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


def load_data(command: CommandConfig) -> Dataset | Federation:
    """Return the dataset, the rows of the table, or what the user's own object is or returns."""
    if command.table is not None:
        assert command.target is not None
        loss = command.options["loss"]
        return Dataset.from_file(
            command.table,
            command.target,
            command.owner,
            sample_weight=command.sample_weight,
            drop=command.drop or (),
            loss=loss,
        )
    if not is_user_object(command.data):
        return load(command.data, command.data_dir)
    found = get_user_object(command.data)
    with convert_errors(f"{command.data} failed", ArgumentError):
        found = found() if callable(found) else found
    if not isinstance(found, Dataset | Federation):
        wanted = "a tf.Dataset or a tf.Federation, or a function that returns one"
        raise ArgumentError(f"{command.data} must be {wanted}, got {type(found).__name__}.")
    return found


def make_federation(command: CommandConfig, dataset: Dataset | Federation) -> Federation:
    """Return the dataset, divided among clients, with a test set."""
    fed = dataset if isinstance(dataset, Federation) else _split(command, dataset)
    if dataset is fed and (command.split != "auto" or command.clients is not None):
        raise ArgumentError(f"{command.data} is divided among clients already; no --split fits.")
    size = command.test_size
    if fed.test is not None:
        if size is not None:
            raise ArgumentError(
                f"--test-size {size}: the data {fed.name!r} has a test set already."
            )
        return fed
    size = 0.2 if size is None and command.table is not None else size
    return fed if size is None else fed.with_test(size, command.test_by, command.options["seed"])


def _split(command: CommandConfig, dataset: Dataset) -> Federation:
    split = command.split
    if split == "auto":
        split = "dirichlet:0.3" if dataset.owner is None else "owner"
    partitioner = partition.parse(split)
    clients = command.clients
    if clients is None and not isinstance(partitioner, partition.ByOwner):
        clients = 20
    return dataset.split(partitioner, clients=clients, seed=command.options["seed"])


def make_model(command: CommandConfig, dataset: Dataset | Federation) -> nn.Module:
    """Return the network, initialised from the seed."""
    x, classes = dataset.x, dataset.classes or 1
    if command.options["loss"] == "bce" and classes == 2:
        classes = 1
    first = list_tensors(x)[0]
    shape: Any = tuple(first.shape[1:])
    shapes = {k: tuple(v.shape[1:]) for k, v in x.items()} if isinstance(x, Mapping) else shape
    name, seed = command.model, command.options["seed"]
    if is_user_object(name):
        return _make_user_model(name, {"shape": shape, "classes": classes, "seed": seed})
    if name == "auto":
        name = nets.default_for(shapes, classes, not first.is_floating_point(), dataset.name)
        name = "mlp" if command.table is not None else name  # for numbers as for classes
    words = dataset.words if isinstance(dataset, Dataset) else ()
    extra = {"vocab": len(words)} if words and name in TOKEN_MODELS else {}
    return nets.build(name, shape=shape, classes=classes, seed=seed, **extra)


def _make_user_model(text: str, facts: dict[str, Any]) -> nn.Module:
    """Return the user's module: as it is, or made by a function of some of the facts."""
    found = get_user_object(text)
    if not isinstance(found, nn.Module):
        if not callable(found):
            wanted = "a torch.nn.Module, or a function or class that makes one"
            raise ArgumentError(f"{text} must be {wanted}, got {type(found).__name__}.")
        taken = inspect.signature(found).parameters
        given = {name: value for name, value in facts.items() if name in taken}
        with torch_seed(facts["seed"]), convert_errors(f"{text} failed", ArgumentError):
            found = found(**given)
    if not isinstance(found, nn.Module):
        raise ArgumentError(f"{text} must return a torch.nn.Module, got {type(found).__name__}.")
    return found


def make_config(command: CommandConfig) -> RunConfig:
    """Return the configuration of the run."""
    loss = command.options["loss"]
    options = dict(command.options) | {
        "method": make_method(command),
        "loss": get_user_object(loss) if is_user_object(loss) else loss,
        "cohort": command.options["cohort"] or None,
        "batch": command.options["batch"] or None,
        "dtype": getattr(torch, command.options["dtype"]),
    }
    if command.table is not None and options["scale"] == "auto":
        options["scale"] = "standard"  # with any method, so that comparisons are fair
    return RunConfig().replace(**options)


class CommandRun(NamedTuple):
    """The configuration, model and federation of a command."""

    config: RunConfig
    model: nn.Module
    federation: Federation


def build_run(command: CommandConfig) -> CommandRun:
    """Return the configuration, the model and the federation; the texts are checked first."""
    config = make_config(command)  # refuses wrong texts before the data is loaded
    if command.method == "auto" and not command.set:
        config = config.replace(method="auto")  # by name, which standardises the columns of tables
    dataset = load_data(command)
    return CommandRun(config, make_model(command, dataset), make_federation(command, dataset))
