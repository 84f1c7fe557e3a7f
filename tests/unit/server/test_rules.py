import math

import pytest
import torch

from tunefree.clients import Plan, Round
from tunefree.core.layout import Layout
from tunefree.server import Average, FedDuAdagrad, FedDuAdam, FedExP, FedExPM, Momentum

PLAN = Plan(clients=4, cohort=2, rounds=5, steps=3.0, layout=Layout(("w",), ((2,),)))
X = torch.tensor([10.0, 20.0], dtype=torch.float64)


def play(rule, *rounds):
    """Let the clients move by the given rows, round by round; return x and every server step."""
    x, state, steps = X, rule.init(X, PLAN), []
    for t, moves in enumerate(rounds):
        rows = torch.tensor(moves, dtype=torch.float64)
        mean = {"delta": rows.mean(0), "delta_sq": rows.square().sum(1).mean()}
        x, state, trace = rule.step(x, mean, state, Round(PLAN, t, 0.5), None)
        steps.append(float(trace["server_step"]))
    return x.tolist(), steps


def moved(first, second):
    return pytest.approx([10 + first, 20 + second], rel=1e-13)


def test_average():
    x, steps = play(Average(0.5), [[2.0, 0.0], [0.0, 4.0]])
    assert x == moved(0.5, 1.0)
    assert steps == [0.5]


def test_momentum():
    x, _ = play(Momentum(0.5, 0.5), [[2.0, 0.0]], [[0.0, 4.0]])
    assert x == moved(0.5 * (2 + 1), 0.5 * 4)  # v = (2, 0), then (1, 4)


@pytest.mark.parametrize(
    ("rule", "eta"),
    [
        (FedExP(eps=0.0), 2.5),  # q = 5, |delta|^2 = 1
        (FedExP(eps=1.0), 1.25),
        (FedExP(eps=9.0), 1.0),  # never below 1
        (FedExP(eps=0.0, max_server_step=2.0), 2.0),
        (FedExPM(eps=0.0), 2.5),
        (FedExPM(eps=9.0), 0.25),  # no lower clip
    ],
)
def test_fedexp(rule, eta):
    x, steps = play(rule, [[3.0, 0.0], [-1.0, 0.0]])
    assert steps == pytest.approx([eta])
    assert x == moved(eta, 0)


def test_fedexpm_over_two_rounds():
    x, steps = play(FedExPM(eps=0.0, momentum=0.5), [[2.0, 0.0]], [[0.0, 3.0], [0.0, 1.0]])
    # v = (2, 0), Q = 4, eta = 4/8;   v = (1, 2), Q = 5 + 4/4 = 6, eta = 6/10
    assert steps == pytest.approx([0.5, 0.6])
    assert x == moved(0.5 * 2 + 0.6 * 1, 0.6 * 2)


def test_fedduadagrad():
    x, steps = play(FedDuAdagrad(eps=0.0), [[1.0, -5.0], [1.0, 1.0]])
    # delta = (1, -2), q = (26 + 2) / 2 = 14, G = (1, 2), sum v^2 / G = 3, eta = 7/3
    assert steps == pytest.approx([7 / 3])
    assert x == moved(7 / 3, -7 / 3)


def test_fedduadagrad_over_two_rounds():
    x, steps = play(FedDuAdagrad(eps=0.5, eps_g=0.25), [[4.0, 0.0]], [[3.0, 2.0]])
    # s = (16, 0): G = (4.5, .5), eta = 8 / (16/4.5 + .25)
    one = 8 / (16 / 4.5 + 0.25)
    # s = (25, 4): G = (5.5, 2.5), eta = 6.5 / (9/5.5 + 4/2.5 + .25)
    two = 6.5 / (9 / 5.5 + 4 / 2.5 + 0.25)
    assert steps == pytest.approx([one, two])
    assert x == moved(one * 4 / 4.5 + two * 3 / 5.5, two * 2 / 2.5)


def test_fedduadam_over_two_rounds():
    rule = FedDuAdam(beta1=0.5, beta2=0.75, eps=0.0, eps_g=0.0)
    x, steps = play(rule, [[4.0, 2.0]], [[0.0, 2.0]])
    # s = (4, 1), v = (2, 1), m = 20/4 = 5;  G = (2, 1), sum v^2/G = 3, eta = 5/3
    # s = (3, 1.75), v = (1, 1.5), m = 5/4 + 4/4 = 2.25
    g = (math.sqrt(3), math.sqrt(1.75))
    two = 2.25 / (1 / g[0] + 2.25 / g[1])
    assert steps == pytest.approx([5 / 3, two])
    assert x == moved(5 / 3 + two / g[0], 5 / 3 + two * 1.5 / g[1])


@pytest.mark.parametrize(("most", "eta"), [(None, 7 / 3), (0.5, math.sqrt(7) / 2), (1.0, 7 / 3)])
def test_longest_move_of_fedduadagrad(most, eta):
    """As above: v / G = (1, -1), so that eta sqrt(2) <= max_move sqrt(14)."""
    x, steps = play(FedDuAdagrad(eps=0.0, max_move=most), [[1.0, -5.0], [1.0, 1.0]])
    assert steps == pytest.approx([eta])
    assert x == moved(eta, -eta)


@pytest.mark.parametrize("rule", [FedDuAdagrad(eps=0.0), FedDuAdam(eps=0.0)])
def test_a_parameter_that_nobody_moves_stays(rule):
    x, _ = play(rule, [[1.0, 0.0]], [[2.0, 0.0]])
    assert x[1] == 20.0
    assert math.isfinite(x[0])
