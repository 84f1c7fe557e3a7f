"""tunefree flower new, tunefree flower demo."""

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from ..report.terminal import make_table
from .app import app, err, out

flower = App(name="flower", help="Train over real machines, carried by Flower.")
app.command(flower)


@flower.command
def new(folder: Path) -> int:
    """Write an app's folder: model and data, server, client, and a README with the commands.

    Parameters
    ----------
    folder: Path
        Where; it must be empty or missing.
    """
    from ..flower.loopback import new as write

    out.print(f"Written: {write(folder)}. Read its README.md.", markup=False, soft_wrap=True)
    return 0


def _tell(row: dict[str, Any]) -> None:
    said = f"round {row['round']}: loss {row['train_loss']:.4f}, {row['answered']} answered"
    err.print(f"{said}, {row['seconds']:.1f} s")


@flower.command
def demo(
    *,
    method: str = "auto",
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative_iterable="")] = (),
    rounds: int = 10,
    seed: int = 0,
    folder: Path | None = None,
) -> int:
    """Train on digits over three SuperNodes on this machine, beside the same run simulated.

    A SuperLink and three SuperNodes are started on the loopback, without encryption, and stopped
    at the end. A round takes seconds, most of them Flower's waiting.

    Parameters
    ----------
    method: str
        Method name.
    settings: list
        A setting of the method, such as lr=0.1; may be repeated.
    rounds: int
        Rounds of communication.
    seed: int
        Everything random follows from it.
    folder: Path
        Keep the app, the run and the logs here; by default they are removed.
    """
    from ..flower.apps import flower as needed
    from ..flower.demo import federated, simulated, table, verdict

    needed()
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        home = Path(place).resolve()
        err.print(f"A SuperLink and three SuperNodes are at work; {rounds} rounds.")
        real = federated(home, method, settings, rounds, seed, tell=_tell)
        alone = simulated(home, method, settings, rounds, seed)
    headings = {
        "round": "round",
        "answered": "answered",
        "federation": "accuracy",
        "simulation": "simulated",
        "loss": "loss",
        "simulated loss": "simulated",
        "seconds": "seconds",
    }
    out.print(make_table(table(real, alone), headings))
    out.print(verdict(real, alone))
    return 0 if real.status == "finished" else 1
