"""Steps whose sizes follow from all clients' past gradients: AdaAlter, DoG and DoWG."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.errors import ArgumentError
from ..core.fields import NonNegative, Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, Rows, State, Vector
from ..core.vectors import inner, row_sq
from .rule import LocalResult, Step, StepContext, StepResult, descend, per_client


@dataclass(frozen=True)
class AdaAlter(Step):
    """Local AdaAlter: AdaGrad whose clients share one denominator between rounds.

    Xie et al., 2019, "Local AdaAlter", Algorithm 4. arXiv:1911.09030

        y <- y - lr d / sqrt(B + k eps^2),   a_i <- a_i + d^2,    k = 1, 2, ...     per coordinate
        server:  B <- B + mean_i a_i,     B = b0^2 at first

    A step does not see its own square.

    Differences from the paper: partial participation takes the means over the cohort. The released
    code (xcgoner/AISTATS2020-AdaAlter-GluonNLP) adds eps once instead of k eps^2.

    Memory: the server shares B.

    Args:
        lr: Step size, > 0; a choice.
        eps: How fast the denominator grows within a round, >= 0.
        b0: First denominator, > 0.
    """

    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    lr: Positive = 0.5
    eps: NonNegative = 1.0
    b0: Positive = 1.0
    uploads: ClassVar[tuple[str, ...]] = ("squares",)
    sends: ClassVar[tuple[str, ...]] = ("squares",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        return {}, {"squares": torch.full_like(x, self.b0**2)}

    def begin(self, y: Rows, down: Channels) -> State:
        return {"squares": torch.zeros_like(y)}

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        lr = self.lr * context.factor
        root = (context.down["squares"] + (context.index + 1) * self.eps**2).sqrt()
        after = {"squares": torch.addcmul(scratch["squares"], d, d)}
        each = per_client(y, lr)
        if isinstance(lr, Tensor):
            return y - lr * (d / root), each, after
        return torch.addcdiv(y, d, root, value=-lr), each, after

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        return {"squares": result.scratch["squares"]}, own

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        return {"squares": shared["squares"] + mean["squares"]}


@dataclass(frozen=True)
class DoG(Step):
    """Federated DoG and DoWG: the step size is distance travelled over gradients seen.

    Ivgi, Hinder & Carmon, ICML 2023, equation (DoG), arXiv:2302.12022; Khaled, Mishchenko & Jin,
    NeurIPS 2023, Algorithm 1 (DoWG), arXiv:2305.16284

        clients:  y <- y - lr d,   q_i = sum_k |g_i|^2             K local steps at the broadcast lr
                  live: lr = rho(r) / sqrt(v + omega(r) sum_{j <= k} |d_j|^2), own steps included
        server:   z <- z + mean_i delta_i,   r <- max(r, |z|)
                  v <- v + omega(r) mean_i q_i,   lr = rho(r) / sqrt(v)
        DoG:      rho(r) = r,    omega(r) = 1
        DoWG:     rho(r) = r^2,  omega(r) = r^2
        start:    z = 0,   r = r_rel (1 + |x|)
                  asked: v = omega(r) K (mean_i |grad f_i(x)|^2 + 1e-8);   else v = 0, and gradients
                  weigh with omega of the r they were taken with

    A schedule multiplies the steps and nothing else; there is none unless it is asked for.

    With one client, one local step and a plain average, `live` and not `asked` is DoG and DoWG,
    step for step: every gradient counts once, before the step along it.

    Differences from the paper: both papers are about one machine; here every local step counts as a
    step, sums over clients are means, and distances are measured once a round. z is where plain
    averaging would have moved, so that an extrapolating server cannot inflate the distance that
    sets the next client step (with plain averaging z = x - x^(0)). r_rel is 1e-2 instead of DoG's
    1e-6: with K steps a round, a tiny start costs rounds. The authors' code has a small constant
    besides (1e-8 in DoG's v, 1e-4 beside DoWG's root, where r starts at 1e-2 for all models), and
    DoG ships an average of the iterates. `asked` is ours: v starts from one exchange of gradient
    norms in round 0, which is counted, so the first gradients count twice, and the first round's K
    steps are not all as long as r allows. Without `live` the steps of a round have the size that
    the rounds before it give, so a gradient counts after the step along it; a client whose
    gradients explode within a round then slows down a round too late.

    Args:
        r_rel: First distance relative to 1 + |x|, > 0; enters the result through a logarithm.
        weighted: False is DoG, True is DoWG, which weights gradients by the distance so far.
        live: Whether a client counts its own gradients of the round at once; no step is then
            longer than r. False takes all steps of a round at the same size.
        asked: Whether the gradients seen start with the norms that the first cohort is asked for;
            False, which needs `live`, starts without any.
    """

    r_rel: Positive = 1e-2
    weighted: bool = False
    live: bool = False
    asked: bool = True
    reports: ClassVar[tuple[str, ...]] = ("grad_sq",)
    needs: ClassVar[tuple[str, ...]] = ("delta",)
    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    records: ClassVar[tuple[str, ...]] = ("grad_sq",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.asked or self.live):
            raise ArgumentError(
                "DoG(asked=False) needs live=True, got live=False: clients would step in round 0 "
                "before any gradient is known. Set live=True, or leave asked out."
            )

    def _lr(self, r: Vector, v: Vector) -> Vector:
        lr = (r.square() if self.weighted else r) / v.sqrt()
        return torch.where(v > 0, lr, 0.0)  # no gradient, no step

    def _omega(self, r: Vector) -> Vector:
        return r.square() if self.weighted else torch.ones_like(r)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        r = self.r_rel * (1 + inner(x, x).sqrt())
        shared = {"z": torch.zeros_like(x), "r": r, "v": torch.zeros_like(r)}
        return {}, shared | {"lr": torch.zeros_like(r), "steps": torch.full_like(r, plan.steps)}

    def start_round(self, x: Vector, shared: State, t: Round, query: Query) -> State:
        """Ask for the first gradient norms if `asked`: in round 0, or later if nobody answered."""
        if not self.asked or shared["v"] > 0:
            return shared
        (q,) = query("grad_sq", [x])
        r = shared["r"]
        v = self._omega(r) * shared["steps"] * (q + 1e-8)
        return shared | {"v": v, "lr": self._lr(r, v)}

    @property
    def sends(self) -> tuple[str, ...]:  # type: ignore[override]
        """The step size, or with `live` the numbers that it is computed from."""
        return ("r", "v") if self.live else ("lr",)

    def begin(self, y: Rows, down: Channels) -> State:
        return {"v": down["v"].expand(y.shape[:1])} if self.live else {}

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        if not self.live:
            lr = (context.factor * context.down["lr"]).expand(y.shape[:1])
            return descend(y, d, lr), lr, scratch
        v = scratch["v"] + self._omega(context.down["r"]) * row_sq(d)
        lr = context.factor * self._lr(context.down["r"], v)  # (m,)
        return descend(y, d, lr), lr, {"v": v}

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        assert result.grad_sq is not None
        return {"grad_sq": result.grad_sq}, own

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        z = shared["z"] + mean["delta"]
        r = torch.maximum(shared["r"], inner(z, z).sqrt())
        v = shared["v"] + self._omega(r if self.asked else shared["r"]) * mean["grad_sq"]
        return shared | {"z": z, "r": r, "v": v, "lr": self._lr(r, v)}
