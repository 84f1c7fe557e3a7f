"""What every command shares: the application, where it prints, its exit codes."""

from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from ..core.files import to_json
from ..version import __version__

BAD_INPUT, DIVERGED, INTERRUPTED = 2, 3, 130  # exit codes

app = App(
    name="tunefree",
    version=__version__,
    help="Federated learning with nothing to tune.",
    default_parameter=Parameter(negative=""),
    help_epilogue="Start with `tunefree run`: it trains on embedded digits in a few seconds.",
)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, Parameter(name="--json", help="Print as JSON.")]


def say(facts: dict[str, Any], as_json: bool, otherwise: Any) -> None:
    """Print as JSON, or in another way."""
    if as_json:
        print(to_json(facts))
    else:
        otherwise(facts)
