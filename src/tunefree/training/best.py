"""The round that is shipped with `keep_best`, and for how long no evaluation was better."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from .history import Row


@dataclass
class BestRound:
    """The best validation score so far, the round to ship, and how long nothing was better.

    The round is the latest one whose score is less than `margin` above the best. Arms, short runs
    before the run itself, may have it. Patience begins after them: `waited` counts evaluations
    since the best one, with score `lowest`, of the run itself.
    """

    score: float = math.inf
    margin: float = 0.0
    round: int = -1
    lowest: float = math.inf
    waited: int = 0

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Self:
        """Return what a checkpoint recorded, in which null is infinity."""
        found: dict[str, Any] = {n: math.inf if v is None else v for n, v in facts.items()}
        return cls(**found)

    def update(self, row: Row, settings: dict[str, Any]) -> bool:
        """Take the row of an evaluated round; return whether this round is the one to ship."""
        score = validation_score(row, settings)
        is_shipped = score is not None and score < self.score + self.margin
        if is_shipped:
            self.round = row.get("round", 0)
        if score is not None and score < self.score:
            tolerance = settings.get("tolerance")
            self.score = score
            self.margin = float(tolerance * row["validation_loss_error"]) if tolerance else 0.0
        if "arm" in row:
            return is_shipped
        if score is not None and score < self.lowest:
            self.lowest, self.waited = score, 0
        else:
            self.waited += 1
        return is_shipped


def validation_score(row: Row, settings: dict[str, Any]) -> float | None:
    """Return the number that early stopping and keep-best lower, if the round has one."""
    name = settings.get("monitor") or ("accuracy" if "validation_accuracy" in row else "loss")
    value, mode = row.get(f"validation_{name}"), settings.get("mode")
    if value is None or math.isnan(value):
        return None
    is_raised = mode == "max" or (mode is None and name == "accuracy")
    return -float(value) if is_raised else float(value)


def choose_round(rows: Iterable[Row], settings: dict[str, Any]) -> int | None:
    """Return the index of the round that is shipped with `keep_best`, if one has a score.

    >>> rows = [{"validation_loss": v, "validation_loss_error": 0.1} for v in (3.0, 1.0, 1.05, 2.0)]
    >>> settings = {"monitor": "loss", "mode": "min"}
    >>> choose_round(rows, settings), choose_round(rows, settings | {"tolerance": 1.0})
    (1, 2)
    """
    best = BestRound()
    shipped = [index for index, row in enumerate(rows) if best.update(row, settings)]
    return shipped[-1] if shipped else None
