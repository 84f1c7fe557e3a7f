"""Finding and loading the specifications of experiments.

experiments/P1/table2.toml is the experiment P1-table2; experiments/P1/expected.toml has the
published numbers of all of P1's.
"""

import os
import tomllib
from pathlib import Path

from tunefree.core.errors import ArgumentError, convert_errors, first_line, unknown_name

from .check import check_spec
from .keys import SCALES
from .spec import Experiment, SpecFile, Table


class Spec(SpecFile):
    """A specification that was loaded."""

    def at(self, scale: str) -> Experiment:
        """Return the experiment at a scale.

        Raises:
            ArgumentError: The specification has not that scale, or is wrong.
        """
        if scale not in SCALES:
            raise unknown_name("scale", scale, SCALES)
        if scale not in self.scales:
            raise ArgumentError(
                f"{self.name} has no scale {scale!r}, only {', '.join(self.scales) or 'none'}."
            )
        says = f"{self.name} ({self.path}), {scale}: something in it has not the form it must have"
        with convert_errors(says, ArgumentError):
            return check_spec(self, scale)


def home() -> Path:
    """Return the folder of the experiments: $TUNEFREE_EXPERIMENTS, or that of this package."""
    named = os.environ.get("TUNEFREE_EXPERIMENTS")
    if named and not Path(named).is_dir():
        raise ArgumentError(f"$TUNEFREE_EXPERIMENTS must name a folder that exists, got {named!r}.")
    return Path(named) if named else Path(__file__).parent


def find(place: Path | None = None) -> dict[str, Path]:
    """Return the file of every experiment by name."""
    files = sorted((place or home()).glob("*/*.toml"))
    return {f"{p.parent.name}-{p.stem}": p for p in files if p.stem != "expected"}


def load(name: str | os.PathLike[str], place: Path | None = None) -> Spec:
    """Return a specification by name, or by its file."""
    if isinstance(name, os.PathLike) or str(name).endswith(".toml"):
        path = Path(name)
        called = f"{path.resolve().parent.name}-{path.stem}"
    else:
        known = find(place)
        called = next((n for n in known if n.lower() == name.lower()), name)
        if called not in known:
            raise unknown_name("experiment", name, known)
        path = known[called]
    beside = path.parent / "expected.toml"
    published = _read(beside) if beside.exists() else {}
    own = published.get(path.stem, {})
    if not isinstance(own, dict):
        raise ArgumentError(f"{beside}: [{path.stem}] must be a table, got {own!r}.")
    return Spec(called, path, _read(path), own)


def _read(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} is not TOML: {first_line(error)}.") from None
