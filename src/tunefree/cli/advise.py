"""The command `tunefree advise`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..advice.advise import advise as find_methods
from ..core.errors import ArgumentError
from ..data import load
from ..methods import Method
from ..training.command import CommandConfig, choose_cohort, make_federation, make_model
from .app import AsJson, app, print_line, print_result
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
    """Recommend methods for this data, with reasons and costs.

    Examples:

    tunefree advise

    tunefree advise --data fashion-mnist --clients 100 --cohort 10 --stateless --max-upload 100kB

    tunefree advise --sparse --tuning

    Parameters
    ----------
    tuning: bool
        Learning rates may be searched.
    stateless: bool
        Clients keep nothing between rounds.
    sparse: bool
        Train a sparse model, with the penalty l1:1e-4.
    penalty: str
        Another penalty, such as mcp:1e-4.
    max_upload: str
        Maximal upload per client and round, such as 300kB or 1MB.
    skew: float
        How much clients differ, from 0 to 1; by default measured on the labels.
    most: int
        Maximal number of methods.
    """
    if sparse and penalty is not None:
        raise ArgumentError(
            f"--sparse is --penalty l1:1e-4; give one of them, got {penalty!r} too."
        )
    command = read_options(options, AdviseOptions)
    dataset = load(command.data, command.data_dir)
    federation = make_federation(command, dataset)
    advice = find_methods(
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
    typed = list_options(command)
    facts = asdict(advice)
    for choice, fields in zip(advice, facts["choices"], strict=True):
        fields["command"] = choice.command(*typed)

    def print_text(_: object) -> None:
        print_line(str(advice.situation))
        for number, choice in enumerate(advice, 1):
            print_line(f"\n{number}. {choice}")
            print_line(f"   {choice.command(*typed)}")
            if choice.choose:
                print_line(f"   {choice.command(*typed, verb='tune')}")
        for note in advice.notes:
            print_line(f"\n{note}")

    print_result(facts, as_json, print_text)
    return 0


def list_options(command: CommandConfig) -> list[str]:
    """Return the options that differ from the defaults, as they are typed.

    >>> list_options(CommandConfig(clients=9, options={"keep_best": True}))
    ['--clients', '9', '--keep-best']
    """
    typed: list[str] = []
    defaults = CommandConfig().to_json()
    for name, value in command.to_json().items():
        if name in ("method", "set") or value == defaults[name]:
            continue
        flag = "--" + name.replace("_", "-")
        typed += [flag] if isinstance(value, bool) else [flag, str(value)]
    return typed
