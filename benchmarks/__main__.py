"""The command line of the benchmarks: `python -m benchmarks SUITE`."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

import benchmarks as benches
from tunefree.cli import main
from tunefree.cli.app import AsJson, err, out
from tunefree.core.errors import unknown_name
from tunefree.core.files import to_json
from tunefree.report.terminal import make_table

from .cpu import Cpu
from .federation import Nodes
from .gpu import Gpu
from .pfl_cifar10 import PflCifar10
from .precision import Precisions
from .rules import Rules
from .scale import Scale

bench = App(
    name="python -m benchmarks",
    help="Measure how fast it is, beside a plain per-client PyTorch loop in the same run.",
    default_parameter=Parameter(negative="", consume_multiple=True),
)

Out = Annotated[
    Path | None,
    Parameter(name="--out", help="Also write the JSON to this file, or into this folder."),
]


@bench.default
def suites(suite: Annotated[str | None, Parameter(show=False)] = None, /) -> int:
    """Say which suites there are."""
    if suite is not None:
        raise unknown_name("suite", suite, benches.SUITES)
    bench.help_print([])
    return 0


@bench.command(name="cpu")
def bench_cpu(
    settings: Annotated[Cpu | None, Parameter(name="*")] = None,
    *,
    as_json: AsJson = False,
    out_file: Out = None,
) -> int:
    """Every reference network, 20 clients, batches of 32."""
    return _bench("cpu", settings, as_json, out_file)


@bench.command(name="gpu")
def bench_gpu(
    settings: Annotated[Gpu | None, Parameter(name="*")] = None,
    *,
    as_json: AsJson = False,
    out_file: Out = None,
) -> int:
    """Four works of the size that a GPU is used for, in TF32 and bfloat16."""
    return _bench("gpu", settings, as_json, out_file)


@bench.command(name="pfl-cifar10")
def bench_pfl_cifar10(
    settings: Annotated[PflCifar10 | None, Parameter(name="*")] = None,
    *,
    as_json: AsJson = False,
    out_file: Out = None,
) -> int:
    """The CIFAR-10 benchmark of pfl-research, the whole run."""
    return _bench("pfl-cifar10", settings, as_json, out_file)


@bench.command(name="scale")
def bench_scale(
    settings: Annotated[Scale | None, Parameter(name="*")] = None,
    *,
    as_json: AsJson = False,
    out_file: Out = None,
) -> int:
    """Time and memory against clients, cohort, parameters and local steps."""
    return _bench("scale", settings, as_json, out_file)


@bench.command(name="precision")
def bench_precision(
    settings: Annotated[Precisions | None, Parameter(name="*")] = None,
    *,
    as_json: AsJson = False,
    out_file: Out = None,
) -> int:
    """Test accuracy in fp32, tf32 and bf16 over several seeds."""
    return _bench("precision", settings, as_json, out_file)


@bench.command(name="rules")
def bench_rules(
    settings: Annotated[Rules | None, Parameter(name="*")] = None,
    *,
    as_json: AsJson = False,
    out_file: Out = None,
) -> int:
    """Every proximal map and server rule beside plain copies."""
    return _bench("rules", settings, as_json, out_file)


@bench.command(name="federation")
def bench_federation(
    settings: Annotated[Nodes | None, Parameter(name="*")] = None,
    *,
    as_json: AsJson = False,
    out_file: Out = None,
) -> int:
    """A round over 2, 5 and 10 SuperNodes on this machine, beside two simulations."""
    return _bench("federation", settings, as_json, out_file)


def _bench(name: str, settings: Any, as_json: bool, out_file: Path | None) -> int:
    def say(line: str) -> None:
        err.print(line, markup=False, soft_wrap=True)

    if out_file is not None:
        benches.ready(out_file)
    kept = benches.measure(name, settings, say)
    if out_file is not None:
        say(f"Written: {benches.save(kept, out_file)}")
    if as_json:
        print(to_json(kept))
        return 0
    rows = benches.SUITES[name].table(kept["rows"])
    out.print(benches.where(kept), markup=False)
    out.print(make_table(rows, {heading: heading for heading in rows[0]}))
    return 0


if __name__ == "__main__":
    main(app=bench)
