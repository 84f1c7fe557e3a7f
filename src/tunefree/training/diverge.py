"""Detection of divergence, and its message."""

import math
from typing import Any

import torch

from ..methods import Method
from ..rounds import ServerState

PARTS = {
    "x": "the model",
    "server": "the server's memory",
    "direction": "what the direction shares",
    "step": "what the step shares",
    "output": "the memory of the output",
}


def find_nonfinite(after: ServerState, row: dict[str, Any]) -> str | None:
    """Return a description of what is not finite after a round, or None."""
    if not math.isfinite(row["train_loss"]) and row.get("answered") != 0:
        return "the training loss"
    found = after.tensors()
    finite = torch.stack([torch.isfinite(v).all() for v in found.values()]).tolist()
    for name, is_finite in zip(found, finite, strict=True):
        if not is_finite:
            part, _, own = name.partition(".")
            return PARTS[part] + (f" ({own})" if own else "")
    return None


def divergence_message(what: str, round: int, method: Method) -> str:
    """Return the warning: what is not finite, in which round, and what to try."""
    facts = method.describe()
    rates = {
        name: facts[part][name]
        for part, name in (("step", "lr"), ("server", "server_lr"))
        if isinstance(facts[part], dict) and isinstance(facts[part].get(name), int | float)
    }
    tips = [f"a smaller {name} (it is {value:g})" for name, value in rates.items()]
    if method.clip is None:
        tips.append("clip=1.0")
    tips.append("method auto" if method.name != "auto" else "smaller inputs, or dtype float64")
    return (
        f"Diverged in round {round}: {what} is no longer finite; the state before it is kept. "
        f"Try {', '.join(tips[:-1])}{' or ' if len(tips) > 1 else ''}{tips[-1]}."
    )
