"""Ranges of settings, declared as types of the fields of a dataclass, and their check.

    lr: Positive = 0.1
    clip: Positive | None = None

A field that is a bool, a `Literal` or an abstract class is checked too.
"""

import inspect
from dataclasses import fields
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from . import errors

Positive: TypeAlias = Annotated[float, errors.check_positive]
NonNegative: TypeAlias = Annotated[float, errors.check_nonnegative]
Finite: TypeAlias = Annotated[float, errors.check_finite]
AtLeastOne: TypeAlias = Annotated[float, partial(errors.check_at_least, low=1)]
Fraction: TypeAlias = Annotated[float, errors.check_fraction]
"""In (0, 1]."""
ProperFraction: TypeAlias = Annotated[float, partial(errors.check_between, low=0, high=1)]
"""In (0, 1)."""
Decay: TypeAlias = Annotated[float, partial(errors.check_in_range, low=0, high=1)]
"""In [0, 1)."""
PositiveInt: TypeAlias = Annotated[int, errors.check_int]
NonNegativeInt: TypeAlias = Annotated[int, partial(errors.check_int, low=0)]


class Checked:
    """Base of dataclasses whose fields are checked when an object is made."""

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(settings: Any) -> None:
    """Check the fields of a dataclass by the ranges in their types."""
    owner = type(settings).__name__
    for f in fields(settings):
        _check(owner, f.name, getattr(settings, f.name), options(f.type))


def options(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type itself.

    >>> options(float | None)
    (<class 'float'>, <class 'NoneType'>)
    """
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def bare_types(kind: Any) -> tuple[Any, ...]:
    """Return the types of a field without their ranges.

    >>> bare_types(Positive | None)
    (<class 'float'>, <class 'NoneType'>)
    """
    bare = [k.__origin__ if get_origin(k) is Annotated else k for k in options(kind)]
    return tuple(option for k in bare for option in options(k))


def has_type(value: Any, kind: Any) -> bool:
    """Return whether a value of JSON, or a tuple of texts, has the type that a field declares.

    >>> has_type(3, float | None), has_type(True, int), has_type(None, tuple[str, ...] | None)
    (True, False, True)
    """
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return any(has_type(value, one) for one in get_args(kind))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if origin in (int, float):
        return isinstance(value, int | origin) and not isinstance(value, bool)
    if not isinstance(value, origin):
        return False
    return origin is not tuple or all(isinstance(one, str) for one in value)


def _check(owner: str, name: str, value: Any, kinds: tuple[Any, ...]) -> None:
    if value is None and NoneType in kinds:
        return
    given = [k for k in kinds if k is not NoneType]
    for check in [c for k in given for c in getattr(k, "__metadata__", ())]:
        check(owner, name, value)
    if given == [bool]:
        errors.check_argument(owner, name, value, "True or False", isinstance(value, bool))
    if len(given) == 1 and get_origin(given[0]) is Literal:
        errors.check_known(f"{owner} {name}", value, get_args(given[0]))
    if len(given) == 1 and inspect.isabstract(given[0]):
        article = "an" if given[0].__name__[0] in "AEIOU" else "a"
        is_one = isinstance(value, given[0])
        errors.check_argument(owner, name, value, f"{article} {given[0].__name__}", is_one)
