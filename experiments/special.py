"""Experiments that do not train to a result: the cost of a proximal map, peak memory.

Both leave a history of one round whose columns are the numbers measured.
"""

import multiprocessing
import statistics
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import PeakMemory, time_call

from tunefree import penalties
from tunefree.core.device import find_device
from tunefree.core.errors import TunefreeError, first_line
from tunefree.core.layout import Layout
from tunefree.models import nets
from tunefree.study.tasks import FailedRun, Outcome
from tunefree.training.fit import train
from tunefree.training.run import Run

from .runs import RunSpec
from .source import ExperimentSource, model_size

GB = 1e9
REPEATS = 7


def prox_cost(task: RunSpec, source: ExperimentSource) -> Outcome:
    """Return the milliseconds of one proximal map, the median of several, as `ms`."""
    words = task.words
    try:
        size = words.get("size") or model_size(
            nets.build(
                words["model"],
                shape=tuple(words["shape"]),
                classes=words["classes"],
                **words.get("model_args", {}),
            )
        )
        device = find_device(source.device)
        draw = torch.Generator().manual_seed(words["seed"])
        v = torch.randn(size, generator=draw).mul_(1e-2).to(device)
        h, layout = penalties.get(words["penalty"]), Layout(("v",), ((size,),))
        took = [time_call(lambda: h.prox(v, 0.1, layout), device) for _ in range(REPEATS + 1)][1:]
    except TunefreeError as error:
        return FailedRun(task.seed, str(error), traceback.format_exc())
    row = {"round": 0, "ms": 1e3 * statistics.median(took), "size": size}
    return _run(task, [row], {"model": {"parameters": size}, "device": str(device)})


def peak_memory(task: RunSpec, source: ExperimentSource) -> Outcome:
    """Return the peak memory of a few rounds in a process of their own: ram, rss, vram in GB.

    `ram` is what the rounds added to the process after data and model were there, `rss` the whole
    process, `vram` what PyTorch held on the GPU.
    """
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, context) as pool:
            row, settings = pool.submit(_measure, task, source).result()
    except Exception as error:  # a child that was killed for its memory, say
        return FailedRun(task.seed, f"{type(error).__name__}: {first_line(error)}")
    return _run(task, [{"round": 0, **row}], settings)


def _measure(task: RunSpec, source: ExperimentSource) -> tuple[dict[str, Any], dict[str, Any]]:
    inputs = source.inputs(task)
    device = find_device(source.device)
    torch.zeros(1, device=device)
    watch = PeakMemory(device) if device.type == "cuda" else None
    before = _resident("VmRSS")
    _forget_peak()
    run = train(inputs.config, inputs.model, inputs.federation)
    peak = _resident("VmHWM")
    row = {"ram": (peak - before) / GB, "rss": peak / GB, "rounds": len(run.history)}
    if watch is not None:
        row["vram"] = torch.cuda.max_memory_allocated(device) / GB
    return row, run.settings


def _resident(name: str) -> int:
    """Return bytes of this process: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _forget_peak() -> None:
    """Reset the kernel's peak of resident memory."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _run(task: RunSpec, rows: list[dict[str, Any]], settings: dict[str, Any]) -> Run:
    nothing = torch.empty(0)
    known = {"seed": task.seed, "rounds": 1, "method": {"name": task.label}, **settings}
    return Run(nothing, nothing, rows, known, "finished")


SPECIAL: dict[str, Callable[[RunSpec, ExperimentSource], Outcome]] = {
    "prox-cost": prox_cost,
    "peak-memory": peak_memory,
}
