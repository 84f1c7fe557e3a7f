"""The environment variable that turns compiled engines off, with the rooms `cpu` and `gpu`.

    TUNEFREE_ENGINES=plain    torch.func.vmap or the loop over clients, in plain PyTorch

Then nothing is compiled or recorded, and convolutions are PyTorch's own; `fit(compile=True)` has
no effect. Results agree up to rounding. Use it to tell a bug of a model from one of an engine.
"""

import os

from ..core.errors import unknown_name

VARIABLE = "TUNEFREE_ENGINES"
CHOICES = ("all", "plain")


def are_engines_enabled() -> bool:
    """Return whether compiled engines may be used: TUNEFREE_ENGINES is not "plain"."""
    value = os.environ.get(VARIABLE) or "all"
    if value not in CHOICES:
        raise unknown_name(f"value of {VARIABLE}", value, CHOICES)
    return value == "all"
