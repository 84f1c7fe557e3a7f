"""The command `tunefree run`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..core.errors import ArgumentError, Interrupted
from ..core.files import to_json
from ..core.plugins import get_user_object
from ..core.ranks import init_ranks
from ..core.text import format_bytes
from ..report.terminal import ProgressBar, make_summary
from ..sinks import SinkName, make_sinks
from ..training.bind import bind, estimate_cost
from ..training.callbacks import Callback
from ..training.client_data import SimulatedClients
from ..training.command import CommandConfig, build_run
from ..training.fit import train
from ..training.folder import RunFolder
from .app import DIVERGED, INTERRUPTED, app, err, out, print_facts, print_interrupted, print_line
from .config import KeepConfig, RunOptions, next_folder, read_options, to_toml


@app.command
def run(
    options: Annotated[RunOptions | None, Parameter(name="*")] = None,
    *,
    out_dir: Annotated[Path | None, Parameter(name="--out")] = None,
    resume: Path | None = None,
    log: Annotated[tuple[SinkName, ...], Parameter(negative_iterable="")] = (),
    dry_run: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Train one model over many clients' data and write a run folder.

    For example:

    tunefree run

    tunefree run --data fashion-mnist --split dirichlet:0.1 --clients 100 --cohort 10 --rounds 50

    tunefree run --method fedavg --set lr=0.1 --set weights=samples

    tunefree run --csv patients.csv --target diagnosis --owner hospital --test-size 0.2

    tunefree run --model net.py:Net --loss net.py:loss

    tunefree run --config run.toml --rounds 200

    tunefree run --log csv --log tensorboard

    tunefree run --resume runs/digits-auto-1

    Args:
        out_dir: Run folder; by default the next free runs/DATA-METHOD-NUMBER.
        resume: Continue the run in this folder with its own settings; only --rounds can be given
            with it, for more rounds.
        log: Also write the history as csv, parquet, tensorboard, mlflow or wandb (offline) into the
            run folder; may be repeated. All but csv need `pip install 'tunefree[tracking]'`. A
            resumed run continues those it has.
        dry_run: Print what the run would cost (parameters, bytes, memory) and its options as TOML,
            and stop.
        as_json: Print the result as one JSON object.
    """
    if resume is not None:
        if out_dir is not None:
            raise ArgumentError("--resume continues in its own folder; leave --out out.")
        command, out_dir = _read_command(resume, options), resume
    else:
        command = read_options(options, RunOptions)
    config, model, federation = build_run(command)
    if dry_run:
        bound = bind(config.replace(compile=False), model, SimulatedClients(federation))
        costs = estimate_cost(bound)
        if as_json:
            print(to_json({**costs, "config": command.to_json()}))
        else:
            is_size = {k: "bytes" in k or "memory" in k for k in costs}
            print_facts({k: format_bytes(v) if is_size[k] else v for k, v in costs.items()})
            print_line("\n" + to_toml(command.to_json()))
        return 0
    ranks = init_ranks()
    chosen = out_dir or next_folder(f"{command.title}-{command.method.rpartition(':')[2]}")
    folder = Path(ranks.agreed(str(chosen)))
    callbacks: list[Callback] = []
    about = command.to_json()
    if ranks.leads:
        keep = KeepConfig(folder, about)
        callbacks = [ProgressBar(config.rounds, err), keep, *make_sinks(folder, log)]
    try:
        result = train(
            config, model, federation, RunFolder(folder), callbacks=callbacks, command=about
        )
    except Interrupted as stop:
        result = stop.run  # type: ignore[assignment]
    if not ranks.leads:
        return 0
    if as_json:
        print(to_json({**result.summary, "path": str(folder)}))
    else:
        out.print(make_summary(result))
    if result.status == "interrupted":
        print_interrupted("run", folder, repeat=bool(command.user_objects))
        return INTERRUPTED
    return DIVERGED if result.status == "diverged" else 0


def _read_command(folder: Path, options: RunOptions | None = None) -> CommandConfig:
    """Return the command that started the run in a folder, with the rounds that are given now."""
    given, usual = read_options(options, RunOptions), read_options(None, RunOptions)
    if given.replace(rounds=usual.rounds) != usual:
        raise ArgumentError(
            "--resume takes the settings of the folder; only --rounds can be given with it."
        )
    if not RunFolder(folder).is_started:
        raise ArgumentError(f"--resume must be a run folder, got {str(folder)!r}, which is not.")
    found = RunFolder(folder).read_settings().get("command")
    known = CommandConfig().to_json().keys()
    if not isinstance(found, dict) or not found or not found.keys() <= known:
        raise ArgumentError(
            f"--resume continues runs of this command; the one in {str(folder)!r} was started from "
            "Python: call fit again with the same arguments and out."
        )
    command = CommandConfig.from_json(found)
    for text in command.user_objects:
        get_user_object(text)  # refuses code that a folder names
    return command if options is None else command.replace(rounds=given.rounds)
