"""Methods whose step sizes set themselves: the proposed ones, and what they are compared with."""

from dataclasses import replace
from typing import Literal

from ..clients import (
    Armijo,
    Constant,
    DoG,
    Follow,
    Normalised,
    PAdaMFed,
    ParFreFL,
    Polyak,
    Pull,
    Rates,
    Schedule,
    ServerRate,
)
from ..clients import solver as read_solver
from ..core.errors import ArgumentError, check_known
from ..server import (
    Average,
    Averaged,
    FedDuA,
    FedDuAdagrad,
    FedDuAdam,
    FedExP,
    LastTwo,
    LoD,
    Mirror,
    Race,
)
from ..server import PAdaMFed as PAdaMFedServer
from ..server import ParFreFL as ParFreFLServer
from ..server.mirror import MIRRORS
from ..wire import Wire
from .method import DeepForm, Method, Solver, read_wire
from .registry import LR, register_method, register_variant


@register_method("ours")
def auto() -> Method:
    """Nothing to choose: feddowgdua, and fedrace for deep networks. Ours.

    Chosen by measurement (docs/auto.md). It is `feddowgdua`, whose steps decay to zero in the last
    quarter of the rounds; a run trains `fedrace` instead if the network has four or more weight
    matrices or an embedding, except under masks and robust rules, where losses are not to be asked
    for or believed, and with compressed uploads, whose errors the race takes for progress. Which of
    them it is, is decided before round 0 and recorded.
    """
    shallow, deep, decay = feddowgdua(), fedrace(), Schedule.parse("linear:0+hold:0.75")
    form = DeepForm((shallow.step, shallow.server, decay), deep.step, deep.server)
    return replace(shallow, weights=None, schedule=decay, deep=form)


@register_method("ours")
def fedrace() -> Method:
    """Short runs of some of the rounds find the clients' step size; FedDuAdagrad server. Ours."""
    return Method(step=ServerRate(), server=Race(), output=Averaged())


@register_method("ours")
def feddowgdua() -> Method:
    """Live DoWG steps, FedDuAdagrad server that moves no further than the clients. Ours.

    Clients count their gradients as they come, so none runs away; the server never moves further
    than the clients did. It asks nothing of the clients beyond their uploads.
    """
    return Method(
        step=DoG(weighted=True, live=True), server=FedDuAdagrad(max_move=1.0), output=Averaged()
    )


@register_method("Ivgi 2023", arxiv="2302.12022")
def feddog(*, r_rel: float = 1e-2, live: bool = False, server_lr: float = 1.0) -> Method:
    """DoG steps over the federation; no learning rate. After Ivgi et al. 2023.

    Args:
        live: Whether a gradient counts before the step along it, and once; with one client and one
            local step this is DoG. False takes all steps of a round at the size that the rounds
            before it give, and starts from gradient norms that are asked for.
    """
    return Method(step=DoG(r_rel, live=live, asked=not live), server=Average(server_lr))


@register_variant(feddog, "Khaled 2023", arxiv="2305.16284")
def feddowg(method: Method) -> Method:
    """DoWG steps over the federation; no learning rate. After Khaled et al. 2023."""
    assert isinstance(method.step, DoG)
    return replace(method, step=replace(method.step, weighted=True))


@register_method("FedSLS")
def fedsls(
    *,
    c: float = 0.1,
    backtrack: float = 0.9,
    max_lr: float = 1.0,
    max_backtracks: int = 100,
    reset: Literal["grow", "reset", "keep"] = "grow",
    growth: float = 2.0,
    server_lr: float = 1.0,
) -> Method:
    """Armijo line search on clients, averaging; no learning rate. FedSLS."""
    armijo = Armijo(c, backtrack, max_lr, max_backtracks, reset, growth)
    return Method(step=armijo, server=Average(server_lr))


@register_method("FedSLS")
def fedexpsls(
    *,
    c: float = 0.1,
    backtrack: float = 0.9,
    max_lr: float = 1.0,
    max_backtracks: int = 100,
    reset: Literal["grow", "reset", "keep"] = "grow",
    growth: float = 2.0,
    eps: float = 1e-3,
    max_server_step: float | None = None,
    eps_decay: float = 1.0,
) -> Method:
    """Armijo line search on clients, extrapolated server; no learning rate. FedExpSLS."""
    armijo = Armijo(c, backtrack, max_lr, max_backtracks, reset, growth)
    return Method(step=armijo, server=FedExP(eps, max_server_step, eps_decay), output=LastTwo())


