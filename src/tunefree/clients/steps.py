"""Plain local steps: gradient descent, heavy-ball momentum, Adam, and one of the server's size."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ..core.fields import Decay, Positive
from ..core.plan import Round
from ..core.types import Channels, Rows, State
from .rule import LocalResult, Step, StepContext, StepResult, descend, per_client


@dataclass(frozen=True)
class Constant(Step):
    """A constant step: gradient descent on the client.

        y <- y - lr d          balanced: lr K / K_i, so that all clients move equally far

    Differences from the paper: none (McMahan et al., AISTATS 2017, FederatedAveraging's
    ClientUpdate).

    Args:
        lr: Step size, > 0; a choice, since no value fits every problem.
        balanced: Whether clients with more steps take shorter ones, as in FedLin.
    """

    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    lr: Positive = 0.1
    balanced: bool = False

    def descent_lr(self, factor: float) -> float | None:
        """Return lr, or None if clients differ in it or a subclass overrides `take`."""
        other = self.balanced or type(self).take is not Constant.take
        return None if other else self.lr * factor

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        lr = self.lr * context.factor
        each = per_client(y, lr)
        if self.balanced:
            each = each * (context.round.plan.steps / context.steps)
        return descend(y, d, each if self.balanced else lr), each, scratch


_DESCENT = Constant(1.0)


@dataclass(frozen=True)
class ServerRate(Step):
    """A step whose size the server sends.

        y <- y - lr d;   up: the mean batch loss of the local steps

    Differences from the paper: none; the step is ours, the server rule `Race` finds lr.
    """

    reports: ClassVar[tuple[str, ...]] = ("train_loss",)
    reads: ClassVar[tuple[str, ...]] = ("lr",)
    sets_lr: ClassVar[bool] = True
    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True

    def descent_lr(self, factor: float) -> float | None:
        """Return the factor: steps are plain descent."""
        return factor

    def resolve(self, down: Channels, t: Round) -> tuple[Step, Round]:
        """Return a constant step of size 1, and the round with the size sent as its factor."""
        return _DESCENT, replace(t, factor=float(down["lr"]))

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        step, this = self.resolve(context.down, context.round)
        return step.take(y, d, replace(context, factor=this.factor), scratch)

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        return {"train_loss": result.loss}, own


@dataclass(frozen=True)
class Momentum(Step):
    """Heavy-ball momentum on the client, started afresh each round.

        v <- momentum v + d,     y <- y - lr v          v = 0 at the start of a round

    Differences from the paper: none; PyTorch's SGD with momentum (Sutskever et al., ICML 2013).

    Args:
        lr: Step size, > 0; a choice.
        momentum: Share of the last move that is kept, in [0, 1).
    """

    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    lr: Positive = 0.1
    momentum: Decay = 0.9

    def begin(self, y: Rows, down: Channels) -> State:
        return {"v": torch.zeros_like(y)}

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        lr = per_client(y, self.lr * context.factor)
        v = self.momentum * scratch["v"] + d
        return descend(y, v, lr), lr, {"v": v}


@dataclass(frozen=True)
class Adam(Step):
    """Adam on the client, started afresh each round (transformers need it).

    Kingma & Ba, ICLR 2015, Algorithm 1. arXiv:1412.6980

        m <- beta1 m + (1 - beta1) d,     s <- beta2 s + (1 - beta2) d^2
        y <- y - lr (m / (1 - beta1^k)) / (sqrt(s / (1 - beta2^k)) + eps)       k = 1, 2, ...

    Differences from the paper: none; the moments are not kept between rounds.

    Args:
        lr: Step size, > 0; a choice.
        beta1: Memory of the first moment, in [0, 1).
        beta2: Memory of the second moment, in [0, 1).
        eps: Keeps the division finite, > 0.
    """

    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    lr: Positive = 1e-3
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    eps: Positive = 1e-8

    def begin(self, y: Rows, down: Channels) -> State:
        return {"m": torch.zeros_like(y), "s": torch.zeros_like(y)}

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        lr, k = per_client(y, self.lr * context.factor), context.index + 1
        m = self.beta1 * scratch["m"] + (1 - self.beta1) * d
        s = self.beta2 * scratch["s"] + (1 - self.beta2) * d.square()
        move = (m / (1 - self.beta1**k)) / ((s / (1 - self.beta2**k)).sqrt() + self.eps)
        return descend(y, move, lr), lr, {"m": m, "s": s}
