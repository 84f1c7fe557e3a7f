"""The command `tunefree flower new`."""

from pathlib import Path

from cyclopts import App

from .app import app, out

flower = App(name="flower", help="Train over real machines with Flower.")
app.command(flower)


@flower.command
def new(folder: Path) -> int:
    """Write the template of an app: model and data, server, client, and a README with the commands.

    Parameters
    ----------
    folder: Path
        Target folder; it must be empty or missing.
    """
    from ..flower.template import write_app

    out.print(f"Written: {write_app(folder)}. Read its README.md.", markup=False, soft_wrap=True)
    return 0
