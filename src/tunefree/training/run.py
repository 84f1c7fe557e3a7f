"""The result of a run: its model, history and settings."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import ArgumentError, CheckpointError, convert_errors
from ..core.files import check_writable, open_regular, pack_tensors, write_atomically
from ..core.types import Vector, list_tensors, take_rows
from ..data.arrays import Label, read_inputs
from ..data.tables import Features
from ..models.problem import LOSSES, Problem, class_axis
from .best import choose_round
from .folder import RunFolder

ROWS_AT_ONCE = 4096  # rows predicted at once
MOST_CLASSES = 1 << 24  # in settings that can be believed
_RENDERERS: dict[str, Callable[..., Any]] = {}


def register_report(**functions: Callable[..., Any]) -> None:
    """Register the functions that show runs, which are those of `tunefree.report`.

    It calls this when it is imported, so that this package need not import it: `write` (behind
    `Run.report`), `render` (in notebooks), `describe` (`print(run)`), `progress` (while training).
    """
    _RENDERERS.update(functions)


def make_progress(rounds: int) -> Callable[..., object] | None:
    """Return a callback that shows progress, or None if nothing can show it."""
    make = _RENDERERS.get("progress")
    bar: Callable[..., object] | None = None if make is None else make(rounds)
    return bar


@dataclass(frozen=True)
class Run:
    """The result of `fit`.

    Attributes:
        x: The server's last iterate, flat.
        output: The flat model that the method ships (an average, the best, ...).
        history: One dict per round: round, train_loss (mean over the cohort's batches), lr (mean
            client step), gradients (minibatch gradients taken), trials (line-search evaluations per
            step), server_step, bytes_up, bytes_down (bytes_up.delta, ... by channel), seconds, and
            refused (clients left out because of NaN or Inf, if any); round_lost is 1 for a masked
            round of a federation that could not be unmasked or saved; in evaluated rounds also
            test_loss, test_accuracy, validation_loss, ..., client_worst, client_spread; and the
            names of clients: refused_clients, worst_client.
        settings: Everything that decides the run.
        status: "finished", "stopped early", "interrupted", "diverged" (numbers that are not finite,
            or a loss that ended at 100 times that of the start), "unstable" (all rounds ran, but a
            loss rose a hundredfold on the way) or "unfinished".
        path: The run's folder, or None.
        scaling: Mean and scale of each column (2, columns), if inputs are standardised; `x` and
            `output` are parameters for standardised inputs, `model` takes raw ones.
        target_scaling: Mean and scale of each target (2, targets), if these are standardised too.
    """

    x: Vector
    output: Vector
    history: list[dict[str, Any]]
    settings: dict[str, Any]
    status: str
    path: Path | None = None
    problem: Problem | None = None
    scaling: Tensor | None = None
    target_scaling: Tensor | None = None

    @property
    def model(self) -> nn.Module:
        """A copy of the module that holds `output`, in evaluation mode."""
        return self.known_problem("give one back").module_at(self.output)

    def known_problem(self, purpose: str) -> Problem:
        """Return the problem, which a run that was loaded without a module lacks."""
        if self.problem is None:
            raise ArgumentError(f"Run.load(path, model=...) needs the module to {purpose}.")
        return self.problem

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """The label of each class, in the order of the model's outputs; None for regression."""
        found = _data(self.settings).get("classes")
        if isinstance(found, int):
            return tuple(range(found)) if 0 < found < MOST_CLASSES else None
        return tuple(found) if isinstance(found, list) and found else None

    def predict(self, inputs: Any, *, raw: bool = False) -> Any:
        """Return the shipped model's predictions as an array: labels of classes, or numbers.

        Args:
            inputs: Inputs in any form that training took: arrays, tensors, tuples or dicts of them,
                a frame, a Dataset or a DataLoader; targets in it are ignored.
            raw: Return the model's outputs as they are, as a tensor.
        """
        output = self._outputs(inputs)
        if raw:
            return output
        loss, single = self.settings.get("loss"), _data(self.settings).get("target") == []
        if loss == "bce":
            index = (output > 0).long()
            return self._name_classes(index.reshape(len(index))) if single else index.numpy()
        if self._has_scores(output):
            return self._name_classes(self._scores(output).argmax(1))
        is_one = single and output[:1].numel() == 1
        return (output.reshape(len(output)) if is_one else output).numpy()

    def predict_proba(self, inputs: Any) -> Any:
        """Return the probability of each class as an array (rows, classes).

        With several 0/1 targets, it is the probability that each of them is 1; for sequences, the
        array is (rows, classes, length).
        """
        output = self._outputs(inputs)
        single = _data(self.settings).get("target") == []
        if self.settings.get("loss") == "bce":
            chance = output.double().sigmoid()
            if single:
                chance = chance.reshape(-1, 1)
                chance = torch.cat([1 - chance, chance], 1)
            return chance.numpy()
        if not self._has_scores(output):
            loss = self.settings.get("loss")
            raise ArgumentError(f"predict_proba needs classes, but the run's loss is {loss!r}.")
        return self._scores(output).double().softmax(1).numpy()

    def _outputs(self, inputs: Any) -> Tensor:
        problem = self.known_problem("predict")
        data = _data(self.settings)
        found = data.get("features")
        features = None if found is None else Features.from_json(found)
        batch = read_inputs(inputs, features, data.get("target_name"))
        rows = len(list_tensors(batch)[0])
        parts, shapes = [], ", ".join(str(tuple(t.shape)) for t in list_tensors(batch))
        with convert_errors(f"The model does not accept inputs of shape {shapes}", ArgumentError):
            for low in range(0, max(rows, 1), ROWS_AT_ONCE):
                part = take_rows(batch, slice(low, low + ROWS_AT_ONCE))
                parts.append(problem.outputs(self.output, problem.prepare(part)).cpu())
        return torch.cat(parts)

    def _has_scores(self, output: Tensor) -> bool:
        """Whether the outputs are scores of classes."""
        loss, classes = self.settings.get("loss"), self.classes
        known = classes is not None and output.ndim == 2 and output.shape[1] >= len(classes) > 1
        return loss == "cross_entropy" or (loss not in LOSSES and known)

    def _scores(self, output: Tensor) -> Tensor:
        """Return the scores with the classes in axis 1."""
        each = _data(self.settings).get("target") or []
        return class_axis(output, output.new_empty((len(output), *each)))

    def _name_classes(self, index: Tensor) -> Any:
        """Return the labels of classes that are given by their number."""
        classes = self.classes
        if classes is None or list(map(repr, classes)) == list(map(repr, range(len(classes)))):
            return index.numpy()
        return np.array(classes)[index.clamp(max=len(classes) - 1).numpy()]

    @property
    def summary(self) -> dict[str, Any]:
        """Totals and last measurements, by name."""
        rows = self.history
        out: dict[str, Any] = {"status": self.status, "rounds": len(rows)}
        for name in ("bytes_up", "bytes_down", "seconds", "gradients"):
            out[name] = sum(row.get(name) or 0 for row in rows)
        shipped = rows
        if self.settings.get("keep_best"):
            chosen = choose_round(rows, self.settings)
            shipped = rows if chosen is None else [rows[chosen]]
        measured = ("test_", "validation_", "client_", "worst_client")
        names = sorted(k for k in set().union(*shipped) if k.startswith(measured))
        out |= {k: next(row[k] for row in reversed(shipped) if k in row) for k in names}
        accuracy = [r["test_accuracy"] for r in rows if r.get("test_accuracy") is not None]
        if accuracy:
            out["best_test_accuracy"] = max(accuracy)
        return out

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the shipped model: `.safetensors`, or `.pt` for torch.load(weights_only=True)."""
        target = Path(path)
        state = {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}
        with check_writable("Run.export(path) must be a file", path):
            if target.suffix == ".safetensors":
                write_atomically(target, pack_tensors(state))
            elif target.suffix == ".pt":
                with open_regular(target, "wb") as file:
                    torch.save(state, file)
            else:
                ends = "must end in .safetensors or .pt"
                raise ArgumentError(f"Run.export(path) {ends}, got {str(path)!r}.")
        return target

    def report(self, path: str | os.PathLike[str] = "report.html") -> Path:
        """Write a page about this run: one HTML file that opens offline."""
        page: Path = _RENDERERS["write"](self, path)
        return page

    def __str__(self) -> str:
        return str(_RENDERERS["describe"](self))

    def __repr__(self) -> str:
        method = self.settings.get("method")
        name = method.get("name") if isinstance(method, dict) else method
        return f"<Run of {name or 'a method'}: {self.status}, {len(self.history)} rounds>"

    def _repr_html_(self) -> str:
        """Show the last numbers in a notebook."""
        text: str = _RENDERERS["render"](self)
        return text

    @staticmethod
    def load(path: str | os.PathLike[str], model: nn.Module | None = None) -> "Run":
        """Read a run folder; given a module of the same architecture, the run can predict."""
        folder = RunFolder(path)
        settings = folder.read_settings()
        found = folder.load_checkpoint()
        if found is None:
            raise CheckpointError(f"The run in {str(path)!r} has no checkpoint yet.")
        rounds, tensors, facts = found
        problem = None
        with convert_errors(f"The run in {str(path)!r} cannot be read", CheckpointError):
            x, output = tensors["x"], tensors["shipped"]
            is_flat = x.ndim == 1 and x.shape == output.shape and x.dtype == output.dtype
            if not (is_flat and x.is_floating_point() and rounds >= 0):
                raise ValueError("x and the shipped model must be vectors of one shape and dtype")
            scaling, targets = tensors.get("scale"), tensors.get("target_scale")
            for scale in (scaling, targets):
                if scale is not None and (scale.ndim != 2 or len(scale) != 2):
                    raise ValueError("the scale must have a mean and a deviation of each column")
        if model is not None:
            dtype, loss = settings.get("dtype"), settings.get("loss")
            if dtype not in ("float32", "float64") or not isinstance(loss, str):
                raise CheckpointError(f"The settings in {str(path)!r} lack a loss or a dtype.")
            loss = loss if loss in LOSSES else "mse"  # a user's own is not needed to predict
            problem = Problem(model, loss, getattr(torch, dtype))
            problem.casts = bool(_data(settings).get("casts"))
            if settings.get("frozen", problem.frozen_digest()) != problem.frozen_digest():
                raise ArgumentError(
                    "Run.load(model=...) must have the frozen parameters and buffers that the run "
                    "had, got other values; build the module as it was built for the run."
                )
            if (size := problem.layout.size) != x.numel():
                wanted = f"the run's {x.numel()} trainable parameters"
                raise ArgumentError(f"Run.load(model=...) must have {wanted}, got {size}.")
            problem.scaling, problem.target_scaling = scaling, targets
        status = str(facts.get("status", "unfinished"))
        history = folder.read_history()[:rounds]
        path = folder.path
        return Run(x, output, history, settings, status, path, problem, scaling, targets)


def _data(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings' description of the data."""
    found = settings.get("data")
    return found if isinstance(found, dict) else {}