@register_method("FedDuA", choose={"lr": LR}, family="self-setting")
def fedduadagrad(*, lr: float = 0.1, eps: float = 1e-9, eps_g: float = 0.0) -> Method:
    """Self-set server step in AdaGrad's geometry; client lr is a choice. FedDuA."""
    return Method(step=Constant(lr), server=FedDuAdagrad(eps, eps_g), output=LastTwo())


@register_method("FedDuA", choose={"lr": LR}, family="self-setting")
def fedduadam(
    *,
    lr: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-9,
    eps_g: float = 0.0,
) -> Method:
    """Self-set server step in Adam's geometry; client lr is a choice. FedDuA."""
    return Method(step=Constant(lr), server=FedDuAdam(beta1, beta2, eps, eps_g), output=LastTwo())


@register_method("FedDuA", choose={"lr": LR}, family="self-setting")
def feddua(*, lr: float = 0.1, mirror: Mirror | str = "quadratic", beta1: float = 0.0) -> Method:
    """Self-set server step in any mirror map's geometry; client lr is a choice. FedDuA."""
    server = FedDuA(MIRRORS.parse(mirror) if isinstance(mirror, str) else mirror, beta1)
    return Method(step=Constant(lr), server=server, output=LastTwo())


@register_method("Mukherjee 2023", arxiv="2307.06306")
def fedsps(
    *, c: float = 0.5, max_lr: float = 1.0, lower: float = 0.0, server_lr: float = 1.0
) -> Method:
    """Stochastic Polyak steps on clients; no learning rate. Mukherjee et al. 2023."""
    return Method(step=Polyak(c, max_lr, lower), server=Average(server_lr))


@register_method("FedProxLoD")
def fedproxlod(
    *,
    merge: bool = True,
    global_loss: Literal["clients", "server"] = "clients",
    prox_step: Literal["implicit", "explicit"] = "implicit",
    r_rel: float = 1e-2,
    mu_init: float = 1.0,
    reading: Literal["summed", "printed"] = "summed",
    merge_weights: Literal["theorem", "printed"] = "theorem",
    solver: Solver = "steps",
) -> Method:
    """FedProx whose weight and steps set themselves; no learning rate. FedProxLoD."""
    check_known("prox_step", prox_step, ("implicit", "explicit"))
    exact = solver != "steps"
    if exact and prox_step != "implicit":
        given = f"got solver={solver!r}; leave it out"
        raise ArgumentError(f"prox_step={prox_step!r} is for solver='steps', {given}.")
    if not merge and merge_weights != "theorem":
        given = "got merge=False; leave it out"
        raise ArgumentError(f"merge_weights={merge_weights!r} is for merge=True, {given}.")
    follow = Follow(implicit=prox_step == "implicit", printed=reading == "printed")
    step = read_solver(solver, 0.1) if exact else follow
    server = LoD(False, merge, global_loss, exact, reading, merge_weights, r_rel, mu_init)
    return Method(direction=Pull(), step=step, server=server)


@register_variant(fedproxlod, "FedProxLoD")
def fedproxwlod(method: Method) -> Method:
    """FedProxLoD weighted by distance; no learning rate. FedProxWLoD."""
    assert isinstance(method.server, LoD)
    return replace(method, server=replace(method.server, weighted=True))


@register_method("ParFreFL")
def parfrefl(
    *,
    scale: float = 1.0,
    beta: float | None = None,
    lr: float | None = None,
    server_lr: float | None = None,
) -> Method:
    """Normalised steps that depend on S, K and T; no learning rate. ParFreFL."""
    rates = Rates("parfrefl", scale, beta, lr, server_lr)
    return Method(direction=ParFreFL(rates), step=Normalised(rates), server=ParFreFLServer(rates))


@register_method("ParFreFL")
def comparfrefl(
    *,
    compressor: Wire | str = "topk:0.05",
    scale: float = 1.0,
    beta: float | None = None,
    lr: float | None = None,
    server_lr: float | None = None,
) -> Method:
    """ParFreFL with compressed uploads; no learning rate. ComParFreFL."""
    return replace(
        parfrefl(scale=scale, beta=beta, lr=lr, server_lr=server_lr), wire=read_wire(compressor)
    )


@register_method("Yan 2025")
def padamfed(
    *,
    scale: float = 1.0,
    beta: float | None = None,
    lr: float | None = None,
    server_lr: float | None = None,
    variance_reduced: bool = False,
) -> Method:
    """Normalised steps with controls and momentum; no learning rate. Yan et al. 2025."""
    kind: Literal["padamfed", "padamfed-vr"] = "padamfed-vr" if variance_reduced else "padamfed"
    rates = Rates(kind, scale, beta, lr, server_lr)
    return Method(direction=PAdaMFed(rates), step=Normalised(rates), server=PAdaMFedServer(rates))
