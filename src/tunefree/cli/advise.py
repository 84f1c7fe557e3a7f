"""tunefree advise."""

from dataclasses import asdict, dataclass, fields
from typing import Annotated

from cyclopts import Parameter

from ..advice.advise import advise as find
from ..core.errors import ArgumentError
from ..data import load
from ..methods import Method
from ..training.recipe import Recipe, cohort_size, make_federation, make_model
from .app import AsJson, app, out, say

Hidden = Parameter(parse=False)


@dataclass(frozen=True, kw_only=True)
class Asked(Recipe):
    """The data, the model and the work that advice is asked for."""

    __doc__ = Recipe.__doc__
    method: Annotated[str, Hidden] = "auto"
    set: Annotated[tuple[str, ...] | None, Hidden] = None


@app.command
def advise(
    recipe: Annotated[Asked | None, Parameter(name="*")] = None,
    *,
    tuning: Annotated[bool, Parameter(negative="--no-tuning")] = False,
    stateless: bool = False,
    sparse: bool = False,
    penalty: str | None = None,
    max_upload: str | None = None,
    skew: float | None = None,
    most: int = 3,
    as_json: AsJson = False,
) -> int:
    """Say which methods to try on this data, why, and what they cost.

    Examples:

    tunefree advise

    tunefree advise --data fashion-mnist --clients 100 --cohort 10 --stateless --max-upload 100kB

    tunefree advise --sparse --tuning

    Parameters
    ----------
    tuning: bool
        Learning rates may be searched for.
    stateless: bool
        Clients keep nothing between rounds.
    sparse: bool
        A model with zeros: the penalty l1:1e-4.
    penalty: str
        Another penalty, such as mcp:1e-4.
    max_upload: str
        What a client may send in a round, such as 300kB or 1MB.
    skew: float
        How much clients differ, from 0 to 1; measured on the labels by default.
    most: int
        How many methods at most.
    """
    if sparse and penalty is not None:
        raise ArgumentError(
            f"--sparse is --penalty l1:1e-4; give one of them, got {penalty!r} too."
        )
    recipe = recipe or Asked()
    dataset = load(recipe.data, recipe.data_dir)
    federation = make_federation(recipe, dataset)
    advice = find(
        make_model(recipe, dataset),
        federation,
        cohort=cohort_size(recipe, federation, Method()),
        steps=recipe.steps,
        epochs=recipe.epochs,
        batch=recipe.batch or None,
        tuning=tuning,
        stateless=stateless,
        penalty="l1:1e-4" if sparse else penalty,
        max_upload=max_upload,
        skew=skew,
        most=most,
    )
    words = words_of(recipe)
    commands = [choice.command(*words) for choice in advice]
    facts = asdict(advice)
    for choice, command in zip(facts["choices"], commands, strict=True):
        choice["command"] = command

    def show(_: object) -> None:
        out.print(str(advice.situation), markup=False, soft_wrap=True)
        for number, choice in enumerate(advice, 1):
            out.print(f"\n{number}. {choice}", markup=False, soft_wrap=True)
            out.print(f"   {choice.command(*words)}", markup=False, soft_wrap=True)
            if choice.choose:
                searched = choice.command(*words, verb="tune")
                out.print(f"   {searched}", markup=False, soft_wrap=True)
        for note in advice.notes:
            out.print(f"\n{note}", markup=False, soft_wrap=True)

    say(facts, as_json, show)
    return 0


def words_of(recipe: Recipe) -> list[str]:
    """Return the options that say what differs from the defaults.

    >>> words_of(Recipe(clients=9, keep_best=True))
    ['--clients', '9', '--keep-best']
    """
    words: list[str] = []
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if field.name in ("method", "set") or value == field.default:
            continue
        name = "--" + field.name.replace("_", "-")
        words += [name] if isinstance(value, bool) else [name, str(value)]
    return words
