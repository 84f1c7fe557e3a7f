"""Sinks: callbacks of `fit` that write the history to a file or a tracking tool during a run.

    tf.fit(model, federation, callbacks=[tf.sinks.Csv("history.csv"), tf.sinks.TensorBoard("tb")])

All but `Csv` need a package: `pip install 'tunefree[tracking]'`. A sink of your own is a function
of an `Event`, or a class with the hooks it needs:

>>> class Print:
...     def begin(self, settings, history):  # history: earlier rounds, if resumed
...         print(settings["method"]["name"], "from round", len(history))
...     def __call__(self, event):  # after each round
...         print(event.round, event.row["gradients"])
...     def end(self, run):  # None after an error
...         print("failed" if run is None else run.status)
>>> import torch, tunefree as tf
>>> data = tf.Federation(torch.eye(4), [0, 1, 0, 1], owner=[0, 0, 1, 1])
>>> model = torch.nn.Linear(4, 2)
>>> run = tf.fit(model, data, "fedavg", rounds=2, device="cpu", callbacks=[Print()])
fedavg from round 0
0 40
1 40
finished
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from ..core.errors import check_known
from ..training.callbacks import Callback
from .tables import Csv, Parquet
from .trackers import MLflow, TensorBoard, WandB

SinkName = Literal["csv", "mlflow", "parquet", "tensorboard", "wandb"]
_SINKS: dict[str, tuple[str, Callable[[Path], Callback]]] = {  # path in a run folder, class
    "csv": ("history.csv", Csv),
    "mlflow": ("mlflow", MLflow),
    "parquet": ("history.parquet", Parquet),
    "tensorboard": ("tensorboard", TensorBoard),
    "wandb": ("wandb", lambda path: WandB(path.parent)),  # wandb creates wandb/ itself
}


def make_sinks(folder: Path | str, names: Iterable[SinkName | str] = ()) -> list[Callback]:
    """Return sinks that write into a run folder: those named, and those that it has already.

    >>> [type(sink).__name__ for sink in make_sinks("runs/first", ["csv"])]
    ['Csv']
    """
    names = list(names)
    for name in names:
        check_known("log", name, _SINKS)
    return [
        make(Path(folder) / path)
        for name, (path, make) in _SINKS.items()
        if name in names or (Path(folder) / path).exists()
    ]


__all__ = ["Csv", "MLflow", "Parquet", "TensorBoard", "WandB", "make_sinks"]
