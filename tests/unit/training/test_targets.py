"""Targets of every kind: labels, losses, weights, predictions, and the names of clients."""

import json
import logging

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import tunefree as tf
from tunefree.core.errors import ArgumentError, DataError

torch.manual_seed(0)
X = torch.randn(60, 3)
SIDE = (X @ torch.tensor([2.0, -1.0, 0.5]) > 0).long()
OWNER = np.arange(60) % 3


def linear(outputs=2, inputs=3):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


def fit(model, fed, method="fedavg", **more):
    return tf.fit(model, fed, method, **({"rounds": 8, "steps": 5, "batch": 10} | more))


LABELS = {
    "text": (np.array(["no", "yes"]), ("no", "yes")),
    "bools": (np.array([False, True]), (False, True)),
    "signs": (np.array([-1, 1]), (-1, 1)),
    "from one": (np.array([1, 2]), (1, 2)),
    "far": (np.array([7, 1000003]), (7, 1000003)),
    "as they are": (np.array([0, 1]), (0, 1)),
}


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(("names", "classes"), LABELS.values(), ids=LABELS)
def test_labels_come_back(names, classes, outputs, tmp_path):
    y = names[SIDE.numpy()]
    fed = tf.Federation(X, y, OWNER, test=(X, y))
    run = fit(linear(outputs), fed, out=tmp_path)
    assert run.settings["loss"] == ("bce" if outputs == 1 else "cross_entropy")
    assert run.classes == classes
    found = run.predict(X)
    assert set(map(repr, found.tolist())) == set(map(repr, classes))  # False is not 0
    assert (found == y).mean() == pytest.approx(run.summary["test_accuracy"])
    assert (found == y).mean() > 0.7
    chance = run.predict_proba(X)
    assert chance.shape == (60, 2)
    assert chance.sum(1) == pytest.approx(1)
    assert (np.array(classes)[chance.argmax(1)] == found).all()
    again = tf.Run.load(tmp_path, linear(outputs))
    assert again.classes == classes
    assert (again.predict(X.numpy()) == found).all()
    assert (again.predict_proba(X) == chance).all()
    assert fit(linear(outputs), fed, out=tmp_path).history == run.history  # continues: the same


def test_the_same_bits_as_numbered_classes():
    words = np.array(["a", "b"])[SIDE.numpy()]
    a, b = (fit(linear(), tf.Federation(X, y, OWNER)) for y in (words, SIDE))
    assert torch.equal(a.x, b.x)


def test_labels_with_an_output_each_are_taken_as_they_are():
    run = fit(linear(4), tf.Federation(X, SIDE + 1, OWNER))
    assert run.classes == (0, 1, 2)
    assert set(run.predict(X).tolist()) <= {0, 1, 2, 3}


def test_given_classes_fix_the_order():
    y = np.array(["no", "yes"])[SIDE.numpy()]
    fed = tf.Federation(X, y, OWNER, classes=["yes", "no"])
    assert fed.y[0] == (fed.labels.index(y[0]))
    assert fit(linear(), fed).classes == ("yes", "no")
    with pytest.raises(DataError, match=r"hold the labels 'yes', 'maybe', but row \d+ has 'no'"):
        tf.Federation(X, y, OWNER, classes=["yes", "maybe"])
    with pytest.raises(DataError, match="number of classes, or a list of different labels"):
        tf.Federation(X, y, OWNER, classes=["yes", "yes"])


def test_parts_share_their_labels():
    parts = {"b": (X[:9], ["y"] * 9), "a": (X[9:12], ["x", "z", "x"])}
    fed = tf.Federation.of(parts, test=(X[:1], ["z"]))
    assert fed.labels == ("x", "y", "z")
    assert fed.names == ("b", "a")
    assert fed.y.tolist() == [1] * 9 + [0, 2, 0]
    assert fed.test[1].tolist() == [2]
    with pytest.raises(DataError, match="y of client 'a' must hold numbers"):
        tf.Federation.of({"b": (X, SIDE), "a": (X, ["x"] * 60)})


def test_targets_in_a_column_of_their_own():
    with pytest.raises(ArgumentError, match=r"the targets have \(1,\); give classes in one axis"):
        fit(linear(), tf.Federation(X, SIDE[:, None], OWNER))
    run = fit(linear(1), tf.Federation(X, SIDE[:, None], OWNER))
    assert run.predict(X).shape == (60, 1)


def test_missing_targets_are_named():
    words = np.array(["a", None, "b"] * 20, dtype=object)
    with pytest.raises(DataError, match="have a value in every row, but row 1 has None; drop"):
        tf.Federation(X, words, OWNER)


