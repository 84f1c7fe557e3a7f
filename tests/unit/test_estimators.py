"""The estimators do what scikit-learn expects of estimators, over several owners' rows."""

import pickle
import sys
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import make_classification, make_regression
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import tunefree as tf
from tunefree.core.errors import ArgumentError

SKIPPED: dict[str, str] = {}  # checks that fail by design, and why; scikit-learn skips some itself


# Many short runs of one client, which start fastest in the plain loop.
SHORT: dict[str, Any] = {"rounds": 6, "steps": 10, "options": {"engine": "loop"}}


@parametrize_with_checks(
    [tf.FederatedClassifier(**SHORT), tf.FederatedRegressor(**SHORT)],
    expected_failed_checks=lambda estimator: SKIPPED,
)
def test_what_scikit_learn_checks(estimator, check):
    check(estimator)


def classes(labels=("no", "yes")):
    x, y = make_classification(300, 6, n_informative=4, random_state=0)
    return x, np.array(labels)[y], np.array(["east", "north", "south"])[np.arange(300) % 3]


def test_owners_are_clients_and_labels_come_back():
    x, y, owner = classes()
    found = tf.FederatedClassifier(rounds=30).fit(x, y, groups=owner)
    central = LogisticRegression().fit(x, y).score(x, y)
    assert found.clients_ == ("east", "north", "south")
    assert found.classes_.tolist() == ["no", "yes"]
    assert found.run_.settings["data"]["clients"] == 3
    assert found.score(x, y) > central - 0.05
    chance = found.predict_proba(x)
    assert (found.classes_[chance.argmax(1)] == found.predict(x)).all()


def test_it_is_what_fit_trains():
    x, y, owner = classes((0, 1))
    found = tf.FederatedClassifier("linear", "fedavg", rounds=4, batch=20, random_state=3)
    found.fit(x, y, owner)
    seed = found.run_.settings["seed"]
    model = tf.models.build("linear", shape=(6,), classes=2, seed=seed)
    run = tf.fit(
        model, tf.Federation(x, y, owner), "fedavg", rounds=4, batch=20, seed=seed,
        dtype=torch.float64, preprocess=tf.Preprocess(scale="standard"),
    )  # fmt: skip
    assert torch.equal(found.run_.x, run.x)
    assert (found.predict(x) == run.predict(x)).all()


def own_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 2))


@pytest.mark.parametrize(
    "model", [own_network(), lambda inputs, outputs: nn.Linear(inputs, outputs)]
)
def test_own_networks(model):
    x, y, _ = classes()
    found = tf.FederatedClassifier(model, rounds=5)
    assert found.fit(x, y).score(x, y) > 0.6
    again = tf.FederatedClassifier(model, rounds=5).fit(x, y)
    assert torch.equal(found.run_.x, again.run_.x)


def test_pickled_it_predicts_the_same():
    x, y, owner = classes()
    found = tf.FederatedClassifier(rounds=3).fit(x, y, owner)
    again = pickle.loads(pickle.dumps(found))
    assert (again.predict_proba(x) == found.predict_proba(x)).all()


def test_pipelines_searches_and_folds_of_whole_owners():
    x, y, owner = classes()
    with sklearn.config_context(enable_metadata_routing=True):
        inner = tf.FederatedClassifier(rounds=5).set_fit_request(groups=True)
        scores = cross_val_score(
            make_pipeline(StandardScaler(), inner),
            x * 1000,
            y,
            cv=GroupKFold(3),
            params={"groups": owner},
        )
    assert scores.min() > 0.6
    search = GridSearchCV(tf.FederatedClassifier(rounds=3), {"method": ["auto", "fedavg"]}, cv=2)
    assert search.fit(x, y).best_params_["method"] in ("auto", "fedavg")


def test_class_weights_go_by_label():
    x, y, _ = classes()
    keep = (y == "no") | (np.arange(300) % 10 == 0)
    x, y = x[keep], y[keep]
    plain = tf.FederatedClassifier(rounds=5).fit(x, y)
    even = tf.FederatedClassifier(rounds=5, class_weight="balanced").fit(x, y)
    heavy = tf.FederatedClassifier(rounds=5, class_weight={"yes": 50.0}).fit(x, y)
    counts = [(each.predict(x) == "yes").sum() for each in (plain, even, heavy)]
    assert counts[0] < counts[1] < counts[2]
    with pytest.raises(
        ValueError, match=r"Unknown label in Preprocess\(class_weight=...\) 'maybe'"
    ):
        tf.FederatedClassifier(class_weight={"maybe": 2.0}).fit(x, y)


def test_regression_with_one_and_several_targets():
    x, y = make_regression(200, 5, n_targets=2, random_state=0)
    owner = np.arange(200) % 4
    one = TransformedTargetRegressor(
        tf.FederatedRegressor(rounds=40, options={"eval_every": 10}), transformer=StandardScaler()
    )
    assert one.fit(x, y[:, 0], groups=owner).score(x, y[:, 0]) > 0.9
    two = tf.FederatedRegressor(rounds=40).fit(x, y / y.std(0), owner)
    assert two.predict(x).shape == (200, 2)
    assert two.score(x, y / y.std(0)) > 0.9


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="at least 2 classes, got one class: 'a'"):
        tf.FederatedClassifier().fit([[1.0], [2.0]], ["a", "a"])


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "tunefree.estimators")
    monkeypatch.delattr(tf, "estimators")
    with pytest.raises(ArgumentError, match=r"needs the package scikit-learn.*tunefree\[sklearn\]"):
        _ = tf.FederatedClassifier
    with pytest.raises(AttributeError, match="no attribute 'Federated'"):
        _ = tf.Federated
