"""Methods for f + h with a regulariser, and methods whose clients solve subproblems."""

from ..clients import (
    ZA1,
    Canon,
    Constant,
    DualAverage,
    FastFedDA,
    FedADMM,
    FedDC,
    FedDR,
    FedDyn,
    FedMiD,
    FedPD,
)
from ..clients import solver as read_solver
from ..penalties import Penalty
from ..server import ZA1 as ZA1Server
from ..server import Average, Drift, Proximal, Splitting
from ..server import DualAverage as DualAverageServer
from ..server import FastFedDA as FastFedDAServer
from .method import Method, Solver, read_penalty
from .registry import LR, decades, register_method


@register_method("FedCanon", choose={"lr": LR})
def fedcanon(
    *, lr: float = 0.1, alpha: float | None = None, penalty: Penalty | str | None = None
) -> Method:
    """Controls, and one proximal map a round; lr is a choice. FedCanon."""
    server = Proximal(read_penalty(penalty), lr, alpha)
    return Method(direction=Canon(lr), step=Constant(lr), server=server)


@register_method("FedCanon", choose={"lr": LR})
def fedcanon2(
    *, lr: float = 0.1, alpha: float | None = None, penalty: Penalty | str | None = None
) -> Method:
    """FedCanon whose clients keep the model; lr is a choice. FedCanon II."""
    h = read_penalty(penalty)
    server = Proximal(h, lr, alpha, silent=True)
    return Method(direction=Canon(lr, True, alpha, h), step=Constant(lr), server=server)


@register_method("Yuan 2021", choose={"lr": LR}, arxiv="2011.08474")
def fedmid(
    *, lr: float = 0.1, server_lr: float = 1.0, penalty: Penalty | str | None = None
) -> Method:
    """A proximal map after every step; lr is a choice. Yuan et al. 2021."""
    h = read_penalty(penalty)
    server = Proximal(h, lr, inner=Average(server_lr))
    return Method(direction=FedMiD(h, lr), step=Constant(lr), server=server)


@register_method("Yuan 2021", choose={"lr": LR}, arxiv="2011.08474")
def fedda(
    *, lr: float = 0.1, server_lr: float = 1.0, penalty: Penalty | str | None = None
) -> Method:
    """FedDualAvg, means in the dual space; lr is a choice. Yuan et al. 2021."""
    direction = DualAverage(read_penalty(penalty), lr, server_lr)
    return Method(direction=direction, step=Constant(lr), server=DualAverageServer(direction))


@register_method("Bao 2022", choose={"lr": LR, "mu": decades(-4, -2)})
def fastfedda(*, lr: float = 0.1, mu: float = 1e-3, penalty: Penalty | str | None = None) -> Method:
    """Dual averaging with growing weights; lr and mu are choices. Bao et al. 2022."""
    direction = FastFedDA(read_penalty(penalty), lr, mu)
    return Method(direction=direction, step=Constant(lr), server=FastFedDAServer(direction))


@register_method("Zhang 2024", choose={"lr": LR}, arxiv="2309.01795")
def za1(*, lr: float = 0.1, server_lr: float = 1.0, penalty: Penalty | str | None = None) -> Method:
    """Controls and decoupled proximal maps; lr is a choice. Zhang et al. 2024."""
    direction = ZA1(read_penalty(penalty), lr, server_lr)
    return Method(direction=direction, step=Constant(lr), server=ZA1Server(direction))


@register_method("Tran-Dinh 2021", choose={"lr": LR, "mu": decades(-2, 1)}, arxiv="2103.03452")
def feddr(
    *,
    lr: float = 0.1,
    mu: float = 1.0,
    relax: float = 0.9,
    penalty: Penalty | str | None = None,
    solver: Solver = "steps",
) -> Method:
    """Douglas-Rachford splitting; lr and mu are choices. Tran-Dinh et al. 2021."""
    server = Splitting(read_penalty(penalty), mu)
    return Method(direction=FedDR(mu, relax), step=read_solver(solver, lr), server=server)


@register_method("Wang 2022", choose={"lr": LR, "mu": decades(-2, 1)}, arxiv="2203.15104")
def fedadmm(
    *,
    lr: float = 0.1,
    mu: float = 1.0,
    penalty: Penalty | str | None = None,
    solver: Solver = "steps",
) -> Method:
    """Alternating direction method of multipliers; lr, mu are choices. Wang et al. 2022."""
    server = Splitting(read_penalty(penalty), mu)
    return Method(direction=FedADMM(mu), step=read_solver(solver, lr), server=server)


@register_method(
    "Zhang 2021", choose={"lr": LR, "mu": decades(-2, 1)}, arxiv="2005.11418", family="subproblems"
)
def fedpd(
    *, lr: float = 0.1, mu: float = 1.0, skip: float = 0.0, solver: Solver = "steps"
) -> Method:
    """Primal-dual method that may skip communication; lr, mu are choices. Zhang et al. 2021."""
    return Method(direction=FedPD(mu, skip), step=read_solver(solver, lr))


@register_method(
    "Acar 2021", choose={"lr": LR, "mu": decades(-3, -1)}, arxiv="2111.04263", family="subproblems"
)
def feddyn(*, lr: float = 0.1, mu: float = 0.01, solver: Solver = "steps") -> Method:
    """Clients remember their drift; lr and mu are choices. Acar et al. 2021."""
    return Method(direction=FedDyn(mu), step=read_solver(solver, lr), server=Drift())


@register_method(
    "Gao 2022", choose={"lr": LR, "mu": decades(-3, -1)}, arxiv="2203.11751", family="subproblems"
)
def feddc(*, lr: float = 0.1, mu: float = 0.01) -> Method:
    """FedDyn with control variates; lr and mu are choices. Gao et al. 2022."""
    return Method(direction=FedDC(mu, lr), step=Constant(lr), server=Drift())
