"""Which rate the race chooses, by what the panel answers; whole runs are in tests/oracle."""

import pytest
import torch

from tunefree.clients import Plan, Round
from tunefree.core.layout import Layout
from tunefree.server import Race

PLAN = Plan(clients=4, cohort=2, rounds=30, steps=3.0, layout=Layout(("w",), ((2,),)))
X = torch.tensor([10.0, 20.0], dtype=torch.float64)


def race(*panel):
    """Return the rates of the arms, the run's last, if the panel says f(x0) and f of each arm."""
    answers = iter(panel)

    def ask(what, points, who="cohort", sent=None):
        if what == "grad":
            return [2 * X]
        if who == "panel":
            return [X.new_tensor(next(answers))]
        return [point.square().sum() for point in points]

    rule, rates = Race(), {}
    state = rule.init(X, PLAN)
    mean = {"delta": 0.1 * X, "delta_sq": X.new_tensor(10.0), "train_loss": X.square().sum()}
    for t in range(PLAN.rounds):
        now = Round(PLAN, t, 0.5)
        state = rule.start_round(X, state, now, ask)
        rate = float(rule.down(X, state, now)["lr"])
        _, state, trace = rule.step(X, mean, state, now, ask)
        rates.setdefault(float(trace.get("arm", -1.0)), rate)
    return list(rates.values())


@pytest.mark.parametrize(
    ("panel", "powers"),
    [
        ((1.0, 0.8, 0.7, 0.6, 0.59, 0.9), (-3, -2, -1, 0, -1)),  # up, while it wins 5 %
        ((1.0, 0.8, 0.77, 0.9), (-3, -2, -4, -3)),
        ((1.0, 0.97, 0.9, 0.89, 0.9), (-3, -2, -1, -2)),
        ((1.0, 2.0, 1.5, 2.5), (-3, -2, -4, -3)),  # a large rate must lower f(x0)
        ((1.0, 2.0, 0.96, 1.5, 1.7), (-3, -2, -4, -5, -4)),  # by 5 %
        ((1.0, 2.0, 0.94, 0.93), (-3, -2, -1, -2)),
    ],
)
def test_the_rates_that_are_tried_and_chosen(panel, powers):
    assert race(*panel) == pytest.approx([3.0**k for k in powers])
