"""Records of measurements: rows, machine, versions, date and command."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tunefree.core.errors import ArgumentError
from tunefree.core.files import to_json, write_atomically
from tunefree.version import __version__

PLACE = "data_dir"  # where files lie is each machine's own matter


def machine(device: torch.device) -> dict[str, Any]:
    """Return the hardware: processor, cores, threads, memory, and the GPU if it was used."""
    out: dict[str, Any] = {
        "device": device.type,
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cores(),
        "threads": torch.get_num_threads(),  # of PyTorch
        "memory": _memory(),
        "gpu": None,
    }
    if device.type == "cuda":
        known = torch.cuda.get_device_properties(device)
        out |= {"gpu": known.name, "gpu_memory": known.total_memory}
    return out


def _cores() -> int:
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: *(.+)$", text, re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def versions() -> dict[str, str | None]:
    """Return the versions of tunefree, torch, CUDA, triton and Python."""
    try:
        triton: str | None = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = None
    return {
        "tunefree": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton,
        "python": platform.python_version(),
    }


def command(suite: str, settings: Any) -> str:
    """Return the command line of a measurement, with the options that are not the default.

    >>> from .rules import Rules
    >>> command("rules", Rules(size=1000))
    'python -m benchmarks rules --size 1000'
    """
    words = ["python", "-m", "benchmarks", suite]
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value == field.default or field.name == PLACE:
            continue
        option = f"--{field.name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option)
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [option, *map(str, values)]
    return shlex.join(words)


FORMER = {  # how records made before the programs moved spell their commands
    "tunefree bench ": "python -m benchmarks ",
    "tunefree reproduce ": "python -m experiments ",
    "python experiments/trust/attacks.py": "python -m experiments.trust.attacks",
}


def current_command(recorded: str) -> str:
    """Return the command that repeats a record today.

    >>> current_command("tunefree bench rules --size 1000")
    'python -m benchmarks rules --size 1000'
    """
    for former, current in FORMER.items():
        if recorded.startswith(former):
            return current + recorded.removeprefix(former)
    return recorded


def record(
    suite: str, settings: Any, device: torch.device, rows: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """Return the record of a suite as plain data."""
    return {
        "suite": suite,
        "command": command(suite, settings),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(device),
        "versions": versions(),
        "seconds": seconds,
        "settings": {k: v for k, v in dataclasses.asdict(settings).items() if k != PLACE},
        "rows": rows,
    }


def slug(facts: dict[str, Any]) -> str:
    """Return a machine's name for a file.

    >>> slug({"gpu": None, "cpu": "AMD EPYC 7B13 (x86)", "cores": 2})
    'amd-epyc-7b13-x86-2-cores'
    """
    name = facts["gpu"] or f"{facts['cpu']} {facts['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def prepare_output(path: Path) -> None:
    """Make the folder that a record will be written to, before anything is measured."""
    folder = path.parent if path.suffix == ".json" else path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK) else "Permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise ArgumentError(
            f"--out must be a .json file or a folder that can be written, got {str(path)!r}: "
            f"{reason}."
        )


def save(kept: dict[str, Any], path: Path) -> Path:
    """Write a record to a .json file, or into a folder under the suite's and machine's name."""
    if path.suffix != ".json":
        path = path / f"{kept['suite']}-{slug(kept['machine'])}.json"
    text = json.dumps(json.loads(to_json(kept)), indent=1) + "\n"
    write_atomically(path, text.encode())
    return path


def describe_machine(kept: dict[str, Any]) -> str:
    """Return one line: machine and versions."""
    facts, known = kept["machine"], kept["versions"]
    memory = f", {facts['memory'] / 1e9:.0f} GB" if facts["memory"] else ""
    threads = "" if facts["threads"] == facts["cores"] else f", {facts['threads']} threads used"
    cores = f"{facts['cpu']}, {facts['cores']} cores{threads}{memory}"
    gpu = f"{facts['gpu']}; " if facts["gpu"] else ""
    triton = f", triton {known['triton']}" if known["triton"] and facts["gpu"] else ""
    return f"{gpu}{cores}; tunefree {known['tunefree']}, torch {known['torch']}{triton}"
