"""Methods with control variates or momentum on clients, plain and compressed."""

from typing import Literal

from ..clients import (
    ClientMomentum,
    Constant,
    Everyone,
    FedLin,
    Mime,
    MimeLite,
    Scafcom,
    Scaffnew,
    Scaffold,
    ScaffoldM,
)
from ..server import AMSGrad, Average
from ..server import ClientMomentum as MomentumServer
from ..server import Scafcom as ScafcomServer
from ..wire import ErrorFeedback, Wire
from .method import Method, read_wire


def scaffold(
    *, lr: float = 0.1, server_lr: float = 1.0, option: Literal["I", "II"] = "II"
) -> Method:
    """Control variates against client drift; lr is a choice. Karimireddy et al. 2020."""
    return Method(direction=Scaffold(option), step=Constant(lr), server=Average(server_lr))


def scaffoldm(*, lr: float = 0.1, beta: float = 0.1, server_lr: float = 1.0) -> Method:
    """SCAFFOLD with the server's direction on clients; lr, beta are choices. Cheng et al. 2024."""
    server = MomentumServer(lr, server_lr)
    return Method(direction=ScaffoldM(beta), step=Constant(lr), server=server)


def fedavgcm(*, lr: float = 0.1, beta: float = 0.1, server_lr: float = 1.0) -> Method:
    """FedAvg with the server's direction on clients; lr, beta are choices. Cheng et al. 2024."""
    server = MomentumServer(lr, server_lr)
    return Method(direction=ClientMomentum(beta), step=Constant(lr), server=server)


def mime(*, lr: float = 0.1, momentum: float = 0.9, server_lr: float = 1.0) -> Method:
    """The server's momentum mimicked on clients; lr is a choice. Karimireddy et al. 2020."""
    return Method(direction=Mime(momentum), step=Constant(lr), server=Average(server_lr))


def mimelite(*, lr: float = 0.1, momentum: float = 0.9, server_lr: float = 1.0) -> Method:
    """Mime without its correction; lr is a choice. Karimireddy et al. 2020."""
    return Method(direction=MimeLite(momentum), step=Constant(lr), server=Average(server_lr))


def fedlin(*, lr: float = 0.1, balanced: bool = True) -> Method:
    """The cohort's gradient, corrected by own change; lr is a choice. Mitra et al. 2021."""
    return Method(direction=FedLin(), step=Constant(lr, balanced))


def scaffnew(*, lr: float = 0.1, p: float | None = None) -> Method:
    """Talks by the toss of a coin, with controls; lr is a choice. Mishchenko et al. 2022."""
    return Method(direction=Scaffnew(lr, p), step=Constant(lr))


def scafcom(
    *,
    lr: float = 0.1,
    server_lr: float = 1.0,
    beta: float = 0.1,
    compressor: Wire | str = "topk:0.05",
) -> Method:
    """SCAFFOLD with momentum, compressed; lr and beta are choices. Huang et al. 2024."""
    return Method(
        direction=Scafcom(beta),
        step=Constant(lr),
        server=ScafcomServer(lr, server_lr),
        wire=read_wire(compressor),
    )


def fedefsgd(
    *, lr: float = 0.1, server_lr: float = 1.0, compressor: Wire | str = "topk:0.05"
) -> Method:
    """FedAvg, compressed with error feedback; lr is a choice. Li & Li 2023."""
    wire = ErrorFeedback(read_wire(compressor))
    return Method(step=Constant(lr), server=Average(server_lr), wire=wire)


def fedefams(
    *,
    lr: float = 0.1,
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    compressor: Wire | str = "topk:0.05",
) -> Method:
    """AMSGrad on the server, error feedback; lr and server_lr are choices. Li & Li 2023."""
    server = AMSGrad(server_lr, beta1, beta2, eps, add=True)
    return Method(step=Constant(lr), server=server, wire=ErrorFeedback(read_wire(compressor)))


def localsgdc(*, lr: float = 0.1, compressor: Wire | str = "topk:0.05") -> Method:
    """Local SGD of everyone, compressed with error feedback; lr is a choice. Gao et al. 2021."""
    wire = ErrorFeedback(read_wire(compressor))
    return Method(direction=Everyone(), step=Constant(lr), wire=wire)
