"""Steps whose sizes follow from losses: a Polyak step, and a line search."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core.fields import AtLeastOne, Finite, NonNegativeInt, Positive, ProperFraction
from ..core.types import Channels, Rows, State
from ..core.vectors import row_sq
from .rule import LineSearch, Step, StepContext, StepResult, descend


@dataclass(frozen=True)
class Polyak(Step):
    """FedSPS: a stochastic Polyak step, each client for itself.

    Mukherjee, Loizou & Stich, 2023, "Locally adaptive federated learning", equation (2),
    arXiv:2307.06306; after Loizou et al., AISTATS 2021.

        lr = min((phi(y) - lower) / (c |d|^2), max_lr),     y <- y - lr d

    phi is the batch loss as the direction modifies it, so that the step holds with a proximal term
    too.

    Differences from the paper: none for plain clients; a negative gap counts as 0. With a direction
    that shifts the gradient (control variates) phi has no known lower bound, and `lower` must be
    given.

    Args:
        c: Divides the step, > 0; 0.5 in the paper.
        max_lr: Largest step, > 0.
        lower: A bound below every batch loss; 0 for losses that are never negative.
    """

    c: Positive = 0.5
    max_lr: Positive = 1.0
    lower: Finite = 0.0
    sets_lr: ClassVar[bool] = True
    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        sq = row_sq(d)
        gap = (context.objective.here() - self.lower).clamp(min=0)
        some = (gap > 0) & (sq > 0)  # of a tiny gradient even c |d|^2 may be 0
        lr = torch.where(some, gap / (self.c * sq), 0.0).clamp(max=self.max_lr)
        return descend(y, d, lr), lr, scratch


@dataclass(frozen=True)
class Armijo(LineSearch):
    """Stochastic Armijo line search on the client: the first trial step of sufficient decrease.

    Vaswani et al., NeurIPS 2019, arXiv:1905.09997; in federated form FedSLS / FedExpSLS.

        lr = first trial;   while phi(y - lr d) > phi(y) - c lr |d|^2:  lr <- backtrack lr
        y  <- y - lr d
        first trial of a round: max_lr.  Later steps, by `reset`:
            "keep":  the last accepted lr
            "reset": max_lr
            "grow":  min(max_lr, last lr * growth^(batch size / client samples))

    phi is the batch loss as the direction modifies it, on the same batch and dropout masks for
    every trial, so that the test holds with a proximal pull or control variates too.

    Differences from the paper: growth is capped at max_lr, as the analysis needs (the authors' code
    has no cap: there a step may grow past max_lr); after max_backtracks failures the step is 1e-6,
    and a gradient shorter than 1e-8 is not followed (both as in the authors' code); max_backtracks
    = 0 takes the first trial untested.

    Args:
        c: Share of the predicted decrease that must be met, in (0, 1).
        backtrack: Factor after a failed trial, in (0, 1).
        max_lr: Largest step, > 0; the first trial of a round.
        max_backtracks: Most failures before giving up, >= 0.
        reset: Where the next search starts: "grow", "reset" or "keep".
        growth: How much "grow" adds in one pass over the client's data, >= 1.
    """

    c: ProperFraction = 0.1
    backtrack: ProperFraction = 0.9
    max_lr: Positive = 1.0
    max_backtracks: NonNegativeInt = 100
    reset: Literal["grow", "reset", "keep"] = "grow"
    growth: AtLeastOne = 2.0
    sets_lr: ClassVar[bool] = True
    consumes_grad: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def begin(self, y: Rows, down: Channels) -> State:
        return {"lr": y.new_full(y.shape[:1], self.max_lr), "trials": y.new_zeros(y.shape[:1])}

    @property
    def most_trials(self) -> int:
        """One more than the backtracks: the last trial's size is 1e-6."""
        return self.max_backtracks + 1 if self.max_backtracks else 0

    def _first(self, last: Rows, context: StepContext) -> Rows:
        longest, grown = torch.full_like(last, self.max_lr), last
        if self.reset == "reset":
            return longest
        if self.reset == "grow":
            grown = (last * self.growth ** context.share.to(last.dtype)).clamp(max=self.max_lr)
        if isinstance(context.index, Tensor):
            return torch.where(context.index == 0, longest, grown)
        return longest if context.index == 0 else grown

    def start_search(self, sq: Rows, here: Rows, context: StepContext, scratch: State) -> State:
        moving = sq.sqrt() >= 1e-8
        left = torch.full_like(sq, self.max_backtracks)
        search = {"sq": sq, "here": here, "open": moving, "moving": moving, "left": left}
        return search | {"lr": self._first(scratch["lr"], context), "trials": scratch["trials"]}

    def judge(self, value: Rows, search: State) -> State:
        lr, left = search["lr"], search["left"]
        trials = search["trials"] + search["open"]
        enough = value <= search["here"] - self.c * lr * search["sq"]  # NaN fails
        open_ = search["open"] & ~enough
        shorter = torch.where(left > 0, lr * self.backtrack, 1e-6)
        lr = torch.where(open_, shorter, lr)
        return search | {"lr": lr, "open": open_, "left": left - 1, "trials": trials}

    def finish(self, search: State) -> State:
        return {"lr": search["lr"], "trials": search["trials"]}
