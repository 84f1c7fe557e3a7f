"""The template of a Flower app that trains with tunefree: `tunefree flower new`."""

from importlib.resources import as_file, files
from pathlib import Path

from ..core.errors import ArgumentError
from ..core.files import write_file


def write_app(folder: Path, name: str | None = None) -> Path:
    """Write the template of an app into an empty or a new folder, and return the folder.

    The name of the app defaults to the folder's.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentError(f"{str(folder)!r} must be an empty or a new folder.")
    title = name or folder.resolve().name
    known = "".join(c if c.isalnum() or c == "-" else "-" for c in title.lower()).strip("-")
    with as_file(files(__package__).joinpath("files")) as source:
        for item in source.rglob("*.txt"):
            path = folder / item.relative_to(source).with_suffix("")
            path.parent.mkdir(parents=True, exist_ok=True)
            text = item.read_text().replace("NAME", known or "federation")
            write_file(path, text.encode())
    return folder
