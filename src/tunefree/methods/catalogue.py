"""The catalogue: every method by name, each one expression over parts."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import ArgumentError, unknown
from . import composite, controls, self_setting, server_side
from .method import Method


@dataclass(frozen=True)
class Entry:
    """A named method.

    Args:
        make: Its factory; the docstring's first line says what it is.
        paper: Where it comes from.
        choose: Settings that no default can set for every problem.
    """

    make: Callable[..., Method]
    paper: str
    choose: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """What it is, in one line."""
        return (self.make.__doc__ or "").strip().splitlines()[0]


CATALOGUE: dict[str, Entry] = {
    "adaalter": Entry(server_side.adaalter, "Xie 2019", ("lr",)),
    "auto": Entry(self_setting.auto, "ours"),
    "comparfrefl": Entry(self_setting.comparfrefl, "ParFreFL"),
    "fastfedda": Entry(composite.fastfedda, "Bao 2022", ("lr", "mu")),
    "fedadagrad": Entry(server_side.fedadagrad, "Reddi 2021", ("lr", "server_lr")),
    "fedadam": Entry(server_side.fedadam, "Reddi 2021", ("lr", "server_lr")),
    "fedadmm": Entry(composite.fedadmm, "Wang 2022", ("lr", "mu")),
    "fedams": Entry(server_side.fedams, "Wang 2022", ("lr", "server_lr")),
    "fedavg": Entry(server_side.fedavg, "McMahan 2017", ("lr",)),
    "fedavgcm": Entry(controls.fedavgcm, "Cheng 2024", ("lr", "beta")),
    "fedavgm": Entry(server_side.fedavgm, "Hsu 2019", ("lr",)),
    "fedcanon": Entry(composite.fedcanon, "FedCanon", ("lr",)),
    "fedcanon2": Entry(composite.fedcanon2, "FedCanon", ("lr",)),
    "fedda": Entry(composite.fedda, "Yuan 2021", ("lr",)),
    "feddc": Entry(composite.feddc, "Gao 2022", ("lr", "mu")),
    "feddog": Entry(self_setting.feddog, "Ivgi 2023"),
    "feddowg": Entry(self_setting.feddowg, "Khaled 2023"),
    "feddr": Entry(composite.feddr, "Tran-Dinh 2021", ("lr", "mu")),
    "feddua": Entry(self_setting.feddua, "FedDuA", ("lr",)),
    "fedduadagrad": Entry(self_setting.fedduadagrad, "FedDuA", ("lr",)),
    "fedduadam": Entry(self_setting.fedduadam, "FedDuA", ("lr",)),
    "feddyn": Entry(composite.feddyn, "Acar 2021", ("lr", "mu")),
    "fedefams": Entry(controls.fedefams, "Li & Li 2023", ("lr", "server_lr")),
    "fedefsgd": Entry(controls.fedefsgd, "Li & Li 2023", ("lr",)),
    "fedexp": Entry(server_side.fedexp, "Jhunjhunwala 2023", ("lr",)),
    "fedexpm": Entry(server_side.fedexpm, "Jhunjhunwala 2023", ("lr",)),
    "fedexprox": Entry(server_side.fedexprox, "Li 2024", ("lr", "mu")),
    "fedexpsls": Entry(self_setting.fedexpsls, "FedSLS"),
    "fedlin": Entry(controls.fedlin, "Mitra 2021", ("lr",)),
    "fedmid": Entry(composite.fedmid, "Yuan 2021", ("lr",)),
    "fedpd": Entry(composite.fedpd, "Zhang 2021", ("lr", "mu")),
    "fedprox": Entry(server_side.fedprox, "Li 2020", ("lr", "mu")),
    "fedproxlod": Entry(self_setting.fedproxlod, "FedProxLoD"),
    "fedproxwlod": Entry(self_setting.fedproxwlod, "FedProxLoD"),
    "fedsls": Entry(self_setting.fedsls, "FedSLS"),
    "fedsps": Entry(self_setting.fedsps, "Mukherjee 2023"),
    "fedyogi": Entry(server_side.fedyogi, "Reddi 2021", ("lr", "server_lr")),
    "localsgdc": Entry(controls.localsgdc, "Gao 2021", ("lr",)),
    "mime": Entry(controls.mime, "Karimireddy 2020", ("lr",)),
    "mimelite": Entry(controls.mimelite, "Karimireddy 2020", ("lr",)),
    "padamfed": Entry(self_setting.padamfed, "Yan 2025"),
    "parfrefl": Entry(self_setting.parfrefl, "ParFreFL"),
    "scafcom": Entry(controls.scafcom, "Huang 2024", ("lr", "beta")),
    "scaffnew": Entry(controls.scaffnew, "Mishchenko 2022", ("lr",)),
    "scaffold": Entry(controls.scaffold, "Karimireddy 2020", ("lr",)),
    "scaffoldm": Entry(controls.scaffoldm, "Cheng 2024", ("lr", "beta")),
    "za1": Entry(composite.za1, "Zhang 2024", ("lr",)),
}
COMMON = ("wire", "output", "weights", "schedule", "weight_decay", "clip")  # for every method


def names() -> list[str]:
    """Return every method name.

    >>> "fedavg" in names()
    True
    """
    return sorted(CATALOGUE)


def settings(name: str) -> dict[str, inspect.Parameter]:
    """Return a named method's own arguments, with types and defaults."""
    if name not in CATALOGUE:
        raise unknown("method", name, CATALOGUE)
    return dict(inspect.signature(CATALOGUE[name].make).parameters)


def get(name: str, **arguments: Any) -> Method:
    """Return a named method; arguments are its own, or those every method takes.

    >>> get("fedavg", lr=0.3, weights="samples").server
    Average(server_lr=1.0)
    """
    own = settings(name)
    for key in arguments:
        if key not in own and key not in COMMON:
            raise unknown(f"argument of {name}", key, [*own, *COMMON])
    if "wire" in arguments and "compressor" in own:
        raise ArgumentError(
            f"{name} packs its uploads by its own setting: give compressor=..., not wire=..., "
            f"got wire={arguments['wire']!r}."
        )
    method = CATALOGUE[name].make(**{k: v for k, v in arguments.items() if k in own})
    return replace(method, name=name, **{k: v for k, v in arguments.items() if k in COMMON})
