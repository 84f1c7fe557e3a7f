"""`auto` holds back validation data, ships the best model and stops; decided before round 0."""

import math

import pytest
import torch

import tunefree as tf
from helpers import CrashError, bound, drop_seconds, fit, grouped, labelled, linear
from tunefree.core.errors import ArgumentError, ResumeError
from tunefree.training.best import BestRound, choose_round
from tunefree.training.command import CommandConfig, build_run
from tunefree.training.config import RunConfig
from tunefree.training.decide import choose_share, decide_validation
from unit.training.test_weights import NOISE

NAMES = ("validation", "patience", "keep_best", "monitor", "mode", "tolerance")
NUMBERS = {  # what is decided for numbers in a table
    "validation": 0.2,
    "patience": 20,
    "keep_best": True,
    "monitor": "loss",
    "mode": "min",
    "tolerance": None,
}
DECIDED = NUMBERS | {"patience": None, "tolerance": 1.0}  # for classes in a table
IMAGES = NUMBERS | {"monitor": "calibrated_loss"}
OFF = dict.fromkeys(NAMES) | {"keep_best": False}
STANDARD = tf.Preprocess(scale="standard")
RAW = tf.Preprocess(scale=None)
AUTO = tf.methods.get("auto", weights=None)


def large(rows=80):
    return labelled(clients=4, rows=rows, features=3)


