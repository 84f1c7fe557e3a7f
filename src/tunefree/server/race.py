"""A race of short runs that finds the clients' step size, then the run itself.

    round 0:  e = the step along -grad f(x0) that lowers f most, among powers of 3
    race:     arms from x0, each of L rounds with lr_j = lr (1 - j / L), j = 0 .. L-1, all with the
              same cohorts; lr = max(e / 27, min(e, 1/27)) first, then 3 lr, 9 lr, ... while that
              is better, else lr / 3, lr / 9, ...
    judge:    f at the average of each arm's iterates, asked of the same panel of clients; a rate
              above 1/27 must lower it by 5 %, and so f(x0), a larger one up to 1/27 may raise it
              by 3 %
    run:      from the best arm's average, lr (T - t) / (T - t0) in round t of t0 .. T-1

L is 7 % of the rounds, and the race takes at most 35 % of them. With fewer than nine rounds there
is no race and the run has the first rate. An arm ends early if the clients' loss grows to four
times f(x0) or is not finite. In the run, such a loss, or one that rises by nine tenths of what was
gained, restarts the run from the last point at which it rose by less than a quarter of the gain, at
a third of the rate.

Differences from the paper: none; the rule is ours (docs/auto.md).
"""

import math
from dataclasses import astuple, dataclass, field, replace
from typing import ClassVar

from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector, select_prefix
from .feddua import FedDuAdagrad
from .output import Averaged
from .rule import Server, ServerUpdate, delegate_to_inner

FACTOR = 3.0  # between the rates of neighbouring arms
FIRST, USUAL = FACTOR**-3, FACTOR**-3  # the first arm's rate: in units of the line search's; most
ARM, RACE = 0.07, 0.35  # rounds of an arm and of the whole race, in units of all rounds
CAUTION, SLACK = 0.05, 0.03  # shares of the loss that a larger rate must win above USUAL; may lose
MOST = 72  # the largest power of 3, either way, that the line search tries
LOST, TRIES = 3.0, 6  # growth of the loss, over f(x0), that ends an arm; restarts of a run


@dataclass
class _Control:
    """The state of the race: numbers only, stored as one tensor."""

    lr: float = 0.0  # of the present arm or run, before its decay
    racing: float = 1.0
    began: float = 0.0  # first round of the present arm or run
    arms: float = 0.0  # arms before this one
    first: float = 0.0  # rate of the first arm
    up: float = 1.0  # whether rates grow from arm to arm
    failed: float = 0.0  # whether the present arm failed
    best_lr: float = 0.0  # of the best arm; 0 if there is none
    best_value: float = 0.0  # f at its average, on the panel
    start: float = 0.0  # f(x0)
    panel_start: float = 0.0  # f(x0), on the panel
    smooth: float = 0.0  # running mean of the clients' loss in the run
    lowest: float = 0.0  # value of that mean
    measured: float = 0.0  # rounds in that mean
    restarts: float = 0.0  # of the run, from an earlier point


@dataclass(frozen=True)
class Race(Server):
    """Server rule that races step sizes, and then trains with the best one.

    Memory: x0, the point of the next round, the average of the present arm, the best point with
    its memory of the inner rule, and some numbers.

    Args:
        inner: The rule that moves x in an arm and in the run.
    """

    inner: Server = field(default_factory=FedDuAdagrad)
    sends: ClassVar[tuple[str, ...]] = ("lr",)
    goes_with: ClassVar[tuple[str, ...]] = ("Plain",)
    euclidean = delegate_to_inner("euclidean")

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the inner rule needs, and the clients' loss."""
        return (*self.inner.needs, "train_loss")

    def init(self, x: Vector, plan: Plan) -> State:
        inner = self.inner.init(x, plan)
        state = dict.fromkeys(("start", "point", "best", "mean"), x)
        state |= {"control": _pack(_Control(), x)}
        state |= {f"inner.{n}": v for n, v in inner.items()}
        return state | {f"best_inner.{n}": v for n, v in inner.items()}

    def cohort_round(self, state: State, t: Round) -> int:
        """Let the same clients take part in every arm."""
        c = _unpack(state)
        done = t.index - int(c.began)
        return (0 if c.failed else done % arm_rounds(t.plan)) if c.racing else t.index

    def start_round(self, x: Vector, state: State, t: Round, query: Query) -> State:
        """Judge an arm that has ended and begin the next one, or the run."""
        c = _unpack(state)
        if not c.lr:  # in round 0, or later if nobody answered in it
            c.start, longest = _search(x, query)
            c.began = float(t.index)
            c.lr = c.first = max(FIRST * longest, min(longest, USUAL))
            c.racing, c.lowest = float(race_rounds(t.plan) > 0), c.start
            if c.racing:
                c.panel_start = float(query("loss", [x], "panel")[0])
        elif c.racing and (c.failed or t.index - c.began >= arm_rounds(t.plan)):
            state = self._judge(state, c, t, query)
        return state | {"control": _pack(c, x)}

    def _judge(self, state: State, c: _Control, t: Round, query: Query) -> State:
        """Compare the arm that ended with the best so far; set up what comes next."""
        is_better = False
        if not c.failed:
            value = float(query("loss", [state["mean"]], "panel")[0])
            is_better = value < _threshold(c)
        if is_better:
            c.best_lr, c.best_value = c.lr, value
            state = state | {"best": state["mean"]}
            state |= {f"best_{n}": v for n, v in state.items() if n.startswith("inner.")}
        c.arms, c.began, c.failed = c.arms + 1, float(t.index), 0.0
        has_time = race_rounds(t.plan) - t.index >= arm_rounds(t.plan)
        if not (has_time and _choose_arm(c, is_better)):
            c.racing, c.lr = 0.0, c.best_lr or c.lr / FACTOR
            c.lowest = min(c.best_value, c.start) if c.best_lr else c.start
            return _from_best(state)
        start = self.inner.init(state["start"], t.plan)
        return state | {"point": state["start"]} | {f"inner.{n}": v for n, v in start.items()}

    def down(self, x: Vector, state: State, t: Round) -> Channels:
        return {"x": state["point"], "lr": x.new_tensor(_decayed(_unpack(state), t))}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        """Move by the inner rule; end a failed arm, restart a failed run."""
        c, inner = _unpack(state), select_prefix(state, "inner")
        x, inner, trace = self.inner.step(state["point"], mean, inner, t, query)
        state = state | {f"inner.{n}": v for n, v in inner.items()}
        trace = trace | {"lr": x.new_tensor(_decayed(c, t))}
        trace |= {"arm": x.new_tensor(c.arms)} if c.racing else {}
        loss = float(mean["train_loss"])
        has_failed = not loss <= c.start + LOST * abs(c.start)
        if c.racing:
            c.failed = float(has_failed)
            in_arm = replace(t, index=t.index - int(c.began))
            state |= Averaged().update(x, state, in_arm)
        else:
            c.smooth = loss if not c.measured else 0.7 * c.smooth + 0.3 * loss
            c.measured += 1
            c.lowest = min(c.lowest, c.smooth)
            gain, lost = max(c.start - c.lowest, 0.2 * abs(c.start)), c.smooth - c.lowest
            if c.restarts < TRIES and (has_failed or lost > 0.9 * gain):
                x, state = self._restart(state, c)
            elif lost <= 0.25 * gain:
                state |= {"best": x} | {f"best_inner.{n}": v for n, v in inner.items()}
        return x, state | {"point": x, "control": _pack(c, x)}, trace

    def recover(self, x: Vector, state: State, t: Round) -> tuple[Vector, State] | None:
        """End the arm, or restart the run, after a round that is not finite."""
        c = _unpack(state)
        if c.racing:
            c.failed = 1.0
        elif c.restarts < TRIES:
            x, state = self._restart(state, c)
        else:
            return None
        return x, state | {"control": _pack(c, x)}

    def _restart(self, state: State, c: _Control) -> tuple[Vector, State]:
        c.lr, c.restarts, c.measured = c.lr / FACTOR, c.restarts + 1, 0.0
        state = _from_best(state)
        return state["point"], state

    def output(self, x: Vector, state: State) -> Vector:
        """Return the best arm's average during the race, x in the run."""
        return state["best"] if _unpack(state).racing else x


