"""How the client's learning rate changes over rounds.

factor(t) = shape(t) * min(1, (t + 1) / warmup)           t = 0 .. T-1
constant:     1
cosine:       floor + (1 - floor) (1 + cos(pi t / (T - 1))) / 2
exponential:  rate^t
"""

import math
from dataclasses import dataclass
from typing import Literal

from ..errors import ArgumentError, unknown


@dataclass(frozen=True)
class Schedule:
    """Factor on the learning rate in each round.

    Args:
        shape: "constant", "cosine" (to `floor` of the start) or "exponential" (`rate` a round).
        floor: Where the cosine ends, in [0, 1].
        rate: Factor per round of the exponential, in (0, 1].
        warmup: Rounds of linear growth at the start, >= 0.

    >>> Schedule.parse("cosine+warmup:2").factor(0, rounds=10)
    0.5
    """

    shape: Literal["constant", "cosine", "exponential"] = "constant"
    floor: float = 0.1
    rate: float = 0.998
    warmup: int = 0

    def __post_init__(self) -> None:
        shapes = ("constant", "cosine", "exponential")
        if self.shape not in shapes:
            raise unknown("schedule", self.shape, shapes)
        if not 0 <= self.floor <= 1:
            raise ArgumentError(f"Schedule(floor=...) must be in [0, 1], got {self.floor!r}.")
        if not 0 < self.rate <= 1:
            raise ArgumentError(f"Schedule(rate=...) must be in (0, 1], got {self.rate!r}.")
        if self.warmup < 0:
            raise ArgumentError(f"Schedule(warmup=...) must be >= 0, got {self.warmup!r}.")

    @property
    def steady(self) -> bool:
        """Whether the factor is always 1."""
        return self.shape == "constant" and self.warmup == 0

    def factor(self, t: int, rounds: int) -> float:
        """Return the factor for round t of `rounds`."""
        grow = min(1.0, (t + 1) / self.warmup) if self.warmup else 1.0
        if self.shape == "cosine":
            turn = (1 + math.cos(math.pi * t / max(rounds - 1, 1))) / 2
            return grow * (self.floor + (1 - self.floor) * turn)
        return grow * (self.rate**t if self.shape == "exponential" else 1.0)

    @staticmethod
    def parse(text: "str | Schedule") -> "Schedule":
        """Read "constant", "cosine", "cosine:0.01", "exponential:0.998", "cosine+warmup:10"."""
        if isinstance(text, Schedule):
            return text
        settings: dict[str, object] = {}
        for word in str(text).split("+"):
            name, _, number = word.partition(":")
            field = {"cosine": "floor", "exponential": "rate", "warmup": "warmup"}.get(name)
            if name not in ("constant", "cosine", "exponential", "warmup"):
                raise unknown("schedule", text, ("constant", "cosine", "exponential", "warmup"))
            if name != "warmup":
                settings["shape"] = name
            try:
                if number and field:
                    settings[field] = int(number) if name == "warmup" else float(number)
            except ValueError:
                raise ArgumentError(
                    f"A schedule's number must follow its colon, as in 'exponential:0.998' or "
                    f"'cosine+warmup:10', got {text!r}."
                ) from None
        return Schedule(**settings)  # type: ignore[arg-type]
