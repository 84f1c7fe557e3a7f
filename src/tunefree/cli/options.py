"""The options of a run on the command line, derived from `RunConfig` and `CommandConfig`."""

from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..training.command import CLI_OPTIONS, CommandConfig

TABLE = ("--table", "--csv", "--parquet")  # names of one option


def make_options(*, hidden: tuple[str, ...] = (), **defaults: Any) -> Any:
    """Return a dataclass of all options of a run, as cyclopts reads it.

    Args:
        hidden: Options that the command does not take.
        **defaults: Defaults that differ from those of `tunefree run`.
    """
    own = {
        f.name: (f.type, f.default, f.metadata["help"])
        for f in fields(CommandConfig)
        if f.name != "options"
    }
    run = {
        name: (m["cli"], m["cli_default"], m["help"])
        for name, m in ((name, about.metadata) for name, about in CLI_OPTIONS.items())
    }
    file = (Path | None, None, "A TOML file with options by name; those typed here come first.")
    last = {"data_dir": own.pop("data_dir"), "config": file}
    options = []
    for name, (kind, default, help) in (own | run | last).items():
        about = Parameter(parse=False) if name in hidden else Parameter(help=help)
        if name == "table":
            about = Parameter(name=TABLE, help=help)
        options.append((name, Annotated[kind, about], field(default=defaults.get(name, default))))
    kind = make_dataclass("Options", options, frozen=True, kw_only=True)
    kind.__module__ = __name__  # cyclopts takes classes of the module `types` for built-in ones
    return kind


if TYPE_CHECKING:
    RunOptions = Any
    CompareOptions = Any
    TuneOptions = Any
    AdviseOptions = Any
else:
    RunOptions = make_options()
    CompareOptions = make_options(hidden=("method", "set", "seed"))
    TuneOptions = make_options(hidden=("seed",), method="fedavg")
    AdviseOptions = make_options(hidden=("method", "set"))


def read_options(options: Any, kind: Any) -> CommandConfig:
    """Return the command of parsed options; None are the defaults."""
    given = kind() if options is None else options
    found = {f.name: getattr(given, f.name) for f in fields(given) if f.name != "config"}
    command = CommandConfig().replace(**found)
    command.load_own()
    return command


def next_folder(name: str) -> Path:
    """Return the first free folder runs/NAME-1, runs/NAME-2, ..."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path
