"""The template of a Flower app that trains with tunefree: `tunefree flower new`."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from ..core.errors import ArgumentError


def write_app(folder: Path, name: str | None = None) -> Path:
    """Write the template of an app: pyproject.toml, server, client and README.

    Args:
        folder: Target folder; it must be empty or missing.
        name: Name of the app; defaults to the folder's name.

    Returns:
        The folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentError(f"{str(folder)!r} must be an empty or a new folder.")
    title = name or folder.resolve().name
    known = "".join(c if c.isalnum() or c == "-" else "-" for c in title.lower()).strip("-")
    _copy(files(__package__).joinpath("files"), folder, known or "federation")
    return folder


def _copy(source: Traversable, target: Path, name: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for item in source.iterdir():
        if item.is_dir():
            _copy(item, target / item.name, name)
        elif item.name.endswith(".txt"):
            path = target / item.name.removesuffix(".txt")
            path.write_text(item.read_text().replace("NAME", name))
