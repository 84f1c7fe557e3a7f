"""FedAvg, and methods that change the server, the pull or the local step."""

from dataclasses import replace
from typing import Literal

from ..clients import AdaAlter, Constant, Moreau, Proximal
from ..clients import solver as read_solver
from ..core.errors import ArgumentError
from ..server import Adaptive, AMSGrad, Average, Extrapolate, FedExP, FedExPM, LastTwo, Momentum
from .method import Method, Solver
from .registry import ADAM_SERVER_LR, LR, PROX_MU, decades, register_method, register_variant


@register_method("McMahan 2017", choose={"lr": LR}, arxiv="1602.05629")
def fedavg(*, lr: float = 0.1, server_lr: float = 1.0) -> Method:
    """Local SGD and averaging; lr is a choice. McMahan et al. 2017."""
    return Method(step=Constant(lr), server=Average(server_lr), weights=None)


@register_method("Hsu 2019", choose={"lr": LR}, arxiv="1909.06335")
def fedavgm(*, lr: float = 0.1, server_lr: float = 1.0, momentum: float = 0.9) -> Method:
    """FedAvg with server momentum; lr is a choice. Hsu et al. 2019."""
    return Method(step=Constant(lr), server=Momentum(server_lr, momentum), weights=None)


@register_method("Li 2020", choose={"lr": LR, "mu": PROX_MU}, arxiv="1812.06127")
def fedprox(*, lr: float = 0.1, mu: float = 0.1, server_lr: float = 1.0) -> Method:
    """FedAvg with a pull to the server's model; lr and mu are choices. Li et al. 2020."""
    server = Average(server_lr)
    return Method(direction=Proximal(mu), step=Constant(lr), server=server, weights=None)


@register_method("Jhunjhunwala 2023", choose={"lr": LR}, arxiv="2301.09604")
def fedexp(
    *,
    lr: float = 0.1,
    eps: float = 1e-3,
    max_server_step: float | None = None,
    eps_decay: float = 1.0,
) -> Method:
    """Extrapolated server step; lr is a choice. Jhunjhunwala et al. 2023."""
    server = FedExP(eps, max_server_step, eps_decay)
    return Method(step=Constant(lr), server=server, output=LastTwo())


@register_method("Jhunjhunwala 2023", choose={"lr": LR}, arxiv="2301.09604")
def fedexpm(*, lr: float = 0.1, eps: float = 1e-3, momentum: float = 0.9) -> Method:
    """FedExP with server momentum; lr is a choice. Jhunjhunwala et al. 2023."""
    return Method(step=Constant(lr), server=FedExPM(eps, momentum), output=LastTwo())


@register_method("Li 2024", choose={"lr": LR, "mu": decades(-3, 0)}, arxiv="2405.13766")
def fedexprox(
    *,
    lr: float = 0.1,
    mu: float = 0.1,
    extrapolation: float | Literal["grads", "stops"] = "grads",
    inf: float = 0.0,
    solver: Solver = "steps",
) -> Method:
    """Extrapolated mean of proximal points; lr and mu are choices. Li et al. 2024."""
    if extrapolation != "stops" and inf != 0:
        raise ArgumentError(f"inf={inf!r} is for extrapolation='stops'; leave it out.")
    pull = Moreau(mu) if extrapolation == "stops" else Proximal(mu)
    server = Extrapolate(extrapolation, mu, inf)
    return Method(direction=pull, step=read_solver(solver, lr), server=server)


@register_method("Reddi 2021", choose={"lr": LR, "server_lr": ADAM_SERVER_LR}, arxiv="2003.00295")
def fedadagrad(
    *,
    lr: float = 0.1,
    server_lr: float = 0.01,
    beta1: float = 0.0,
    eps: float = 1e-3,
    s0: float | None = None,
) -> Method:
    """AdaGrad on the server; lr and server_lr are choices. Reddi et al. 2021."""
    server = Adaptive("adagrad", server_lr, beta1, 0.0, eps, s0)
    return Method(step=Constant(lr), server=server, weights=None)


@register_method("Reddi 2021", choose={"lr": LR, "server_lr": ADAM_SERVER_LR}, arxiv="2003.00295")
def fedadam(
    *,
    lr: float = 0.1,
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
    s0: float | None = None,
) -> Method:
    """Adam on the server; lr and server_lr are choices. Reddi et al. 2021."""
    server = Adaptive("adam", server_lr, beta1, beta2, eps, s0)
    return Method(step=Constant(lr), server=server, weights=None)


@register_variant(
    fedadam, "Reddi 2021", choose={"lr": LR, "server_lr": ADAM_SERVER_LR}, arxiv="2003.00295"
)
def fedyogi(method: Method) -> Method:
    """Yogi on the server; lr and server_lr are choices. Reddi et al. 2021."""
    assert isinstance(method.server, Adaptive)
    return replace(method, server=replace(method.server, kind="yogi"))


@register_method("Wang 2022", choose={"lr": LR, "server_lr": decades(-2, 0, 2)}, arxiv="2205.02719")
def fedams(
    *,
    lr: float = 0.1,
    server_lr: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
) -> Method:
    """AMSGrad with a floor on the server; lr and server_lr are choices. Wang et al. 2022."""
    return Method(step=Constant(lr), server=AMSGrad(server_lr, beta1, beta2, eps))


@register_method("Xie 2019", choose={"lr": LR}, arxiv="1911.09030")
def adaalter(*, lr: float = 0.5, eps: float = 1.0, b0: float = 1.0) -> Method:
    """AdaGrad on clients with a shared denominator; lr is a choice. Xie et al. 2019."""
    return Method(step=AdaAlter(lr, eps, b0))
