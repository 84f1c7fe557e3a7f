"""Callbacks that log every round's numbers to a tracking tool: TensorBoard, MLflow, wandb.

The tool is opened at the first round and closed in any case, and each round is logged once.
"""

import hashlib
import json
import math
import os
import re
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from ..core.errors import import_optional
from ..core.files import flatten, to_json
from ..training.callbacks import Event
from ..training.folder import INFORMATION
from ..training.history import Row
from ..training.run import Run

Numbers = dict[str, int | float]
MLFLOW_BATCH, MLFLOW_TEXT = 100, 6000  # parameters per request, and characters of one
MLFLOW_STATUS = {
    **dict.fromkeys(("finished", "stopped early", "unstable"), "FINISHED"),
    "interrupted": "KILLED",
}


def finite_numbers(row: Mapping[str, Any]) -> Numbers:
    """Return the finite numbers of a row as int and float.

    >>> finite_numbers({"round": 3, "test_loss": float("inf"), "lr": 0.5, "note": "hello"})
    {'round': 3, 'lr': 0.5}
    """
    return {
        name: int(v) if isinstance(v, Integral) else float(v)
        for name, v in row.items()
        if isinstance(v, Real) and math.isfinite(v)
    }


def flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name with lists as text, without the clients' label counts.

    >>> flatten_settings({"method": {"name": "fedavg", "parts": [1, 2]}, "data": {"picture": {}}})
    {'method.name': 'fedavg', 'method.parts': '[1, 2]'}
    """
    return {
        name: to_json(value) if isinstance(value, list | tuple) else value
        for name, value in flatten(settings).items()
        if not name.startswith("data.picture")
    }


def digest_settings(settings: Mapping[str, Any]) -> str:
    """Return eight hex digits that identify a run's settings."""
    relevant = {k: v for k, v in settings.items() if k not in INFORMATION}
    text = json.dumps(json.loads(to_json(relevant)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_name(settings: Mapping[str, Any]) -> str:
    """Return the name of a run in the tool's lists.

    >>> run_name({"method": {"name": "auto"}, "data": {"name": "digits"}, "seed": 0})
    'digits-auto-0'
    """
    data, method = settings.get("data", {}), settings.get("method", {})
    return f"{data.get('name', 'run')}-{method.get('name', 'custom')}-{settings.get('seed', 0)}"


def import_modules(sink: str, package: str, *modules: str) -> list[Any]:
    """Import the package that a sink needs and modules of it."""
    user = f"tf.sinks.{sink}"
    return [import_optional(m, user, package, extra="tracking") for m in (package, *modules)]


class Tracker(ABC):
    """A callback that logs every round's numbers to a tool; its step is the round.

    Args:
        folder: Folder for the tool's files; it is created.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._is_open = False

    def begin(self, settings: Row, history: list[Row]) -> None:
        """Open the tool, and log the earlier rounds that it does not have."""
        self.folder.mkdir(parents=True, exist_ok=True)
        first = self._open(settings, len(history))
        self._is_open = True
        for row in history:
            if row["round"] >= first:
                self._log(row["round"], _numbers(row))

    def __call__(self, event: Event) -> None:
        """Log one round."""
        if not self._is_open:  # `begin` was not called
            self.folder.mkdir(parents=True, exist_ok=True)
            self._open({}, event.round)
            self._is_open = True
        self._log(event.round, _numbers(event.row))

    def end(self, run: Run | None) -> None:
        """Close the tool."""
        if self._is_open:
            self._is_open = False
            self._close("failed" if run is None else run.status)

    @abstractmethod
    def _open(self, settings: Row, rounds: int) -> int:
        """Open the tool after `rounds` rounds; return the first round that it does not have."""

    @abstractmethod
    def _log(self, round: int, values: Numbers) -> None:
        """Log one round's numbers."""

    @abstractmethod
    def _close(self, status: str) -> None:
        """Log the run's final status, and close the tool."""


def _numbers(row: Row) -> Numbers:
    return {name: value for name, value in finite_numbers(row).items() if name != "round"}


class TensorBoard(Tracker):
    """Logs the history as TensorBoard scalars; needs tensorboard. View with `tensorboard --logdir`.

    Args:
        folder: Folder for the event files of one run. A resumed run adds a file that replaces the
            rounds that are run again.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        modules = import_modules("TensorBoard", "tensorboard", "torch.utils.tensorboard")
        self._module = modules[1]
        self._writer: Any = None

    def _open(self, settings: Row, rounds: int) -> int:
        used = any(self.folder.glob("events.out.tfevents.*"))
        self._writer = self._module.SummaryWriter(
            str(self.folder), purge_step=rounds if used else None, flush_secs=5
        )
        if settings:
            text = json.dumps(json.loads(to_json(flatten_settings(settings))), indent=2)
            self._writer.add_text("settings", f"```json\n{text}\n```", rounds)
        return rounds if used else 0

    def _log(self, round: int, values: Numbers) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def _close(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()


class WandB(Tracker):
    """Logs the history as an offline run of Weights & Biases; needs wandb but no network.

    `wandb sync FOLDER/wandb/offline-run-*` uploads it. An offline run cannot be continued: a
    resumed run is written again from its first round, and the earlier offline run is removed.

    Args:
        folder: Folder in which wandb/ is created; several runs may share it.
        project: The project's name.
    """

    def __init__(self, folder: Path | str, *, project: str = "tunefree") -> None:
        super().__init__(folder)
        self.project = project
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no telemetry
        (self._wandb,) = import_modules("WandB", "wandb")
        self._run: Any = None

    def _open(self, settings: Row, rounds: int) -> int:
        digest = digest_settings(settings)
        paths = (self.folder / "wandb").glob(f"offline-run-*-{digest}-*")
        found = {path.name.rpartition("-")[2]: path for path in paths}
        earlier = {int(n): path for n, path in found.items() if n.isdecimal()}
        number = max(earlier, default=0)
        if rounds and number:
            shutil.rmtree(earlier[number])
        options = self._wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True
        )
        self._run = self._wandb.init(
            dir=str(self.folder),
            project=self.project,
            name=run_name(settings),
            id=f"{digest}-{number + 1}",
            config=flatten_settings(settings),
            mode="offline",
            reinit="create_new",
            settings=options,
        )
        return 0

    def _log(self, round: int, values: Numbers) -> None:
        self._run.log(values, step=round)

    def _close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if MLFLOW_STATUS.get(status) == "FINISHED" else 1)


class MLflow(Tracker):
    """Logs the history as MLflow metrics; needs mlflow.

    View with `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db`. A resumed run continues
    its MLflow run, which is found by the settings; rounds that are already logged are skipped.

    Args:
        folder: Folder for the database mlflow.db and the artifacts; several runs may share it.
        experiment: The experiment's name.
    """

    def __init__(self, folder: Path | str, *, experiment: str = "tunefree") -> None:
        super().__init__(folder)
        self.experiment = experiment
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._mlflow, self._entities = import_modules("MLflow", "mlflow", "mlflow.entities")
        self._client: Any = None
        self._run, self._last = "", -1  # the last round that is logged

    @property
    def uri(self) -> str:
        """The tracking URI of the database."""
        return f"sqlite:///{(self.folder / 'mlflow.db').absolute()}"

    def _open(self, settings: Row, rounds: int) -> int:
        client = self._client = self._mlflow.MlflowClient(tracking_uri=self.uri)
        found = client.get_experiment_by_name(self.experiment)
        place = (self.folder / "artifacts").absolute().as_uri()
        home = found.experiment_id if found else client.create_experiment(self.experiment, place)
        digest, earlier = digest_settings(settings), []
        if rounds:
            query = f"tags.`tunefree.run` = '{digest}'"
            newest = ["attributes.start_time DESC"]
            earlier = client.search_runs([home], query, order_by=newest, max_results=1)
        if earlier:
            self._run = earlier[0].info.run_id
            names = client.get_run(self._run).data.metrics
            steps = (m.step for n in names for m in client.get_metric_history(self._run, n))
            self._last = max(steps, default=-1)
            client.update_run(self._run, status="RUNNING")
        else:
            tags = {"tunefree.run": digest}
            created = client.create_run(home, run_name=run_name(settings), tags=tags)
            self._run, self._last = created.info.run_id, -1
            self._log_settings(settings)
        return self._last + 1

    def _log_settings(self, settings: Row) -> None:
        params = [
            self._entities.Param(_metric_name(k), str(v)[:MLFLOW_TEXT])
            for k, v in flatten_settings(settings).items()
        ]
        for start in range(0, len(params), MLFLOW_BATCH):
            self._client.log_batch(self._run, params=params[start : start + MLFLOW_BATCH])

    def _log(self, round: int, values: Numbers) -> None:
        if round <= self._last:
            return
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(_metric_name(k), v, now, round) for k, v in values.items()]
        self._client.log_batch(self._run, metrics=metrics)
        self._last = round

    def _close(self, status: str) -> None:
        self._client.set_tag(self._run, "tunefree.status", status)
        self._client.set_terminated(self._run, MLFLOW_STATUS.get(status, "FAILED"))


def _metric_name(name: str) -> str:
    return re.sub(r"[^\w\-./ ]", "_", name)
