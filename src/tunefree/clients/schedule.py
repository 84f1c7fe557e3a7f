"""How the client's learning rate changes over rounds.

factor(t) = shape(t) * min(1, (t + 1) / warmup)           t = 0 .. T-1
constant:     1
cosine:       floor + (1 - floor) (1 + cos(pi t / (T - 1))) / 2
linear:       floor + (1 - floor) min(1, (1 - t / T) / (1 - hold))
exponential:  rate^t
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from ..core.errors import ArgumentError, unknown_name
from ..core.fields import Checked, NonNegative, NonNegativeInt, Positive
from ..core.text import parse_value


@dataclass(frozen=True)
class Schedule(Checked):
    """Factor on the learning rate in each round.

    Args:
        shape: "constant", "cosine" or "linear" (to `floor` of the start), or "exponential" (`rate`
            a round).
        floor: Where cosine and linear decay end, in [0, 1].
        rate: Factor per round of the exponential, in (0, 1].
        warmup: Rounds of linear growth at the start, >= 0.
        hold: Share of the rounds before the linear decay begins, in [0, 1).

    >>> Schedule.parse("cosine+warmup:2").factor(0, rounds=10)
    0.5
    """

    shape: Literal["constant", "cosine", "linear", "exponential"] = "constant"
    floor: NonNegative = 0.1
    rate: Positive = 0.998
    warmup: NonNegativeInt = 0
    hold: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.floor > 1 or self.rate > 1:
            raise ArgumentError(
                f"Schedule(floor=..., rate=...) must be at most 1, got {self.floor}, {self.rate}."
            )
        if self.hold and (self.shape != "linear" or self.hold >= 1):
            given = f"got hold={self.hold}, shape={self.shape!r}"
            raise ArgumentError(f"Schedule(hold=...) is below 1 and for shape='linear', {given}.")

    @property
    def is_constant(self) -> bool:
        """Whether the factor is always 1."""
        return self.shape == "constant" and self.warmup == 0

    def factor(self, t: int, rounds: int) -> float:
        """Return the factor for round t of `rounds`."""
        grow = min(1.0, (t + 1) / self.warmup) if self.warmup else 1.0
        if self.shape == "cosine":
            wave = (1 + math.cos(math.pi * t / max(rounds - 1, 1))) / 2
            return grow * (self.floor + (1 - self.floor) * wave)
        if self.shape == "linear":
            rest = min(1.0, (1 - t / rounds) / (1 - self.hold))
            return grow * (self.floor + (1 - self.floor) * rest)
        return grow * (self.rate**t if self.shape == "exponential" else 1.0)

    @staticmethod
    def parse(text: "str | Schedule") -> "Schedule":
        """Return the schedule of a text; a schedule is returned as it is.

        The texts are "constant", "cosine", "cosine:FLOOR", "linear", "linear:FLOOR", "exponential",
        "exponential:RATE" and "warmup:ROUNDS", a shape with a warm-up, "cosine+warmup:10", and a
        linear decay in the last rounds only, "linear:0+hold:0.75".
        """
        if isinstance(text, Schedule):
            return text
        numbers = {"cosine": "floor", "linear": "floor", "exponential": "rate"}
        extras = ("warmup", "hold")
        numbers |= {name: name for name in extras}
        settings: dict[str, Any] = {}
        for word in str(text).split("+"):
            name, colon, number = word.partition(":")
            if name not in ("constant", *numbers):
                raise unknown_name("schedule", text, ("constant", *numbers))
            field = name if name in extras else "shape"
            if field in settings or (colon and name == "constant"):
                raise ArgumentError(
                    "A schedule is one shape and perhaps a warm-up, as in 'cosine+warmup:10' or "
                    f"'exponential:0.998', got {text!r}."
                )
            settings[field] = name
            if colon or name in extras:
                kind = int if name == "warmup" else float
                what = f"The {numbers[name]} of the schedule {text!r}"
                settings[numbers[name]] = parse_value(what, number, kind)
        return Schedule(**settings)
