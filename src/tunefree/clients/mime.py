"""Directions that follow the cohort's gradient at x."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Decay
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from .rule import Direction, LocalProblem, LocalResult


@dataclass(frozen=True)
class Mime(Direction):
    """Mime: the server's optimiser, frozen, in every local step.

    Karimireddy et al., 2020, "Mime", Algorithm 1 with SGD and momentum. arXiv:2008.03606

        G = mean_{i in cohort} grad f_i(x), over all of each client's data
        d = g_i(y) - g_i(x) + G                                 same batch in both
        y <- y - lr ((1 - momentum) d + momentum m)             m is fixed in the round
        m <- (1 - momentum) G + momentum m                      once, on the server

    Differences from the paper: none. G is asked for before the local steps, as in fedjax.

    Memory: the server shares m (and G within a round).

    Args:
        momentum: Weight of the past, in [0, 1).
    """

    momentum: Decay = 0.9
    sets: ClassVar[tuple[str, ...]] = ("scale", "ref")
    sends: ClassVar[tuple[str, ...]] = ("m", "grad")

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        return {}, {"m": torch.zeros_like(x)}

    def start_round(self, x: Vector, shared: State, t: Round, query: Query) -> State:
        (grad,) = query("grad", [x])
        return shared | {"grad": grad}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        new = 1 - self.momentum
        shift = new * down["grad"] + self.momentum * down["m"]
        return LocalProblem(scale=new, shift=shift, ref=x, ref_scale=new)

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        return {"m": torch.lerp(shared["m"], shared["grad"], 1 - self.momentum)}


@dataclass(frozen=True)
class MimeLite(Direction):
    """MimeLite: Mime without the correction of the gradient.

    Karimireddy et al., 2020, "Mime", Algorithm 1 with SGD and momentum. arXiv:2008.03606

        d = g_i(y),   G = mean_{i in cohort} grad f_i(x), over all of each client's data
        y <- y - lr ((1 - momentum) d + momentum m)             m is fixed in the round
        m <- (1 - momentum) G + momentum m                      once, on the server

    Differences from the paper: none. Clients send their gradient at x with their move (fedjax).

    Memory: the server shares m.

    Args:
        momentum: Weight of the past, in [0, 1).
    """

    momentum: Decay = 0.9
    uploads: ClassVar[tuple[str, ...]] = ("grad",)
    sets: ClassVar[tuple[str, ...]] = ("scale",)
    records: ClassVar[tuple[str, ...]] = ("grad_full",)
    sends: ClassVar[tuple[str, ...]] = ("m",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        return {}, {"m": torch.zeros_like(x)}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(scale=1 - self.momentum, shift=self.momentum * down["m"])

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        assert result.grad_full is not None
        return {"grad": result.grad_full}, own

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        return {"m": torch.lerp(shared["m"], mean["grad"], 1 - self.momentum)}


@dataclass(frozen=True)
class FedLin(Direction):
    """FedLin: every client follows the cohort's gradient, corrected by its own change.

    Mitra, Jaafar, Pappas & Hassani, NeurIPS 2021, Algorithm 1. arXiv:2102.07053

        G = mean_{i in cohort} grad f_i(x), over all of each client's data
        d = g_i(y) - grad f_i(x) + G

    Differences from the paper: the gradients at x are exchanged at the start of a round instead of
    at the end of the last, which costs the same; full participation there, the cohort's mean here.
    Its sparsified gradients are not offered.
    """

    needs_full_grad: ClassVar[bool] = True
    sends: ClassVar[tuple[str, ...]] = ("grad",)

    def start_round(self, x: Vector, shared: State, t: Round, query: Query) -> State:
        (grad,) = query("grad", [x])
        return {"grad": grad}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(shift=down["grad"] - down["own_grad"])

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        """Drop G, which holds for one round."""
        return {}
