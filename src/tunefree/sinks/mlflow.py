"""MLflow: metrics by round and settings as parameters, in a local database."""

import re
import time
from pathlib import Path
from typing import Any

from ._values import digest, flat, need, title
from .tracker import Numbers, Row, Tracker

PARAMS, LONGEST = 100, 6000  # what MLflow takes at once
STATUS = {"finished": "FINISHED", "stopped early": "FINISHED", "interrupted": "KILLED"}


class MLflow(Tracker):
    """The history as MLflow metrics; needs mlflow.

    Look with `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db`. A resumed run goes on in
    its MLflow run, found by its settings; rounds that are there already are left as they are.

    Args:
        folder: For the database mlflow.db and the artifacts; many runs may share it.
        experiment: The experiment's name.
    """

    def __init__(self, folder: Path | str, *, experiment: str = "tunefree") -> None:
        super().__init__(folder)
        self.experiment = experiment
        self._mlflow = need("MLflow", "mlflow", silent="MLFLOW_DISABLE_TELEMETRY=true")
        self._entities = need("MLflow", "mlflow", "mlflow.entities")
        self._client: Any = None
        self._run, self._last = "", -1  # the last round that is there

    @property
    def uri(self) -> str:
        """Where the database is, as MLflow writes it."""
        return f"sqlite:///{(self.folder / 'mlflow.db').absolute()}"

    def _open(self, settings: Row, played: int) -> int:
        client = self._client = self._mlflow.MlflowClient(tracking_uri=self.uri)
        found = client.get_experiment_by_name(self.experiment)
        place = (self.folder / "artifacts").absolute().as_uri()
        home = found.experiment_id if found else client.create_experiment(self.experiment, place)
        mark = {"tunefree.training.run": digest(settings)}
        earlier = [] if played == 0 else self._search(home, mark["tunefree.training.run"])
        if earlier:
            self._run = earlier[0].info.run_id
            self._last = self._newest()
            client.update_run(self._run, status="RUNNING")
        else:
            self._run = client.create_run(home, run_name=title(settings), tags=mark).info.run_id
            self._last = -1
            self._describe(settings)
        return self._last + 1

    def _search(self, home: str, mark: str) -> Any:
        asked = f"tags.`tunefree.training.run` = '{mark}'"
        newest = ["attributes.start_time DESC"]
        return self._client.search_runs([home], asked, order_by=newest, max_results=1)

    def _newest(self) -> int:
        """Return the last round whose numbers are there."""
        names = self._client.get_run(self._run).data.metrics
        steps = (m.step for n in names for m in self._client.get_metric_history(self._run, n))
        return max(steps, default=-1)

    def _describe(self, settings: Row) -> None:
        params = [
            self._entities.Param(_name(k), str(v)[:LONGEST]) for k, v in flat(settings).items()
        ]
        for start in range(0, len(params), PARAMS):
            self._client.log_batch(self._run, params=params[start : start + PARAMS])

    def _log(self, round: int, values: Numbers) -> None:
        if round <= self._last:
            return
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(_name(k), v, now, round) for k, v in values.items()]
        self._client.log_batch(self._run, metrics=metrics)
        self._last = round

    def _close(self, status: str) -> None:
        self._client.set_tag(self._run, "tunefree.status", status)
        self._client.set_terminated(self._run, STATUS.get(status, "FAILED"))


def _name(name: str) -> str:
    return re.sub(r"[^\w\-./ ]", "_", name)
