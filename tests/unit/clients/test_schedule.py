import math

import pytest

from tunefree.clients import Schedule
from tunefree.core.errors import ArgumentError


def factors(text, rounds):
    return [Schedule.parse(text).factor(t, rounds) for t in range(rounds)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant", [1, 1, 1]),
        ("cosine", [1, 0.55, 0.1]),
        ("cosine:0.5", [1, 0.75, 0.5]),
        ("cosine:0", [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0]),
        ("exponential:0.5", [1, 0.5, 0.25, 0.125]),
        ("linear:0", [1, 0.75, 0.5, 0.25]),
        ("linear:0.2", [1, 0.8, 0.6, 0.4]),
        ("linear:0+hold:0.75", [1, 1, 1, 1, 1, 1, 1, 0.5]),
        ("linear:0+hold:0.75", [1, 1, 1, 1, 0.8]),
        ("hold:0.5+linear:0.2+warmup:2", [0.5, 1, 1, 0.6]),
        ("linear:0+hold:0.75", [1]),
        ("exponential", [1, 0.998, 0.998**2]),
        ("warmup:4", [0.25, 0.5, 0.75, 1, 1]),
        ("constant+warmup:2", [0.5, 1, 1]),
        ("cosine+warmup:2", [0.5, 0.55, 0.1]),
        ("exponential:0.5+warmup:4", [0.25, 0.25, 0.1875, 0.125, 0.0625]),
        ("cosine", [1]),
    ],
)
def test_factors(text, expected):
    assert factors(text, len(expected)) == pytest.approx(expected, abs=1e-15)


def test_is_constant():
    assert Schedule().is_constant
    assert Schedule.parse("constant+warmup:0").is_constant
    assert not Schedule.parse("warmup:2").is_constant
    assert not Schedule.parse("cosine").is_constant


def test_a_schedule_parses_to_itself():
    schedule = Schedule("cosine", warmup=3)
    assert Schedule.parse(schedule) is schedule


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cosin", "Unknown schedule 'cosin'. Did you mean 'cosine'?"),
        ("exponential:fast", "The rate of the schedule 'exponential:fast' must be a number."),
        ("warmup:1.5", "The warmup of the schedule 'warmup:1.5' must be an int."),
        ("cosine+warmup:", "The warmup of the schedule 'cosine+warmup:' must be an int."),
        ("exponential:0", "Schedule(rate=...) must be a finite number > 0, got 0.0."),
        ("exponential:nan", "Schedule(rate=...) must be a finite number > 0, got nan."),
        ("exponential:1.5", "Schedule(floor=..., rate=...) must be at most 1, got 0.1, 1.5."),
        ("cosine:-0.5", "Schedule(floor=...) must be a finite number >= 0, got -0.5."),
        ("cosine:2", "Schedule(floor=..., rate=...) must be at most 1, got 2.0, 0.998."),
        ("linear+hold", "The hold of the schedule 'linear+hold' must be a number."),
        ("linear+hold:-1", "Schedule(hold=...) must be a finite number >= 0, got -1.0."),
        ("linear+hold:1", "below 1 and for shape='linear', got hold=1.0, shape='linear'."),
        ("cosine+hold:0.5", "below 1 and for shape='linear', got hold=0.5, shape='cosine'."),
        ("warmup:-1", "Schedule(warmup=...) must be an int >= 0, got -1."),
    ],
)
def test_bad_text(text, words):
    with pytest.raises(ArgumentError) as error:
        Schedule.parse(text)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "constant:3",
        "cosine+exponential:0.9",
        "cosine+cosine",
        "warmup:2+warmup:3",
        "linear+hold:0.1+hold:0.2",
    ],
)
def test_text_of_which_a_part_would_be_ignored(text):
    with pytest.raises(ArgumentError) as error:
        Schedule.parse(text)
    assert str(error.value) == (
        "A schedule is one shape and perhaps a warm-up, as in 'cosine+warmup:10' or "
        f"'exponential:0.998', got {text!r}."
    )
