"""The options of a run on the command line, and in a TOML file.

Those of the command line are derived from `RunConfig` and `CommandConfig`. A file is that of
`--config FILE`, or the one that a run folder keeps; its keys are the options' names. Its options
count as if they had been typed; those that are typed as well take their place.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..core.errors import ArgumentError, convert_errors
from ..core.files import MAX_JSON, read_file, write_atomically
from ..core.text import read_argument_docs
from ..training.command import CLI_OPTIONS, CommandConfig
from ..training.config import OPTION_DOCS
from .app import CONFIG

TABLE = ("--table", "--csv", "--parquet")  # names of one option
JOINED = ("methods", "seeds")  # options whose lists are typed with commas


def make_options(*, hidden: tuple[str, ...] = (), **defaults: Any) -> Any:
    """Return a dataclass of all options of a run, as cyclopts reads it.

    Args:
        hidden: Options that the command does not take.
        **defaults: Defaults that differ from those of `tunefree run`.
    """
    docs = OPTION_DOCS | read_argument_docs(CommandConfig.__doc__)
    docs["config"] = "A TOML file with options by name; those typed here come first."
    own = {f.name: (f.type, f.default) for f in fields(CommandConfig) if f.name != "options"}
    last = {"data_dir": own.pop("data_dir"), "config": (Path | None, None)}
    options = []
    for name, (kind, default) in (own | CLI_OPTIONS | last).items():
        about = Parameter(parse=False) if name in hidden else Parameter(help=docs[name])
        if name == "table":
            about = Parameter(name=TABLE, help=docs[name])
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
    command.load_user_objects()
    return command


def next_folder(name: str) -> Path:
    """Return the first free folder runs/NAME-1, runs/NAME-2, ..."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path


def expand_config(arguments: list[str]) -> list[str]:
    """Return a command line in which the options of the file replace `--config`."""
    typed = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    typed |= set(TABLE) if typed & set(TABLE) else set()
    if "--config" not in typed:
        return arguments
    at = next(i for i, word in enumerate(arguments) if word.partition("=")[0] == "--config")
    _, equals, name = arguments[at].partition("=")
    rest = arguments[at + 1 :]
    if not equals:
        if not rest:
            raise ArgumentError("--config must name a TOML file.")
        name, *rest = rest
    if "--config" in {word.partition("=")[0] for word in rest}:
        raise ArgumentError("--config may be given once.")
    data = read_file(name, MAX_JSON, follow=True)
    with convert_errors(f"{name} is not TOML", ArgumentError):
        found = tomllib.loads(data.decode())
    words: list[str] = []
    for key, value in found.items():
        option = f"--{key.replace('_', '-')}"
        if option == "--config":
            raise ArgumentError(f"{name} cannot name another --config.")
        if option not in typed:
            words += _list_words(option, value, f"{name}: {key}")
    return [*arguments[:at], *words, *rest]


def _list_words(option: str, value: Any, what: str) -> list[str]:
    """Return an option as it is typed."""
    if isinstance(value, bool):
        return [option] if value else []
    if isinstance(value, Mapping):  # [set] lr = 0.1, or [grid] lr = [0.1, 1.0]
        texts = [f"{k}={_join(v, what)}" for k, v in value.items()]
    elif isinstance(value, list) and option.removeprefix("--") not in JOINED:
        texts = [_join(one, what) for one in value]
    else:
        texts = [_join(value, what)]
    return [word for text in texts for word in (option, text)]


def _join(value: Any, what: str) -> str:
    if isinstance(value, list):
        return ",".join(_join(one, what) for one in value)
    if isinstance(value, str | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    raise ArgumentError(f"{what} must be text, a number, true or false, or a list, got {value!r}.")


def to_toml(options: Mapping[str, Any]) -> str:
    """Return options as TOML; those that are not given are left out.

    >>> print(to_toml({"table": None, "rounds": 5, "set": ["lr=0.1"], "keep_best": False}), end="")
    rounds = 5
    set = ["lr=0.1"]
    keep_best = false
    """
    hidden = ["data"] if options.get("table") else []
    given = {k: v for k, v in options.items() if v not in (None, [], ()) and k not in hidden}
    return "".join(f"{k} = {_to_value(v)}\n" for k, v in given.items())


def _to_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_to_value(one) for one in value)}]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text) + '"'


@dataclass(frozen=True)
class KeepConfig:
    """A callback that writes the options of a command into its folder."""

    folder: Path
    options: Mapping[str, Any]

    def begin(self, settings: object = None, history: object = None) -> None:
        """Write the file."""
        write_atomically(self.folder / CONFIG, to_toml(self.options).encode())

    def __call__(self, event: object) -> None:
        """Do nothing after a round."""