def arm_rounds(plan: Plan) -> int:
    """Return the rounds of an arm."""
    return max(1, round(ARM * plan.rounds))


def race_rounds(plan: Plan) -> int:
    """Return the most rounds of the race; 0 if there are too few for three arms."""
    most = int(RACE * plan.rounds)
    return most if most >= 3 * arm_rounds(plan) else 0


def _decayed(c: _Control, t: Round) -> float:
    """Return the clients' rate in a round."""
    length = arm_rounds(t.plan) if c.racing else max(t.plan.rounds - c.began, 1)
    return c.lr * (1 - (t.index - c.began) / length)


def _threshold(c: _Control) -> float:
    """Return the value that the present arm must be below."""
    if not c.best_lr:
        return math.inf
    if c.lr < c.best_lr:
        return c.best_value
    if c.lr < 1.1 * USUAL:
        return c.best_value + SLACK * abs(c.best_value)
    least = min(c.best_value, c.panel_start)
    return least - CAUTION * abs(least)


def _choose_arm(c: _Control, is_better: bool) -> bool:
    """Choose the rate of the next arm; return whether there is one."""
    if c.up and is_better:
        c.lr *= FACTOR
    elif c.up and c.arms <= 2:  # the first failed, or is better than the second: now below it
        c.up, c.lr = 0.0, c.first / FACTOR
    elif not c.up and (is_better or not c.best_lr):
        c.lr /= FACTOR
    else:
        return False
    return True


def _search(x: Vector, query: Query) -> tuple[float, float]:
    """Return f(x) and the power of 3 along -grad f(x) that lowers f most.

    Powers from -9 to 6 are tried first; lower ones while all of them raise f, and higher ones while
    the highest is the best, so that the units of f do not matter.
    """
    (g,) = query("grad", [x])
    (start,) = query("loss", [x], "cohort", {})
    found: dict[int, float] = {}

    def look(*powers: int) -> int:
        for k in powers:
            sent = ({} if found else {"direction": g}) | {"eta": x.new_tensor(FACTOR**k)}
            (value,) = query("loss", [x - FACTOR**k * g], "cohort", sent)
            found[k] = float(value) if math.isfinite(value) else math.inf
        return min(found, key=lambda k: (found[k], k))

    best, stride = look(-9, -6, -3, 0, 3, 6), 3
    while stride < MOST and found[best] > start:
        stride *= 2
        best = look(max(min(found) - stride, -MOST))
    while stride < MOST and best == max(found) and found[best] < start:
        stride *= 2
        best = look(min(best + stride, MOST))
    while stride > 3:
        stride //= 2
        best = look(best - stride, best + stride)
    return float(start), FACTOR ** look(best - 2, best - 1, best + 1, best + 2)


def _from_best(state: State) -> State:
    best = select_prefix(state, "best_inner")
    return state | {"point": state["best"]} | {f"inner.{n}": v for n, v in best.items()}


def _pack(c: _Control, x: Vector) -> Vector:
    return x.new_tensor(astuple(c))


def _unpack(state: State) -> _Control:
    return _Control(*state["control"].tolist())
