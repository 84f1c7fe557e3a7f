import pytest
import torch
from torch import nn

import tunefree as tf
from tunefree.core.errors import ArgumentError
from tunefree.models import Problem
from tunefree.training import evaluate
from tunefree.training.evaluate import Evaluation, weigh_test_rows


class Same(nn.Module):
    """Returns its inputs, whatever its one parameter is."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + 0 * self.w


# Scores of five test rows: right, right, wrong, right, wrong.
OUTPUT = torch.tensor(
    [[2.0, 0, 0], [0, 1, 0], [3, 0, 1], [0, 0, 1], [0, 2, 0]], dtype=torch.float64
)
TARGET = torch.tensor([0, 1, 2, 2, 0])
RIGHT = torch.tensor([1.0, 1, 0, 1, 0], dtype=torch.float64)


def federation(**more):
    """Client 0 has only class 0, client 1 has classes 1 and 2 as 1 : 3."""
    x = torch.zeros(6, 3, dtype=torch.float64)
    owner, y = [0, 0, 1, 1, 1, 1], torch.tensor([0, 0, 1, 2, 2, 2])
    return tf.Federation(x, y, owner, test=(OUTPUT, TARGET), **more)


def measure(fed, groups=None, **more):
    problem = Problem(Same(), "cross_entropy", torch.float64)
    return Evaluation(problem, fed.test, groups=groups, **more).measure(problem.start)


def test_loss_and_accuracy():
    got = measure(federation())
    assert got["test_accuracy"] == pytest.approx(0.6)
    assert got["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(OUTPUT, TARGET)))
    assert got.keys() == {"test_accuracy", "test_loss"}


def test_accuracy_of_labels_per_position():
    """Two rows of three positions, two classes: 4 of 6 right, by row 2/3 and 2/3."""
    output = torch.tensor([[[1.0, 0, 1], [0, 1, 0]], [[0, 0, 0], [1, 1, 1]]], dtype=torch.float64)
    target = torch.tensor([[0, 1, 1], [1, 1, 0]])
    problem = Problem(Same(), "cross_entropy", torch.float64)
    got = Evaluation(problem, (output, target)).measure(problem.start)
    assert got["test_accuracy"] == pytest.approx(4 / 6)
    expected = nn.functional.cross_entropy(output, target)
    assert got["test_loss"] == pytest.approx(float(expected))


def test_no_accuracy_without_one_more_axis_or_without_labels():
    """Whole-number targets of the outputs' own shape are counts, real ones are values."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    problem = Problem(Same(), "mse", torch.float64)
    for target in (torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.float64)):
        got = Evaluation(problem, (x, target)).measure(problem.start)
        assert got == {"test_loss": pytest.approx((0 + 1 + 4 + 9) / 4)}


def test_the_prefix():
    problem = Problem(Same(), "cross_entropy", torch.float64)
    got = Evaluation(problem, (OUTPUT, TARGET)).measure(problem.start, "validation")
    assert got.keys() == {"validation_accuracy", "validation_loss"}


def test_blocks_do_not_matter(monkeypatch):
    metrics = {"rows": lambda output, target: float(len(output) + len(target))}
    whole = measure(federation(), metrics=metrics)
    monkeypatch.setattr(evaluate, "ROWS_AT_ONCE", 2)
    assert measure(federation(), metrics=metrics) == pytest.approx(whole, rel=1e-14)


def test_metrics_see_all_outputs_and_targets():
    def top(output, target):
        assert torch.equal(output, OUTPUT)
        assert torch.equal(target, TARGET)
        return output.max()

    assert measure(federation(), metrics={"top": top})["test_top"] == 3.0


def test_per_client_by_class_shares():
    """Client 0: class 0 (rows 0 and 4); client 1: class 1 a quarter, class 2 three quarters."""
    groups, _ = weigh_test_rows(federation())
    expected = torch.tensor([[0.5, 0, 0, 0, 0.5], [0, 0.25, 0.375, 0.375, 0]], dtype=torch.float64)
    torch.testing.assert_close(groups, expected)
    got = measure(federation(), groups)
    each = (expected @ RIGHT).tolist()
    assert each == [0.5, 0.625]
    assert got["client_worst"] == pytest.approx(0.5)
    assert got["client_spread"] == pytest.approx(0.0625)  # standard deviation over clients


def test_per_client_by_owner():
    fed = federation(test_owner=[0, 1, 1, 1, 7])  # 7 owns no training rows
    groups, _ = weigh_test_rows(fed)
    got = measure(fed, groups)
    assert got["client_worst"] == pytest.approx(2 / 3)
    assert got["client_spread"] == pytest.approx(1 / 6)


def test_clients_without_test_rows_are_left_out():
    groups, _ = weigh_test_rows(federation(test_owner=[1, 1, 1, 1, 7]))
    torch.testing.assert_close(groups, torch.tensor([[0.25] * 4 + [0]], dtype=torch.float64))


def test_clients_whose_classes_are_not_tested():
    """A client without any test row of its classes has no score; it must not spoil the others'."""
    x, test = torch.zeros(3, 3, dtype=torch.float64), (OUTPUT[:2], TARGET[:2])
    fed = tf.Federation(x, torch.tensor([0, 1, 2]), [0, 1, 2], test=test)
    got = measure(fed, weigh_test_rows(fed)[0])
    assert got["client_worst"] == pytest.approx(1.0)
    assert got["client_spread"] == pytest.approx(0.0)


def test_regression_is_worst_where_the_loss_is_largest():
    x = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    y = torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64)
    fed = tf.Federation(x, y, [0, 1, 1], test=(x, y), test_owner=[0, 1, 1])
    problem = Problem(Same(), "mse", torch.float64)
    got = Evaluation(problem, fed.test, groups=weigh_test_rows(fed)[0]).measure(
        problem.start, "test"
    )
    assert got["test_loss"] == pytest.approx(7.0)
    assert got["client_worst"] == pytest.approx(10.0)
    assert got["client_spread"] == pytest.approx(4.5)
    assert "test_accuracy" not in got


def test_what_per_client_needs():
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ArgumentError, match=r"Evaluate\(per_client=True\) needs a test set"):
        weigh_test_rows(tf.Federation(x, y, [0, 1]))
    values = torch.zeros(2)
    with pytest.raises(ArgumentError, match="test_owner"):
        weigh_test_rows(tf.Federation(x, values, [0, 1], test=(x, values)))


def test_through_fit():
    fed = federation(test_owner=[0, 1, 1, 1, 7])
    run = tf.fit(
        Same(),
        fed,
        "fedavg",
        rounds=1,
        steps=1,
        device="cpu",
        evaluate=tf.Evaluate(
            per_client=True, metrics={"mean": lambda output, target: output.mean()}
        ),
        dtype=torch.float64,
    )
    row = run.history[0]
    assert row["test_accuracy"] == pytest.approx(0.6)
    assert row["client_worst"] == pytest.approx(2 / 3)
    assert row["test_mean"] == pytest.approx(float(OUTPUT.mean()))
