"""Estimators with scikit-learn's interface; needs scikit-learn (the extra `sklearn`).

`tf.FederatedClassifier` and `tf.FederatedRegressor` train one network over the rows of several
owners, given as `groups`. They fit into scikit-learn's pipelines, searches and cross-validation.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from .core.errors import import_optional
from .core.random import torch_seed
from .data.federation import Federation
from .methods import Method
from .models import nets
from .training.config import Preprocess
from .training.fit import fit

import_optional("sklearn", "tf.FederatedClassifier", "scikit-learn", extra="sklearn")

from sklearn.base import (  # type: ignore[import-untyped]  # noqa: E402
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
)
from sklearn.utils import check_random_state  # type: ignore[import-untyped]  # noqa: E402
from sklearn.utils.multiclass import (  # type: ignore[import-untyped]  # noqa: E402
    check_classification_targets,
)
from sklearn.utils.validation import (  # type: ignore[import-untyped]  # noqa: E402
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)


def _one_hidden_layer(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


ModelOrFactory = nn.Module | Callable[[int, int], nn.Module] | str


@dataclass(eq=False, repr=False)
class _Federated(BaseEstimator):  # type: ignore[misc]
    """What both estimators share."""

    model: ModelOrFactory | None = None
    method: str | Method = "auto"
    _: KW_ONLY
    rounds: int = 100
    cohort: int | None = None
    steps: int | None = None
    epochs: int | None = None
    batch: int | None = 50
    device: str = "auto"
    random_state: Any = 0
    options: dict[str, Any] | None = None

    def _train(
        self, x: Any, y: Any, groups: Any, outputs: int, weight: Any, loss: str, class_weight: Any
    ) -> None:
        """Train the model and keep the run."""
        owner = np.zeros(len(y), dtype=np.int64) if groups is None else np.asarray(groups)
        fed = Federation(x, y, owner, sample_weight=weight, name=type(self).__name__)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        model = self._make_model(x.shape[1], outputs, seed)
        names = ("rounds", "cohort", "steps", "epochs", "batch", "device")
        given = {name: getattr(self, name) for name in names}
        given |= {"seed": seed, "dtype": torch.float64, "loss": loss} | (self.options or {})
        preprocess = given.pop("preprocess", Preprocess(scale="standard"))
        if class_weight is not None:
            preprocess = replace(preprocess, class_weight=class_weight)
        self.run_ = fit(model, fed, self.method, preprocess=preprocess, **given)
        self.clients_ = fed.names

    def _make_model(self, inputs: int, outputs: int, seed: int) -> nn.Module:
        if isinstance(self.model, nn.Module):
            return self.model
        if isinstance(self.model, str):
            return nets.build(self.model, shape=(inputs,), classes=outputs, seed=seed)
        with torch_seed(seed):
            return (self.model or _one_hidden_layer)(inputs, outputs)

    def _read(self, X: Any) -> Any:
        """Return the rows of a prediction, checked."""
        check_is_fitted(self)
        return validate_data(self, X, reset=False)


@dataclass(eq=False, repr=False)
class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier that is trained over several owners' rows, with scikit-learn's interface.

    Args:
        model: The network: a module, a function of the numbers of inputs and outputs, or a name of
            `tf.models`; None is one hidden layer of 64 units.
        method: Method name, or a `tf.Method`.
        rounds: Communication rounds.
        cohort: Owners per round; None is all of them.
        steps: Local steps per owner and round; 20 unless epochs is given.
        epochs: Passes over each owner's rows instead of steps.
        batch: Rows per local step; None is all of an owner's rows.
        class_weight: Weights of the classes: "balanced", or a dict by label.
        device: "auto", "cpu", "cuda", ...
        random_state: Seed of the model and of the training, or a NumPy `RandomState`.
        options: Further options of `tf.fit`; `dtype` is float64 here, as scikit-learn's arrays are.

    Attributes:
        classes_: The labels.
        clients_: The owners, None of whom is left out; one if `groups` was not given.
        run_: The `tf.Run`: history, model, summary.
        n_features_in_: Number of features.

    >>> import numpy as np
    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 10)
    >>> y = np.array(["low", "low", "high", "high"] * 10)
    >>> found = FederatedClassifier("linear", rounds=5).fit(X, y, groups=np.arange(40) % 4)
    >>> found.predict([[-3.0], [3.0]]).tolist(), found.score(X, y)
    (['low', 'high'], 1.0)
    """

    class_weight: Any = field(default=None, kw_only=True)

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Train the classifier.

        Args:
            X: Features (n_samples, n_features).
            y: Labels (n_samples,).
            groups: Owner of each row; without them all rows have one owner.
            sample_weight: Weight of each row.
        """
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"FederatedClassifier needs samples of at least 2 classes, got one class: "
                f"{self.classes_.tolist()[0]!r}."
            )
        given = self.class_weight
        if isinstance(given, dict):  # by label; the run knows the classes by their number
            place = {label: i for i, label in enumerate(self.classes_.tolist())}
            given = {place.get(label, label): value for label, value in given.items()}
        self._train(X, numbers, groups, len(self.classes_), weight, "cross_entropy", given)
        return self

    def predict(self, X: Any) -> Any:
        """Return the label of each row."""
        rows = self._read(X)
        return self.classes_[self.run_.predict(rows)]

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class (n_samples, n_classes), in the order of classes_."""
        rows = self._read(X)
        return self.run_.predict_proba(rows)


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor that is trained over several owners' rows, with scikit-learn's interface.

    Its arguments and attributes are those of `FederatedClassifier`, without classes. Targets may
    have several columns and any scale.

    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> found = FederatedRegressor(rounds=100).fit(X, 3 * X[:, 0] + 1)
    >>> bool(found.score(X, 3 * X[:, 0] + 1) > 0.99)
    True
    """

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Train the regressor.

        Args:
            X: Features (n_samples, n_features).
            y: Targets (n_samples,) or (n_samples, n_targets).
            groups: Owner of each row; without them all rows have one owner.
            sample_weight: Weight of each row.
        """
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        outputs = 1 if y.ndim == 1 else y.shape[1]
        self._train(X, y.astype(np.float64), groups, outputs, weight, "mse", None)
        return self

    def predict(self, X: Any) -> Any:
        """Return the prediction for each row."""
        rows = self._read(X)
        return self.run_.predict(rows).astype(np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
