"""FedProxLoD and FedProxWLoD: the proximal weight is loss difference over distance.

"FedProxLoD / FedProxWLoD", Algorithms 1, 3 and 4. rho(r) = r, omega(r) = 1 (LoD), or both r^2
(WLoD, `weighted`).

    x+  = x + mean_i delta_i,   r+ = max(r, |x+ - x0|)
    D   = mu max(f(x+) - mean_i f_i(y_i) - (mu/2) mean_i |delta_i|^2, 0)
    u+  = u + omega(r+) D,      mu+ = sqrt(u+) / rho(r+)
    v+  = v + omega(r+) mean_i q_i,   lr+ = rho(r+) / sqrt(v+)          local-step form
    w1  = min(mu / mu+, 1) rho(r),   w2+ = w2 + w1,   out+ = (w2 out + w1 x+) / w2+
    best+ = out+ if f(out+) < f(best) else best                        merge on: the output
    start: r = r_rel (1 + |x0|),  mu = mu_init,  v = omega(r) K (mean_i |grad f_i(x0)|^2 + 1e-8)

f is asked of the cohort ("clients") or evaluated on the server's own sample ("server"). In the
exact form (clients solve their proximal problem, no v) and in the printed reading, the next round
starts at best; otherwise at x+.

Differences from the paper: its boxes misplace bars, signs and indices; resolved by the theorems:
mu = sqrt(u) / rho(r), the distance to x0, w1 with the old r and mu / mu+ (`merge_weights="printed"`
keeps the other), D with the anchor. Local work starts at x+, every local step counts in q_i.
Partial participation is ours: means over the cohort, at which all points of a round are compared.
Clients that took part in every round know x, out and best, so that under full participation x+
is sent once a round and out+ as two scalars.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..core.errors import ArgumentError
from ..core.fields import Positive
from ..core.plan import Plan, Query, Round, Who
from ..core.types import Channels, State, Vector
from ..core.vectors import inner
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class LoD(Server):
    """Server rule that sets the clients' proximal weight and step size.

    Args:
        weighted: False is LoD, True is WLoD.
        merge: Whether the output is the best weighted mean of the iterates, or the last iterate.
        global_loss: Where f is evaluated: "clients" or "server".
        exact: Whether clients solve their proximal problem, so that no step size is sent.
        reading: "summed", or "printed" for the algorithm's box taken literally.
        merge_weights: "theorem" or "printed".
        r_rel: First distance relative to 1 + |x0|, > 0.
        mu_init: First proximal weight, > 0; enters through a logarithm.
    """

    weighted: bool = False
    merge: bool = True
    global_loss: Literal["clients", "server"] = "clients"
    exact: bool = False
    reading: Literal["summed", "printed"] = "summed"
    merge_weights: Literal["theorem", "printed"] = "theorem"
    r_rel: Positive = 1e-2
    mu_init: Positive = 1.0
    euclidean: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Moves, their lengths, losses, and gradient norms for the step size."""
        return ("delta", "delta_sq", "loss", *(() if self.exact else ("grad_sq",)))

    @property
    def sends(self) -> tuple[str, ...]:  # type: ignore[override]
        """The proximal weight and the step size."""
        return ("mu",) if self.exact else ("mu", "lr")

    def check(self, plan: Plan) -> None:
        if self.global_loss == "server" and not plan.held:
            use = "give Federation(held=...), or use global_loss='clients'"
            raise ArgumentError(f"LoD(global_loss='server') needs the server's own sample; {use}.")

    def _rho(self, r: Vector) -> Vector:
        return r.square() if self.weighted else r

    def _omega(self, r: Vector) -> Vector:
        return r.square() if self.weighted else torch.ones_like(r)

    def init(self, x: Vector, plan: Plan) -> State:
        """Return the first distance and weight; v waits for the first gradients."""
        r = self.r_rel * (1 + inner(x, x).sqrt())
        mu, zero = torch.full_like(r, self.mu_init), torch.zeros_like(r)
        state = {"x0": x, "r": r, "u": (mu * self._rho(r)).square(), "mu": mu}
        if self.merge:
            state |= {"out": x, "best": x, "w2": zero, "accept": zero}
        return state if self.exact else state | {"v": zero, "lr": zero}

    def start_round(self, x: Vector, state: State, t: Round, query: Query) -> State:
        """Ask for the first gradient norms, once: in round 0, or later if nobody answered in it."""
        if self.exact or state["v"] > 0:
            return state
        (q,) = query("grad_sq", [x])
        count = 1 if self.reading == "printed" else t.plan.steps
        v = self._omega(state["r"]) * count * (q + 1e-8)
        return state | {"v": v, "lr": self._rho(state["r"]) / v.sqrt()}

    def _is_known(self, t: Round) -> bool:
        """Whether the clients know x and the merged points from earlier exchanges."""
        return self.global_loss == "clients" and t.plan.full

    def down(self, x: Vector, state: State, t: Round) -> Channels:
        """Send mu and lr, and x unless the clients were asked about it already."""
        if not self._is_known(t) or t.index == 0:
            return super().down(x, state, t)
        names = (*self.sends, "accept") if self.merge else self.sends
        return {name: state[name] for name in names}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        who: Who = "held" if self.global_loss == "server" else "cohort"
        mu, r = state["mu"], state["r"]
        x = x + mean["delta"]
        (value,) = query("loss", [x], who)
        moved = x - state["x0"]
        new_r = torch.maximum(r, inner(moved, moved).sqrt())
        gap = value - mean["loss"] - (mu / 2) * mean["delta_sq"]
        u = state["u"] + self._omega(new_r) * mu * gap.clamp(min=0)
        after = state | {"r": new_r, "u": u, "mu": u.sqrt() / self._rho(new_r)}
        if not self.exact:
            v = state["v"] + self._omega(new_r) * mean["grad_sq"]
            after |= {"v": v, "lr": self._rho(new_r) / v.sqrt()}
        trace = {"server_step": torch.ones_like(r), "mu": mu}
        trace |= {"distance": new_r, "global_loss": value}
        if not self.merge:
            return x, after, trace
        after |= self._merged(x, state, after, t, query, who)
        trace["merged"] = after["accept"]
        return (after["best"] if self._from_best else x), after, trace

    @property
    def _from_best(self) -> bool:
        return self.exact or self.reading == "printed"

    def _merged(
        self, x: Vector, state: State, after: State, t: Round, query: Query, who: Who
    ) -> State:
        """Return the weighted mean of the iterates and the best of them."""
        if self.merge_weights == "theorem":
            w1 = (state["mu"] / after["mu"]).clamp(max=1) * self._rho(state["r"])
        else:
            w1 = (after["mu"] / state["mu"]).clamp(max=1) * self._rho(after["r"])
        w2 = state["w2"] + w1
        out, best = torch.lerp(state["out"], x, w1 / w2), state["best"]
        sent: Channels | None = {"w1": w1, "w2": w2} if self._is_known(t) else None
        if sent is None and self._from_best:
            sent = {"out": out}  # the cohort started at best
        value, lowest = query("loss", [out, best], who, sent)
        better = value < lowest
        best = torch.where(better, out, best)
        return {"out": out, "best": best, "w2": w2, "accept": better.to(x.dtype)}

    def output(self, x: Vector, state: State) -> Vector:
        return state["best"] if self.merge else x
