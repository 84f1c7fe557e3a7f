"""The command `tunefree flower new`."""

from pathlib import Path

from cyclopts import App

from .app import app, print_line

flower = App(name="flower", help="Train over real machines with Flower.")
app.command(flower)


@flower.command
def new(folder: Path) -> int:
    """Write the template of an app: model and data, server, client, and a README with the commands.

    Args:
        folder: Target folder; it must be empty or missing.
    """
    from ..flower.apps import write_app

    print_line(f"Written: {write_app(folder)}. Read its README.md.")
    return 0
