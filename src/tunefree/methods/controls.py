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
from .registry import ADAM_SERVER_LR, LR, register_method


@register_method("Karimireddy 2020", choose={"lr": LR}, arxiv="1910.06378", family="controls")
def scaffold(
    *, lr: float = 0.1, server_lr: float = 1.0, option: Literal["I", "II"] = "II"
) -> Method:
    """Control variates against client drift; lr is a choice. Karimireddy et al. 2020."""
    return Method(direction=Scaffold(option), step=Constant(lr), server=Average(server_lr))


@register_method(
    "Cheng 2024", choose={"lr": LR, "beta": (0.03, 0.1, 0.3)}, arxiv="2306.16504", family="controls"
)
def scaffoldm(*, lr: float = 0.1, beta: float = 0.1, server_lr: float = 1.0) -> Method:
    """SCAFFOLD with the server's direction on clients; lr, beta are choices. Cheng et al. 2024."""
    server = MomentumServer(lr, server_lr)
    return Method(direction=ScaffoldM(beta), step=Constant(lr), server=server)


@register_method(
    "Cheng 2024", choose={"lr": LR, "beta": (0.03, 0.1, 0.3)}, arxiv="2306.16504", family="controls"
)
def fedavgcm(*, lr: float = 0.1, beta: float = 0.1, server_lr: float = 1.0) -> Method:
    """FedAvg with the server's direction on clients; lr, beta are choices. Cheng et al. 2024."""
    server = MomentumServer(lr, server_lr)
    return Method(direction=ClientMomentum(beta), step=Constant(lr), server=server)


@register_method("Karimireddy 2020", choose={"lr": LR}, arxiv="2008.03606", family="controls")
def mime(*, lr: float = 0.1, momentum: float = 0.9, server_lr: float = 1.0) -> Method:
    """The server's momentum mimicked on clients; lr is a choice. Karimireddy et al. 2020."""
    return Method(direction=Mime(momentum), step=Constant(lr), server=Average(server_lr))


@register_method("Karimireddy 2020", choose={"lr": LR}, arxiv="2008.03606", family="controls")
def mimelite(*, lr: float = 0.1, momentum: float = 0.9, server_lr: float = 1.0) -> Method:
    """Mime without its correction; lr is a choice. Karimireddy et al. 2020."""
    return Method(direction=MimeLite(momentum), step=Constant(lr), server=Average(server_lr))


@register_method("Mitra 2021", choose={"lr": LR}, arxiv="2102.07053", family="controls")
def fedlin(*, lr: float = 0.1, balanced: bool = True) -> Method:
    """The cohort's gradient, corrected by own change; lr is a choice. Mitra et al. 2021."""
    return Method(direction=FedLin(), step=Constant(lr, balanced))


@register_method("Mishchenko 2022", choose={"lr": LR}, arxiv="2202.09357", family="controls")
def scaffnew(*, lr: float = 0.1, p: float | None = None) -> Method:
    """Communication at random steps, with controls; lr is a choice. Mishchenko et al. 2022."""
    return Method(direction=Scaffnew(lr, p), step=Constant(lr))


@register_method("Huang 2024", choose={"lr": LR, "beta": (0.03, 0.1, 0.3)}, arxiv="2308.08165")
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


@register_method("Li & Li 2023", choose={"lr": LR}, arxiv="2211.14292")
def fedefsgd(
    *, lr: float = 0.1, server_lr: float = 1.0, compressor: Wire | str = "topk:0.05"
) -> Method:
    """FedAvg, compressed with error feedback; lr is a choice. Li & Li 2023."""
    wire = ErrorFeedback(read_wire(compressor))
    return Method(step=Constant(lr), server=Average(server_lr), wire=wire)


@register_method("Li & Li 2023", choose={"lr": LR, "server_lr": ADAM_SERVER_LR}, arxiv="2211.14292")
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


@register_method("Gao 2021", choose={"lr": LR})
def localsgdc(*, lr: float = 0.1, compressor: Wire | str = "topk:0.05") -> Method:
    """Local SGD of everyone, compressed with error feedback; lr is a choice. Gao et al. 2021."""
    wire = ErrorFeedback(read_wire(compressor))
    return Method(direction=Everyone(), step=Constant(lr), wire=wire)
