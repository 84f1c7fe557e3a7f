"""tunefree advise."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..advice.advise import advise as find
from ..core.errors import ArgumentError
from ..data import load
from ..methods import Method
from ..training.command import CommandConfig, choose_cohort, make_federation, make_model
from .app import AsJson, app, out, say
from .options import make_options, read_options

if TYPE_CHECKING:
    AdviseOptions = Any
else:
    AdviseOptions = make_options(hidden=("method", "set"))


@app.command
def advise(
    options: Annotated[AdviseOptions | None, Parameter(name="*")] = None,
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
    command = read_options(options, AdviseOptions)
    dataset = load(command.data, command.data_dir)
    federation = make_federation(command, dataset)
    advice = find(
        make_model(command, dataset),
        federation,
        cohort=choose_cohort(command, federation.clients, Method()),
        steps=command.options["steps"],
        epochs=command.options["epochs"],
        batch=command.options["batch"] or None,
        tuning=tuning,
        stateless=stateless,
        penalty="l1:1e-4" if sparse else penalty,
        max_upload=max_upload,
        skew=skew,
        most=most,
    )
    words = list_options(command)
    commands = [choice.command(*words) for choice in advice]
    facts = asdict(advice)
    for choice, line in zip(facts["choices"], commands, strict=True):
        choice["command"] = line

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


def list_options(command: CommandConfig) -> list[str]:
    """Return the options that differ from the defaults, as they are typed.

    >>> list_options(CommandConfig(clients=9, options={"keep_best": True}))
    ['--clients', '9', '--keep-best']
    """
    words: list[str] = []
    defaults = CommandConfig().to_json()
    for name, value in command.to_json().items():
        if name in ("method", "set") or value == defaults[name]:
            continue
        flag = "--" + name.replace("_", "-")
        words += [flag] if isinstance(value, bool) else [flag, str(value)]
    return words