def test_integer_regression():
    y = (X[:, 0] * 10).round().long()  # some are negative
    fed = tf.Federation(X, y, OWNER)
    run = fit(linear(1), fed, loss="mse", rounds=20, method=tf.methods.get("fedavg", lr=0.05))
    assert run.classes is None
    found = run.predict(X)
    assert found.shape == (60,)
    assert np.corrcoef(found, y)[0, 1] > 0.95
    same = fit(
        linear(1),
        tf.Federation(X, y.float(), OWNER),
        rounds=20,
        method=tf.methods.get("fedavg", lr=0.05),
    )
    assert torch.equal(same.x, run.x)
    with pytest.raises(ArgumentError) as caught:
        fit(linear(1), fed)
    assert "give loss='mse' if they are numbers; for classes in 0.." in str(caught.value)
    with pytest.raises(ArgumentError, match="predict_proba needs classes, but the run's loss is"):
        run.predict_proba(X)


def test_floats_that_are_0_and_1_ask_for_the_loss():
    fed = tf.Federation(X, SIDE.float(), OWNER, test=(X, SIDE.float()))
    with pytest.raises(ArgumentError) as caught:
        fit(linear(1), fed)
    assert "loss='bce' if they are classes or labels, loss='mse' if they are" in str(caught.value)
    run = fit(linear(1), fed, loss="bce")
    same = fit(linear(1), tf.Federation(X, SIDE, OWNER))
    assert torch.equal(run.x, same.x)
    assert run.summary["test_accuracy"] > 0.8
    assert fit(linear(1), fed, loss="mse").settings["loss"] == "mse"


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_several_labels_per_sample(dtype, tmp_path):
    y = torch.stack([SIDE, 1 - SIDE], 1).to(dtype)
    loss = "bce" if dtype == torch.float32 else "auto"
    run = fit(linear(2), tf.Federation(X, y, OWNER, test=(X, y)), loss=loss, out=tmp_path)
    assert run.settings["loss"] == "bce"
    assert run.summary["test_accuracy"] > 0.7
    assert run.predict(X).shape == (60, 2)
    assert set(run.predict(X).flatten().tolist()) == {0, 1}
    assert ((run.predict_proba(X) > 0.5) == run.predict(X)).all()
    assert (tf.Run.load(tmp_path, linear(2)).predict(X) == run.predict(X)).all()


class Next(nn.Module):
    """Scores of the next token at every position: (B, L, V), or (B, V, L) as torch has them."""

    def __init__(self, classes=5, first=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.first = nn.Embedding(5, 4), nn.Linear(4, classes), first

    def forward(self, ids):
        out = self.head(self.embed(ids))
        return out.mT if self.first else out


TOKENS = torch.arange(60)[:, None].add(torch.arange(4)) % 5


def test_sequences():
    y = (TOKENS + 1) % 5
    runs = [
        fit(
            Next(first=first),
            tf.Federation(TOKENS, y, OWNER, test=(TOKENS, y)),
            rounds=30,
            method=tf.methods.get("fedavg", lr=1.0),
        )
        for first in (False, True)
    ]
    for run in runs:
        assert run.settings["loss"] == "cross_entropy"
        assert run.summary["test_accuracy"] == 1.0
        assert (run.predict(TOKENS) == y.numpy()).all()
        assert run.predict_proba(TOKENS).shape == (60, 5, 4)
    torch.testing.assert_close(runs[0].x, runs[1].x)


def test_positions_that_do_not_count():
    y = (TOKENS + 1) % 5
    hidden = y.clone()
    hidden[:, 2:] = -100
    run = fit(
        Next(),
        tf.Federation(TOKENS, hidden, OWNER, test=(TOKENS, hidden)),
        rounds=30,
        method=tf.methods.get("fedavg", lr=1.0),
    )
    short = fit(
        Next(),
        tf.Federation(TOKENS[:, :2], y[:, :2], OWNER),
        rounds=30,
        method=tf.methods.get("fedavg", lr=1.0),
    )
    torch.testing.assert_close(run.x, short.x)
    assert run.summary["test_accuracy"] == 1.0


def test_sequences_as_long_as_there_are_classes_ask_for_a_loss():
    with pytest.raises(ArgumentError, match=r"either axis may hold the classes; give loss=\.\.\."):
        fit(Next(classes=4), tf.Federation(TOKENS % 4, TOKENS % 4, OWNER))
    with pytest.raises(ArgumentError, match="labels go up to 4; give the last layer 5 outputs"):
        fit(Next(classes=3), tf.Federation(TOKENS, TOKENS, OWNER))


def test_integer_inputs_are_floats_where_the_model_needs_them(tmp_path):
    x = (X * 10).round().long()
    model = nn.Sequential(nn.Linear(3, 2))
    run = fit(model, tf.Federation(x, SIDE, OWNER, test=(x, SIDE)), out=tmp_path)
    same = fit(model, tf.Federation(x.float(), SIDE, OWNER, test=(x.float(), SIDE)))
    assert torch.equal(run.x, same.x)
    assert run.summary["test_loss"] == same.summary["test_loss"]
    assert (run.predict(x) == same.predict(x.float())).all()
    assert (tf.Run.load(tmp_path, model).predict(x.numpy()) == run.predict(x)).all()
    flags = torch.stack([SIDE > 0, SIDE == 0, X[:, 0] > 0], 1)
    assert fit(model, tf.Federation(flags, SIDE, OWNER)).status == "finished"


def test_predict_takes_what_training_took():
    fed = tf.Federation(X, SIDE, OWNER)
    run = fit(linear(), fed)
    want = run.predict(X)
    data = TensorDataset(X, SIDE)
    rows = [(x, int(y)) for x, y in zip(X, SIDE, strict=True)]

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, i):
            return rows[i]

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(rows)

    forms = [X.numpy(), X.tolist(), data, DataLoader(data, batch_size=7), Rows(), Stream()]
    forms += [DataLoader(Rows(), batch_size=7, shuffle=True), DataLoader(Stream(), batch_size=7)]
    for form in forms:
        assert (run.predict(form) == want).all()
    with pytest.raises(ArgumentError, match=r"does not accept inputs of shape \(60, 2\) \(mat1"):
        run.predict(X[:, :2])
    with pytest.raises(DataError, match="was not trained on a table"):
        run.predict(pandas.DataFrame(X.numpy()))


