"""The catalogue: every method by name, each one expression over parts."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import ArgumentError, unknown_name
from . import composite, controls, self_setting, server_side
from .method import Method


@dataclass(frozen=True)
class MethodEntry:
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


CATALOGUE: dict[str, MethodEntry] = {
    "adaalter": MethodEntry(server_side.adaalter, "Xie 2019", ("lr",)),
    "auto": MethodEntry(self_setting.auto, "ours"),
    "comparfrefl": MethodEntry(self_setting.comparfrefl, "ParFreFL"),
    "fastfedda": MethodEntry(composite.fastfedda, "Bao 2022", ("lr", "mu")),
    "fedadagrad": MethodEntry(server_side.fedadagrad, "Reddi 2021", ("lr", "server_lr")),
    "fedadam": MethodEntry(server_side.fedadam, "Reddi 2021", ("lr", "server_lr")),
    "fedadmm": MethodEntry(composite.fedadmm, "Wang 2022", ("lr", "mu")),
    "fedams": MethodEntry(server_side.fedams, "Wang 2022", ("lr", "server_lr")),
    "fedavg": MethodEntry(server_side.fedavg, "McMahan 2017", ("lr",)),
    "fedavgcm": MethodEntry(controls.fedavgcm, "Cheng 2024", ("lr", "beta")),
    "fedavgm": MethodEntry(server_side.fedavgm, "Hsu 2019", ("lr",)),
    "fedcanon": MethodEntry(composite.fedcanon, "FedCanon", ("lr",)),
    "fedcanon2": MethodEntry(composite.fedcanon2, "FedCanon", ("lr",)),
    "fedda": MethodEntry(composite.fedda, "Yuan 2021", ("lr",)),
    "feddc": MethodEntry(composite.feddc, "Gao 2022", ("lr", "mu")),
    "feddog": MethodEntry(self_setting.feddog, "Ivgi 2023"),
    "feddowg": MethodEntry(self_setting.feddowg, "Khaled 2023"),
    "feddr": MethodEntry(composite.feddr, "Tran-Dinh 2021", ("lr", "mu")),
    "feddua": MethodEntry(self_setting.feddua, "FedDuA", ("lr",)),
    "fedduadagrad": MethodEntry(self_setting.fedduadagrad, "FedDuA", ("lr",)),
    "fedduadam": MethodEntry(self_setting.fedduadam, "FedDuA", ("lr",)),
    "feddyn": MethodEntry(composite.feddyn, "Acar 2021", ("lr", "mu")),
    "fedefams": MethodEntry(controls.fedefams, "Li & Li 2023", ("lr", "server_lr")),
    "fedefsgd": MethodEntry(controls.fedefsgd, "Li & Li 2023", ("lr",)),
    "fedexp": MethodEntry(server_side.fedexp, "Jhunjhunwala 2023", ("lr",)),
    "fedexpm": MethodEntry(server_side.fedexpm, "Jhunjhunwala 2023", ("lr",)),
    "fedexprox": MethodEntry(server_side.fedexprox, "Li 2024", ("lr", "mu")),
    "fedexpsls": MethodEntry(self_setting.fedexpsls, "FedSLS"),
    "fedlin": MethodEntry(controls.fedlin, "Mitra 2021", ("lr",)),
    "fedmid": MethodEntry(composite.fedmid, "Yuan 2021", ("lr",)),
    "fedpd": MethodEntry(composite.fedpd, "Zhang 2021", ("lr", "mu")),
    "fedprox": MethodEntry(server_side.fedprox, "Li 2020", ("lr", "mu")),
    "fedproxlod": MethodEntry(self_setting.fedproxlod, "FedProxLoD"),
    "fedproxwlod": MethodEntry(self_setting.fedproxwlod, "FedProxLoD"),
    "fedsls": MethodEntry(self_setting.fedsls, "FedSLS"),
    "fedsps": MethodEntry(self_setting.fedsps, "Mukherjee 2023"),
    "fedyogi": MethodEntry(server_side.fedyogi, "Reddi 2021", ("lr", "server_lr")),
    "localsgdc": MethodEntry(controls.localsgdc, "Gao 2021", ("lr",)),
    "mime": MethodEntry(controls.mime, "Karimireddy 2020", ("lr",)),
    "mimelite": MethodEntry(controls.mimelite, "Karimireddy 2020", ("lr",)),
    "padamfed": MethodEntry(self_setting.padamfed, "Yan 2025"),
    "parfrefl": MethodEntry(self_setting.parfrefl, "ParFreFL"),
    "scafcom": MethodEntry(controls.scafcom, "Huang 2024", ("lr", "beta")),
    "scaffnew": MethodEntry(controls.scaffnew, "Mishchenko 2022", ("lr",)),
    "scaffold": MethodEntry(controls.scaffold, "Karimireddy 2020", ("lr",)),
    "scaffoldm": MethodEntry(controls.scaffoldm, "Cheng 2024", ("lr", "beta")),
    "za1": MethodEntry(composite.za1, "Zhang 2024", ("lr",)),
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
        raise unknown_name("method", name, CATALOGUE)
    return dict(inspect.signature(CATALOGUE[name].make).parameters)


def get(name: str, **arguments: Any) -> Method:
    """Return a named method; arguments are its own, or those every method takes.

    >>> get("fedavg", lr=0.3, weights="samples").server
    Average(server_lr=1.0)
    """
    own = settings(name)
    for key in arguments:
        if key not in own and key not in COMMON:
            raise unknown_name(f"argument of {name}", key, [*own, *COMMON])
    if "wire" in arguments and "compressor" in own:
        raise ArgumentError(
            f"{name} packs its uploads by its own setting: give compressor=..., not wire=..., "
            f"got wire={arguments['wire']!r}."
        )
    method = CATALOGUE[name].make(**{k: v for k, v in arguments.items() if k in own})
    return replace(method, name=name, **{k: v for k, v in arguments.items() if k in COMMON})
