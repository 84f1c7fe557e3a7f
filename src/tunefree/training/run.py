"""The result of a run: its model, history and settings."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import ArgumentError, CheckpointError, DataError, convert_errors
from ..core.files import check_writable, open_regular, pack_tensors, write_atomically
from ..core.types import Vector, map_inputs
from ..data._arrays import check_plain
from ..models.problem import LOSSES, Problem
from .folder import RunFolder

_RENDERERS: dict[str, Callable[..., Any]] = {}


def register_report(
    write: Callable[["Run", str | os.PathLike[str]], Path], render: Callable[["Run"], str]
) -> None:
    """Register the functions behind `Run.report` and a run's display in notebooks.

    `tunefree.report` calls this when it is imported, so that this module need not import it.
    """
    _RENDERERS.update(write=write, render=render)


def validation_score(row: dict[str, Any]) -> float | None:
    """Return the number that early stopping and keep-best lower, if the round was evaluated."""
    if row.get("validation_accuracy") is not None:
        return -float(row["validation_accuracy"])
    loss = row.get("validation_loss")
    return None if loss is None else float(loss)


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
            test_loss, test_accuracy, validation_loss, ..., client_worst, client_spread.
        settings: Everything that decides the run.
        status: "finished", "stopped early", "interrupted", "diverged" or "unfinished".
        path: The run's folder, or None.
    """

    x: Vector
    output: Vector
    history: list[dict[str, Any]]
    settings: dict[str, Any]
    status: str
    path: Path | None = None
    problem: Problem | None = None

    @property
    def model(self) -> nn.Module:
        """A copy of the module that holds `output`, in evaluation mode."""
        if self.problem is None:
            raise ArgumentError("Run.load(path, model=...) needs the module to give one back.")
        return self.problem.module_at(self.output)

    def predict(self, inputs: Any) -> Tensor:
        """Return the shipped model's outputs for a batch: tensors or arrays, as in training."""
        if self.problem is None:
            raise ArgumentError("Run.load(path, model=...) needs the module to predict.")
        several = isinstance(inputs, tuple | dict)
        for part in (
            inputs.values() if isinstance(inputs, dict) else inputs if several else [inputs]
        ):
            check_plain(part, "inputs", error=_refuse_inputs)
        batch = map_inputs(torch.as_tensor, inputs if several else torch.as_tensor(inputs))
        return self.problem.outputs(self.output, self.problem.prepare(batch)).cpu()

    @property
    def summary(self) -> dict[str, Any]:
        """Totals and last measurements, by name."""
        rows = self.history
        out: dict[str, Any] = {"status": self.status, "rounds": len(rows)}
        for name in ("bytes_up", "bytes_down", "seconds", "gradients"):
            out[name] = sum(row.get(name) or 0 for row in rows)
        shipped = rows
        if self.settings.get("keep_best"):
            scored = [row for row in rows if validation_score(row) is not None]
            shipped = [min(scored, key=validation_score)] if scored else rows  # type: ignore[arg-type]
        measured = ("test_", "validation_", "client_")
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
        if model is not None:
            dtype, loss = settings.get("dtype"), settings.get("loss")
            if dtype not in ("float32", "float64") or not isinstance(loss, str):
                raise CheckpointError(f"The settings in {str(path)!r} lack a loss or a dtype.")
            loss = loss if loss in LOSSES else "mse"  # a user's own is not needed to predict
            problem = Problem(model, loss, getattr(torch, dtype))
            check_frozen("Run.load(model=...)", settings, problem)
            if (size := problem.layout.size) != x.numel():
                wanted = f"the run's {x.numel()} trainable parameters"
                raise ArgumentError(f"Run.load(model=...) must have {wanted}, got {size}.")
        status = str(facts.get("status", "unfinished"))
        history = folder.read_history()[:rounds]
        return Run(x, output, history, settings, status, folder.path, problem)


def _refuse_inputs(name: str, rule: str, of: str) -> DataError:
    return DataError(f"Run.predict(inputs) must {rule}.")


def check_frozen(what: str, settings: dict[str, Any], problem: Problem) -> None:
    """Check that a model has the frozen parameters and buffers of the run."""
    if settings.get("frozen", problem.frozen_digest()) != problem.frozen_digest():
        raise ArgumentError(
            f"{what} must have the frozen parameters and buffers that the run had, got other "
            "values; build the module as it was built for the run."
        )