def test_loaders_and_streams_train():
    data = TensorDataset(X, SIDE)
    want = tf.Federation.of([(X, SIDE)] * 2)
    named = [{"x": x, "label": int(y)} for x, y in zip(X, SIDE, strict=True)]
    sampler = torch.utils.data.SequentialSampler(range(5))
    some = DataLoader(data, batch_size=4, sampler=sampler)
    assert tf.Federation.of([some]).x.tolist() == X[:5].tolist()
    for form in (
        DataLoader(data, 7, shuffle=True),
        DataLoader(named, 7),
        named,
        DataLoader(
            data, 7, collate_fn=lambda rows: tuple(map(torch.stack, zip(*rows, strict=True)))
        ),
    ):
        fed = tf.Federation.of([form, form], test=form)
        assert torch.equal(fed.x, want.x)
        assert torch.equal(fed.y, want.y)
        assert torch.equal(fed.test[0], X)
    assert tf.Federation([data, data]).digest() == want.digest()


def frame(n=60):
    return pandas.DataFrame(
        {"a": X[:n, 0], "b": np.where(X[:n, 1] > 0, "up", "down"), "y": SIDE[:n], "who": OWNER[:n]}
    )


def test_frames_are_predicted_from_any_frame(tmp_path):
    fed = tf.Federation(frame(), "y", "who", test=0.2)
    run = fit(linear(2, 3), fed, out=tmp_path)
    want = run.predict(frame())
    shuffled = frame()[["who", "b", "a"]]  # other columns, other order, no targets
    assert (tf.Run.load(tmp_path, linear(2, 3)).predict(shuffled) == want).all()
    assert (run.predict(frame().iloc[:1]) == want[:1]).all()
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["data"]["features"][1] == {"name": "b", "categories": ["down", "up"]}
    with pytest.raises(DataError, match="feature columns of training, but lacks 'b'; it has 'a'"):
        run.predict(frame()[["a"]])
    for given in ([{"a": 1.0, "b": "up"}], {"a": [1.0], "b": ["up"]}, frame().iloc[0]):
        with pytest.raises(DataError, match=r"predict takes a frame with its columns \(a, b\), or"):
            run.predict(given)
    assert (run.predict(fed.x) == tf.Run.load(tmp_path, linear(2, 3)).predict(fed.x)).all()


class Named(torch.utils.data.Dataset):
    """Samples that are dicts, whose targets have a name of their own."""

    def __init__(self, more):
        self.more = more

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return {"x": X[i], **({"z": X[i, :1]} if self.more else {}), "outcome": int(SIDE[i])}


class TwoInputs(torch.nn.Linear):
    def forward(self, x, z):
        return super().forward(x) + z


