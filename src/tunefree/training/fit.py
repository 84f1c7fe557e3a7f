"""`fit`: train one model over many clients' data."""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..core.errors import ArgumentError, CheckpointError, Interrupted
from ..core.ranks import init_ranks
from ..data.federation import Federation
from ..methods import Method
from .bind import bind
from .callbacks import Callback
from .client_data import SimulatedClients
from .config import OPTION_DOCS, RunConfig
from .folder import RunFolder
from .run import Run, make_progress
from .trainer import Trainer, describe_stop


def fit(
    model: nn.Module | Run,
    federation: Federation,
    method: str | Method = "auto",
    *,
    out: str | Path | None = None,
    resume: bool = True,
    checkpoint_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    **options: Any,
) -> Run:
    """Train one model over many clients' data.

    Args:
        model: Any module, which is not changed: its parameters are the start. Or a `Run`: training
            starts from the model that it ships, with its scales of columns and targets.
        federation: The clients' data.
        method: {method}
        out: Folder for settings, history and checkpoints; None writes nothing.
        resume: Continue the run in `out` if there is one; False refuses a used folder.
        checkpoint_every: Rounds between checkpoints; None writes one when the last is 5 s old.
        callbacks: Called with an `Event` after each round; `tf.sinks` has some.
        progress: Show a progress bar where standard error is a terminal, or in a notebook.
        {options}

    Returns:
        The run: its model, history and settings.

    Raises:
        ArgumentError: If an option cannot be used; before round 0.
        Interrupted: After Ctrl-C, or if a callback asked to stop; it holds the run so far.
    """
    config = RunConfig(method=method, **options)
    bar = make_progress(config.rounds) if progress else None
    if bar is not None and isinstance(callbacks, Sequence):
        callbacks = [bar, *callbacks]
    folder = None
    if out is not None:
        folder = RunFolder(out, resume=resume, checkpoint_every=checkpoint_every)
    return train(config, model, federation, folder, callbacks=callbacks)


def train(
    config: RunConfig,
    model: nn.Module | Run,
    federation: Federation,
    folder: RunFolder | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    command: Mapping[str, Any] | None = None,
) -> Run:
    """Train as `fit` does, with the options as a configuration.

    `command` holds the options of the command line that started the run, for its settings.
    """
    if not isinstance(callbacks, Sequence) or not all(callable(c) for c in callbacks):
        raise ArgumentError(f"fit(callbacks=...) must be a list of functions, got {callbacks!r}.")
    about = {"command": dict(command or {})}
    try:
        run = bind(config, model, SimulatedClients(federation))
    except Interrupted as stop:
        raise _keep_start(stop, folder, about) from None
    run = replace(run, settings=run.settings | about)
    return Trainer(run, folder, callbacks).train()


def _keep_start(stop: Interrupted, folder: RunFolder | None, about: dict[str, Any]) -> Interrupted:
    """Return the interruption of a run before its first round, with a folder that resumes."""
    run = stop.run
    assert isinstance(run, Run)
    run = replace(run, settings=run.settings | about)
    if folder is not None:
        run = replace(run, path=folder.path)
        if folder.is_started:
            with suppress(CheckpointError):
                run = replace(Run.load(folder.path), status="interrupted", problem=run.problem)
        elif init_ranks().leads:
            with folder.locked():
                folder.start(run.settings)
    return Interrupted(describe_stop("Ctrl-C", len(run.history), folder), run)


def _document_options() -> None:
    """Give `fit` the signature and the documentation of the options."""
    own = list(inspect.signature(fit).parameters.values())[:-1]
    taken, defaults, kind = {p.name for p in own}, RunConfig(), inspect.Parameter.KEYWORD_ONLY
    options = [one for one in fields(RunConfig) if one.name not in taken]
    parameters = [
        inspect.Parameter(f.name, kind, default=getattr(defaults, f.name), annotation=f.type)
        for f in options
    ]
    lines = [f"        {f.name}: {OPTION_DOCS[f.name]}" for f in options]
    fit.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*own[:3], *parameters, *own[3:]], return_annotation=Run
    )
    assert fit.__doc__ is not None
    text = fit.__doc__.replace("{method}", OPTION_DOCS["method"])
    fit.__doc__ = text.replace("        {options}", "\n".join(lines))


_document_options()
