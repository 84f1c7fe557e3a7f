"""The command line of the demo: `python -m examples.federation`."""

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from tunefree.cli import main
from tunefree.cli.app import err, out
from tunefree.flower.apps import import_flower
from tunefree.report.terminal import make_table

from .demo import compare_histories, describe_difference, train_federation, train_simulation

demo = App(name="python -m examples.federation", default_parameter=Parameter(negative=""))


def _print_round(row: dict[str, Any]) -> None:
    err.print(
        f"round {row['round']}: loss {row['train_loss']:.4f}, {row['answered']} answered, "
        f"{row['seconds']:.1f} s"
    )


@demo.default
def run(
    *,
    method: str = "auto",
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative_iterable="")] = (),
    rounds: int = 10,
    seed: int = 0,
    folder: Path | None = None,
) -> int:
    """Train on digits over three local SuperNodes, and in a simulation with the same seed.

    A SuperLink and three SuperNodes are started on the loopback interface, without encryption, and
    stopped at the end. A round takes a few seconds, most of which Flower spends waiting.

    Parameters
    ----------
    method: str
        Method name.
    settings: list
        A setting of the method, such as lr=0.1; may be repeated.
    rounds: int
        Rounds of communication.
    seed: int
        Seed of all random numbers.
    folder: Path
        Keep the app, the run and the logs in this folder; by default they are removed.
    """
    import_flower()
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        home = Path(place).resolve()
        err.print(f"Training {rounds} rounds over a SuperLink and three SuperNodes.")
        federated = train_federation(home, method, settings, rounds, seed, on_round=_print_round)
        simulated = train_simulation(home, method, settings, rounds, seed)
    headings = {
        "round": "round",
        "answered": "answered",
        "federation": "accuracy",
        "simulation": "simulated",
        "loss": "loss",
        "simulated loss": "simulated",
        "seconds": "seconds",
    }
    out.print(make_table(compare_histories(federated, simulated), headings))
    out.print(describe_difference(federated, simulated))
    return 0 if federated.status == "finished" else 1


if __name__ == "__main__":
    main(app=demo)