@pytest.mark.parametrize("more", [False, True])
def test_predict_leaves_out_targets_by_their_name(more, tmp_path):
    model = TwoInputs(3, 2) if more else linear()
    run = fit(model, tf.Federation.of([Named(more)] * 2, y="outcome"), out=tmp_path)
    want = run.predict({"x": X, "z": X[:, :1]} if more else X)
    for one in (run, tf.Run.load(tmp_path, model)):
        assert (one.predict(Named(more)) == want).all()
        assert (one.predict(DataLoader(Named(more), 7)) == want).all()
        batches = DataLoader(Named(more), 7, collate_fn=lambda rows: default_collate(rows))
        assert (one.predict(batches) == want).all()


def test_a_test_set_by_rows_and_by_clients():
    fed = tf.Federation(X, SIDE, np.array(list("abc"))[OWNER])
    rows = fed.with_test(0.25, seed=1)
    assert rows.sizes.tolist() == [15, 15, 15]
    assert torch.bincount(rows.test_owner).tolist() == [5, 5, 5]
    assert (
        fit(linear(), rows, evaluate=tf.Evaluate(per_client=True)).history[0]["worst_client"]
        in "abc"
    )
    clients = fed.with_test(0.34, by="clients", seed=1)
    assert clients.sizes.tolist() == [20, 20]
    assert len(clients.test[1]) == 20
    (gone,) = {"a", "b", "c"} - set(clients.names)
    assert torch.equal(clients.test[0], fed.client(fed.names.index(gone))[0])
    assert fed.with_test(0.34, by="clients", seed=1).names == clients.names
    assert tf.Federation(X, SIDE, OWNER, test=0.25).test_owner.tolist() == sorted(
        OWNER[:15].tolist()
    )
    with pytest.raises(DataError, match="there is one already"):
        rows.with_test(0.1)
    with pytest.raises(ArgumentError, match=r"with_test\(fraction=...\) must be a number between"):
        fed.with_test(1.5)
    with pytest.raises(ArgumentError, match="Unknown by 'row'"):
        fed.with_test(0.5, by="row")
    with pytest.raises(DataError, match="at least two clients"):
        tf.Federation.of([(X, SIDE)]).with_test(0.5, by="clients")


def full(fed, **more):
    """Return a run whose steps see all data of their client."""
    return fit(linear(), fed, batch=None, dtype=torch.float64, **more)