def noise(rows=75):
    """Labels that nothing explains, so that every step beyond the first few is lost."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(4 * rows, 8, generator=draw, dtype=torch.float64)
    y = torch.randint(2, (4 * rows,), generator=draw)
    return tf.Federation(x, y, torch.arange(4 * rows) % 4)


def numbers(rows=75):
    """The rows of `noise` with numbers that nothing explains."""
    fed, draw = noise(rows), torch.Generator().manual_seed(4)
    y = torch.randn(4 * rows, 1, generator=draw, dtype=torch.float64)
    return tf.Federation(fed.x, y, fed.owners())


def decided(run):
    return {name: run.settings[name] for name in NAMES}


def off(**more):
    return tf.Evaluate(validation=0, **more)


def test_auto_trains_on_the_rest_of_the_rows():
    run = fit("auto", large(), rounds=4)
    assert decided(run) == DECIDED
    rest, (x, y) = large().hold_out(0.2, seed=0)
    alone = fit("auto", rest, rounds=4, evaluate=off())
    assert torch.equal(run.x, alone.x)
    best = min(run.history, key=lambda row: row["validation_loss"])
    chance = torch.log_softmax(run.predict(x, raw=True), 1)
    loss = -chance[torch.arange(len(y)), y].mean()
    assert best["validation_loss"] == pytest.approx(float(loss))


def images():
    """The rows of `large` as images of one channel."""
    fed = large()
    return tf.Federation(fed.x.reshape(-1, 1, 1, 3), fed.y, fed.owners())


def flat():
    return torch.nn.Sequential(torch.nn.Flatten(), linear(3))


def test_classes_of_images_are_followed_by_their_loss_at_the_best_temperature():
    run = fit("auto", images(), flat(), rounds=6)
    assert decided(run) == IMAGES
    _, (x, y) = images().hold_out(0.2, seed=0)
    best = min(run.history, key=lambda row: row["validation_calibrated_loss"])
    scores = run.predict(x, raw=True)

    def loss(temperature):
        return float(torch.nn.functional.cross_entropy(scores / temperature, y))

    assert best["validation_loss"] == pytest.approx(loss(1))
    among = min(loss(2 ** (k / 2)) for k in range(-4, 9))
    assert best["validation_calibrated_loss"] == pytest.approx(among)
    finest = min(loss(2 ** (k / 16)) for k in range(-32, 65))
    assert finest <= among < finest + 0.02


def test_calibrated_loss_can_be_asked_for_and_weights_count_in_it():
    draw = torch.Generator().manual_seed(1)
    weight = 1 + torch.rand(320, generator=draw, dtype=torch.float64)
    fed = tf.Federation(images().x, images().y, images().owners(), sample_weight=weight)
    evaluate = tf.Evaluate(validation=0.2, keep_best=True, monitor="calibrated_loss")
    run = fit("fedavg", fed, flat(), rounds=1, evaluate=evaluate)
    taken = fed.choose_rows(0.2)
    scores, target, kept = run.predict(fed.x[taken], raw=True), fed.y[taken], weight[taken]
    losses = [
        torch.nn.functional.cross_entropy(scores / 2 ** (k / 2), target, reduction="none")
        for k in range(-4, 9)
    ]
    wanted = min(float((kept * each).sum() / kept.sum()) for each in losses)
    assert run.history[0]["validation_calibrated_loss"] == pytest.approx(wanted)
    assert "test_calibrated_loss" not in run.history[0]


def test_calibrated_loss_needs_scores_of_classes():
    fed = tf.Federation(large().x, large().x[:, :1], large().owners())
    evaluate = tf.Evaluate(validation=0.2, keep_best=True, monitor="calibrated_loss")
    with pytest.raises(ArgumentError, match=r"needs the loss cross_entropy or bce.*use 'loss'"):
        fit("fedavg", fed, torch.nn.Linear(3, 1).double(), loss="mse", evaluate=evaluate)


def test_zero_switches_it_off():
    run = fit("auto", large(), rounds=3, evaluate=off(), preprocess=RAW)
    assert decided(run) == OFF
    assert torch.equal(run.output, fit(AUTO, large(), rounds=3, preprocess=RAW).output)
    assert not any(name.startswith("validation") for name in run.history[-1])


def test_it_stops_and_ships_the_best_round():
    seen, given = [], {"model": linear(8, 1), "rounds": 60, "steps": 10}
    run = fit("auto", numbers(), callbacks=[seen.append], **given)
    assert decided(run) == NUMBERS
    losses = [row["validation_loss"] for row in run.history]
    best = losses.index(min(losses))
    assert run.status == "stopped early"
    assert len(losses) == best + 1 + 20 < 60
    assert torch.equal(run.output, seen[best].output)
    assert not torch.equal(run.output, seen[-1].output)
    assert run.summary["validation_loss"] == min(losses)
    whole = fit("auto", numbers(), evaluate=off(), **given)
    assert (whole.status, len(whole.history)) == ("finished", 60)


def test_classes_of_a_table_are_trained_to_the_end():
    """The model is the latest one within one standard error of the lowest loss."""
    seen, given = [], {"model": linear(8), "rounds": 60, "steps": 10}
    run = fit("auto", noise(), callbacks=[seen.append], **given)
    assert decided(run) == DECIDED
    assert (run.status, len(run.history)) == ("finished", 60)
    losses = [row["validation_loss"] for row in run.history]
    best = losses.index(min(losses))
    _, (x, y) = noise().hold_out(0.2, seed=0)

    def row_losses(t):
        scores = run.problem.outputs(seen[t].output, x)
        return torch.nn.functional.cross_entropy(scores, y, reduction="none")

    error = float(row_losses(best).std() / len(y) ** 0.5)
    assert run.history[best]["validation_loss_error"] == pytest.approx(error)
    within = [t for t in range(best, 60) if float(row_losses(t).mean()) < min(losses) + error]
    assert best < within[-1]
    assert torch.equal(run.output, seen[within[-1]].output)
    assert run.summary["validation_loss"] == losses[within[-1]]


@pytest.mark.parametrize(
    ("rounds", "every", "patience"),
    [(1, 1, 20), (100, 1, 20), (101, 1, 21), (1000, 1, 200), (1000, 10, 20), (5000, 3, 334)],
)
def test_patience_is_in_proportion_to_the_evaluations(rounds, every, patience):
    run = bound(linear(8, 1), numbers(), rounds=rounds, eval_every=every, device="cpu")
    assert run.config.evaluate.patience == patience == run.settings["patience"]


@pytest.mark.parametrize("method", [AUTO, "fedavg", "fedrace", tf.Method()])
def test_other_methods_train_on_all_rows(method):
    run = fit(method, large(), rounds=25)
    assert decided(run) == OFF
    assert (run.status, len(run.history)) == ("finished", 25)
    assert run.settings["data"]["samples"] == 4 * 80


def test_what_is_given_holds():
    run = fit("auto", large(), evaluate=tf.Evaluate(validation=0.5))
    assert decided(run) == OFF | {"validation": 0.5, "monitor": "accuracy", "mode": "max"}
    more = tf.Evaluate(metrics={"n": lambda output, target: float(len(target))}, per_client=True)
    run = fit("auto", large(), evaluate=more)
    assert decided(run) == DECIDED
    assert run.history[-1]["validation_n"] == 64
    assert "client_worst" in run.history[-1]


@pytest.mark.parametrize(
    "aggregate", [NOISE, tf.privacy.Secure(), "median"], ids=["noise", "masks", "robust"]
)
def test_no_validation_where_uploads_are_not_averaged_as_they_are(aggregate):
    sizes = torch.tensor([120] * 3)
    found = decide_validation(RunConfig(aggregate=aggregate), sizes).evaluate
    assert found == tf.Evaluate()
    assert decide_validation(RunConfig(), sizes).evaluate.validation == 0.2


def test_robust_rules_see_all_rows_and_rounds():
    run = fit("auto", large(), aggregate="median", rounds=30)
    assert decided(run) == OFF
    assert len(run.history) == 30
    assert run.settings["data"]["samples"] == 4 * 80


@pytest.mark.parametrize(("rows", "share"), [(60, None), (62, None), (63, 0.2)])
def test_too_few_samples_are_all_trained_on(rows, share):
    """A fifth of 62 is 12 for each of four clients, 48 in all."""
    run = fit("auto", labelled(rows=rows), rounds=1)
    assert run.settings["validation"] == share
    assert run.settings["data"]["samples"] == 4 * (rows if share is None else rows - 13)


def test_shares():
    def held(*sizes):
        found = choose_share(torch.tensor(sizes))
        if found is None:
            return None
        return int(tf.Federation(*_rows(sizes)).choose_rows(found).sum())

    def _rows(sizes):
        owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        return torch.zeros(len(owner), 1), torch.zeros(len(owner)), owner

    assert held(2, 2, 400) == 80  # the small ones keep their rows
    assert held(*[2] * 500) is None  # no one has a row to spare
    assert held(50_000, 10_000) == 1998
    assert 1000 <= held(*[50] * 1000) <= 10_000
    assert 1000 <= held(*[10] * 6000) <= 10_000
    assert held(*[5] * 20_000) is None  # one of each would be far more than is needed


def test_weights_of_rows_count_in_the_validation_loss():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(400, 3, generator=draw, dtype=torch.float64)
    y, owner = (x[:, 0] > 1).long(), torch.arange(400) % 4
    weight = 1 + torch.rand(400, generator=draw, dtype=torch.float64)
    fed = tf.Federation(x, y, owner, sample_weight=weight)
    run = fit("auto", fed, rounds=1, preprocess=tf.Preprocess(class_weight={"0": 1, "1": 5}))
    taken = fed.choose_rows(0.2)
    assert int(taken.sum()) == 80
    kept, target = fed.sample_weight[taken], fed.y[taken]
    chance = torch.log_softmax(run.predict(fed.x[taken], raw=True), 1)
    kept = kept * torch.where(target == 1, 5.0, 1.0)
    loss = (kept * -chance[torch.arange(80), target]).sum() / kept.sum()
    assert run.history[0]["validation_loss"] == pytest.approx(float(loss))


def test_arms_may_be_the_best_but_do_not_use_up_patience():
    best, shipped = BestRound(), []
    scores = [5.0, 1.0, 3.0, 4.0, 3.5, 2.0, 2.5, 2.5]
    for t, score in enumerate(scores):
        row = {"round": t, "validation_loss": score} | ({"arm": t} if t < 4 else {})
        shipped.append(best.update(row, {}))
        if t == 3:
            assert best.waited == 0
    assert shipped == [True, True] + [False] * 6
    assert (best.score, best.round) == (1.0, 1)
    assert (best.lowest, best.waited) == (2.0, 2)
    assert best.margin == 0
    assert BestRound.from_json(vars(best)) == best
    assert BestRound.from_json(vars(best) | {"lowest": None}).lowest == math.inf


def test_with_a_margin_the_latest_model_near_the_best_is_shipped():
    best, scores, chosen = BestRound(), [5.0, 3.0, 3.5, 4.5, 2.9, 3.2], []
    rows = [
        {"round": t, "validation_loss": score, "validation_loss_error": error / 2}
        for t, (score, error) in enumerate(zip(scores, (6.0, 1.0, 9, 9, 0.3, 9), strict=True))
    ]
    settings = {"monitor": "loss", "mode": "min", "tolerance": 2.0}
    for row in rows:
        best.update(row, settings)
        chosen.append(best.round)
    assert chosen == [0, 1, 2, 2, 4, 4]
    assert (best.score, best.margin, best.waited) == (2.9, 0.3, 1)
    assert [choose_round(rows[: t + 1], settings) for t in range(6)] == [0, 1, 2, 2, 4, 4]
    assert choose_round(rows, settings | {"tolerance": 0.0}) == 4
    assert choose_round([{"train_loss": 1.0}], settings) is None


def test_weights_of_rows_count_in_the_standard_error():
    fed, weight = large(), torch.rand(320, generator=torch.Generator().manual_seed(1)).double()
    fed = tf.Federation(fed.x, fed.y, fed.owners(), sample_weight=weight)
    run = fit("auto", fed, rounds=1)
    taken = fed.choose_rows(0.2)
    scores, kept = run.predict(fed.x[taken], raw=True), weight[taken]
    losses = torch.nn.functional.cross_entropy(scores, fed.y[taken], reduction="none")
    mean = (kept * losses).sum() / kept.sum()
    variance = (kept.square() * (losses - mean).square()).sum() / kept.sum().square() * 64 / 63
    assert run.history[0]["validation_loss_error"] == pytest.approx(float(variance.sqrt()))


def test_a_race_is_not_stopped():
    evaluate = tf.Evaluate(validation=0.2, patience=1, keep_best=True, monitor="loss")
    run = fit("fedrace", noise(), linear(8), rounds=40, evaluate=evaluate)
    arms = ["arm" in row for row in run.history]
    assert sum(arms) >= 6
    assert arms == sorted(arms, reverse=True)
    assert not arms[-1]
    assert run.status == "stopped early"


@pytest.mark.parametrize(
    ("data", "outputs", "status"), [(numbers, 1, "stopped early"), (noise, 2, "finished")]
)
def test_resume_goes_on_waiting(data, outputs, status, tmp_path):
    given = {"fed": data(), "model": linear(8, outputs), "rounds": 60, "steps": 10, "out": tmp_path}

    def crash(event):
        if event.round == 15:
            raise CrashError

    with pytest.raises(CrashError):
        fit("auto", callbacks=[crash], checkpoint_every=1, **given)
    run = fit("auto", **given)
    whole = fit("auto", **given | {"out": None})
    assert torch.equal(run.output, whole.output)
    assert drop_seconds(run.history) == drop_seconds(whole.history)
    loaded = tf.Run.load(tmp_path)
    assert loaded.status == status
    assert loaded.summary["validation_loss"] == whole.summary["validation_loss"]


def test_steps_on_a_table_decay_over_the_planned_rounds(tmp_path):
    run = fit("auto", large(), rounds=4, out=tmp_path)
    schedule = run.settings["method"]["schedule"]
    assert (schedule["shape"], schedule["floor"]) == ("linear", 0.0)
    with pytest.raises(ResumeError, match="planned for 4 rounds"):
        fit("auto", large(), rounds=5, out=tmp_path)


def test_other_steps_decay_in_the_last_quarter_of_the_planned_rounds(tmp_path):
    run = fit("auto", images(), flat(), rounds=8, out=tmp_path)
    schedule = run.settings["method"]["schedule"]
    assert (schedule["shape"], schedule["floor"], schedule["hold"]) == ("linear", 0.0, 0.75)
    with pytest.raises(ResumeError, match="planned for 8 rounds"):
        fit("auto", images(), flat(), rounds=9, out=tmp_path)
    unscaled = fit("auto", large(), rounds=4, preprocess=RAW)
    assert unscaled.settings["method"]["schedule"] == schedule


def test_the_command_line():
    def settings(**options):
        config, model, fed = build_run(CommandConfig(options={"rounds": 3} | options))
        return bound(model, fed, config.method, evaluate=config.evaluate).settings

    assert {n: settings()[n] for n in NAMES} == IMAGES
    for other in ({"validation": 0.0}, {"method": "fedavg"}):
        found = settings(**other)
        assert {n: found[n] for n in NAMES} == OFF


def test_estimators():
    pytest.importorskip("sklearn")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=draw).numpy()
    found = tf.FederatedRegressor(rounds=3).fit(x, x[:, 0])
    assert {name: found.run_.settings[name] for name in NAMES} == NUMBERS
    options = grouped(validation=0)
    found = tf.FederatedRegressor(rounds=3, options=options).fit(x, x[:, 0])
    assert {name: found.run_.settings[name] for name in NAMES} == OFF


def test_tables_are_regularised_as_by_a_standard_normal_prior():
    run = fit("auto", large(), evaluate=off())
    assert run.settings["scale"] == "standard"
    assert run.settings["method"]["weight_decay"] == 1 / 320
    given = tf.methods.get("auto", weights="samples", weight_decay=1 / 320, schedule="linear:0")
    assert torch.equal(run.x, fit(given, large(), preprocess=STANDARD).x)
    assert fit("auto", large(), preprocess=RAW).settings["method"]["weight_decay"] == 0
    assert fit(AUTO, large(), preprocess=STANDARD).settings["method"]["weight_decay"] == 0
