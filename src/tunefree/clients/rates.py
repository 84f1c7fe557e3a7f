"""Step sizes that depend only on the numbers of clients, steps and rounds.

    ParFreFL:     beta = min(1, sqrt(S K / T)),  lr = 1 / (K (S K T)^(1/4)),
                  server_lr = (S K)^(1/4) / T^(3/4)
    PAdaMFed:     the same beta and server_lr,   lr = 1 / (K sqrt(T))
    PAdaMFed-VR:  beta = min(1, (S K)^(1/3) / T^(2/3)),  lr = 1 / (K T),  server_lr = the same
                  number as beta before it is cut at 1

The theorems fix them up to a constant: `scale` multiplies lr and server_lr together.

Differences from the paper: beta is cut at 1, which the theorems reach by T >= S K.
"""

from dataclasses import dataclass
from typing import Literal

from ..core.fields import Checked, Fraction, Positive
from ..core.plan import Plan

Kind = Literal["parfrefl", "padamfed", "padamfed-vr"]


@dataclass(frozen=True)
class Rates(Checked):
    """Schedules of normalised methods, bound to S, K and T.

    Args:
        kind: Whose theorem: "parfrefl", "padamfed" or "padamfed-vr".
        scale: Multiplies the theorem's lr and server_lr, > 0.
        beta: Weight of the new gradient, in (0, 1]; None is the theorem's.
        lr: Length of a local step, > 0; None is the theorem's.
        server_lr: Length of a server step, > 0; None is the theorem's.
    """

    kind: Kind = "parfrefl"
    scale: Positive = 1.0
    beta: Fraction | None = None
    lr: Positive | None = None
    server_lr: Positive | None = None

    def beta_at(self, plan: Plan) -> float:
        """Return beta under this plan."""
        if self.beta is not None:
            return self.beta
        work = plan.cohort * plan.steps  # S K
        if self.kind == "padamfed-vr":
            return float(min(1.0, work ** (1 / 3) / plan.rounds ** (2 / 3)))
        return float(min(1.0, (work / plan.rounds) ** 0.5))

    def lr_at(self, plan: Plan) -> float:
        """Return the length of a local step under this plan."""
        K, T = plan.steps, plan.rounds
        found = {
            "parfrefl": 1 / (K * (plan.cohort * K * T) ** 0.25),
            "padamfed": 1 / (K * T**0.5),
            "padamfed-vr": 1 / (K * T),
        }[self.kind]
        return self.scale * found if self.lr is None else self.lr

    def server_lr_at(self, plan: Plan) -> float:
        """Return the length of a server step under this plan."""
        work, T = plan.cohort * plan.steps, plan.rounds
        vr = self.kind == "padamfed-vr"
        found = work ** (1 / 3) / T ** (2 / 3) if vr else work**0.25 / T**0.75
        return self.scale * found if self.server_lr is None else self.server_lr