def test_weights_are_repetitions():
    x, y, owner = X[:54], SIDE[:54], OWNER[:54]
    many = torch.tensor([1, 2, 3])[torch.arange(54) // 3 % 3]  # the same total for every client
    repeated = (x.repeat_interleave(many, 0), y.repeat_interleave(many), np.repeat(owner, many))
    want = full(tf.Federation(*repeated))
    got = full(tf.Federation(x, y, owner, sample_weight=5.0 * many))
    torch.testing.assert_close(got.x, want.x)


@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize("method", ["fedavg", "auto", "scaffold", "fedsls"])
def test_samples_of_weight_zero_do_not_count(engine, method):
    keep = torch.arange(60) % 2 == 0
    weight = keep.double().numpy() * 3
    noisy = SIDE.clone()
    noisy[~keep] = 1 - noisy[~keep]
    owner = np.arange(60) // 20
    a = full(tf.Federation(X, noisy, owner, sample_weight=weight), method=method, engine=engine)
    # Three samples instead of one have less weight decay, which is one over their number.
    same = weight[keep.numpy()] if method == "auto" else None
    fed = tf.Federation(X[keep], SIDE[keep], owner[keep], sample_weight=same)
    b = full(fed, method=method, engine=engine)
    torch.testing.assert_close(a.x, b.x)


def test_dicts_tuples_and_columns_have_weights():
    weight = np.where(SIDE > 0, 4.0, 1.0)
    want = full(tf.Federation(X, SIDE, OWNER, sample_weight=weight))
    assert not torch.equal(want.x, full(tf.Federation(X, SIDE, OWNER)).x)
    for x in ({"input": X}, (X,)):
        got = full(tf.Federation(x, SIDE, OWNER, sample_weight=weight))
        assert torch.equal(got.x, want.x)
    table = pandas.DataFrame(X.numpy(), columns=list("abc")).assign(who=OWNER, w=weight)
    table["y"] = SIDE.numpy()
    fed = tf.Federation(table, "y", "who", sample_weight="w")
    assert fed.features.names == ("a", "b", "c")
    assert torch.equal(full(fed).x, want.x)
    assert fed.digest() != tf.Federation(X.numpy(), SIDE, OWNER).digest()
    held = full(fed, evaluate=tf.Evaluate(validation=0.2, heterogeneity=True))
    assert held.history[0]["zeta"] > 0


def test_augmented_images_have_weights():
    x = torch.randn(60, 1, 4, 4)
    weight = np.where(SIDE > 0, 4.0, 1.0)
    model = nn.Sequential(nn.Flatten(), linear(2, 16))
    runs = [
        fit(
            model,
            tf.Federation(x, SIDE, OWNER, sample_weight=w),
            preprocess=tf.Preprocess(augment="crop-flip"),
        )
        for w in (None, np.ones(60), weight)
    ]
    assert torch.equal(runs[0].x, runs[1].x)
    assert not torch.equal(runs[0].x, runs[2].x)


def test_class_weights():
    rare = torch.arange(60) % 10 == 0
    words = np.where(rare, "ill", "well")
    fed = tf.Federation(X, words, OWNER)
    plain, even = full(fed), full(fed, preprocess=tf.Preprocess(class_weight="balanced"))
    assert (plain.predict(X) == "ill").sum() < (even.predict(X) == "ill").sum()
    assert even.settings["class_weight"] == "balanced"
    weights = {"ill": 60 / (2 * 6), "well": 60 / (2 * 54)}
    text = ",".join(f"{label}={value}" for label, value in weights.items())
    assert torch.equal(full(fed, preprocess=tf.Preprocess(class_weight=weights)).x, even.x)
    assert torch.equal(full(fed, preprocess=tf.Preprocess(class_weight=text)).x, even.x)
    each = np.where(rare, weights["ill"], weights["well"])
    assert torch.equal(full(tf.Federation(X, words, OWNER, sample_weight=each)).x, even.x)


BAD_WEIGHTS = {
    "length": ({"sample_weight": [1.0]}, "be one number per sample, got shape (1,) for 60 samples"),
    "negative": ({"sample_weight": [-1.0] * 60}, "be finite numbers >= 0 of which some are"),
    "zero": ({"sample_weight": [0.0] * 60}, "be finite numbers >= 0 of which some are positive"),
}


@pytest.mark.parametrize(("more", "sentence"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_weights_that_cannot_be(more, sentence):
    with pytest.raises(DataError) as caught:
        tf.Federation(X, SIDE, OWNER, **more)
    assert sentence in str(caught.value)


def test_class_weights_that_cannot_be():
    fed = tf.Federation(X, SIDE, OWNER)
    with pytest.raises(ArgumentError, match=r"Unknown label in Preprocess\(class_weight=...\) '2'"):
        fit(linear(), fed, preprocess=tf.Preprocess(class_weight={2: 1.0}))
    with pytest.raises(ArgumentError, match="needs class labels"):
        fit(
            linear(1),
            tf.Federation(X, X[:, 0], OWNER),
            preprocess=tf.Preprocess(class_weight="balanced"),
        )
    with pytest.raises(ArgumentError, match="'balanced', or weights such as ill=3"):
        fit(linear(), fed, preprocess=tf.Preprocess(class_weight="even"))


class Breaks(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.log(x[:, 2:] + 100)


def test_refused_clients_are_named(caplog):
    x = X.clone()
    x[torch.from_numpy(OWNER) == 1, 2] = -200
    names = np.array(["east", "north", "south"])[OWNER]
    with caplog.at_level(logging.WARNING):
        run = fit(Breaks(3, 2), tf.Federation(x, SIDE, names))
    assert "client north is refused" in caplog.text
    assert {row["refused_clients"] for row in run.history} == {"north"}
    assert run.settings["data"]["picture"]["clients"] == ["east", "north", "south"]


def test_images_in_an_order_that_the_model_does_not_take():
    """The reason is that of the images as floats, not that they are uint8."""
    images = torch.zeros(6, 8, 8, 3, dtype=torch.uint8)
    fed = tf.Federation(images, torch.arange(6) % 2, list("aabbcc"))
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 2))
    with pytest.raises(ArgumentError, match=r"samples of shape \(8, 8, 3\) .*to have 3 channels"):
        fit(model, fed)
    assert fit(model, tf.Federation(images.permute(0, 3, 1, 2), fed.y, list("aabbcc"))).history


def test_predict_refuses_samples_of_different_shapes():
    run = fit(linear(), tf.Federation(X, SIDE, OWNER))

    class Ragged(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return torch.zeros(2 + i), 0

    with pytest.raises(DataError, match=r"Run.predict\(inputs\): the dataset must return samples"):
        run.predict(Ragged())
