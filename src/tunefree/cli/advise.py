"""The command `tunefree advise`."""

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from ..advice.advise import advise as find_methods
from ..core.errors import ArgumentError
from ..core.files import to_json
from ..report.payload import list_options
from ..training.command import load_data, make_federation, make_model
from .app import AsJson, app, print_line
from .config import AdviseOptions, read_options


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

    For example:

    tunefree advise

    tunefree advise --data fashion-mnist --clients 100 --cohort 10 --stateless --max-upload 100kB

    tunefree advise --sparse --tuning

    Args:
        tuning: Learning rates may be searched.
        stateless: Clients keep nothing between rounds.
        sparse: Train a sparse model, with the penalty l1:1e-4.
        penalty: Another penalty, such as mcp:1e-4.
        max_upload: Maximal upload per client and round, such as 300kB or 1MB.
        skew: How much clients differ, from 0 to 1; by default measured on the labels.
        most: Maximal number of methods.
    """
    if sparse and penalty is not None:
        raise ArgumentError(
            f"--sparse is --penalty l1:1e-4; give one of them, not {penalty!r} too."
        )
    command = read_options(options, AdviseOptions)
    dataset = load_data(command)
    federation = make_federation(command, dataset)
    advice = find_methods(
        make_model(command, dataset),
        federation,
        cohort=command.options["cohort"] or None,
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
    asked = command.to_json()
    typed = list_options({name: asked[name] for name in asked if name not in ("method", "set")})
    if as_json:
        facts = asdict(advice)
        for choice, fields in zip(advice, facts["choices"], strict=True):
            fields["command"] = choice.command(*typed)
        print(to_json(facts))
        return 0
    print_line(str(advice.situation))
    for number, choice in enumerate(advice, 1):
        print_line(f"\n{number}. {choice}")
        print_line(f"   {choice.command(*typed)}")
        if choice.choose:
            print_line(f"   {choice.command(*typed, verb='tune')}")
    for note in advice.notes:
        print_line(f"\n{note}")
    return 0
