"""Sinks: the history where people look at it, while the run goes on. Each is a callback of `fit`.

    tf.fit(model, federation, callbacks=[tf.sinks.Csv("history.csv"), tf.sinks.TensorBoard("tb")])

All but `Csv` need a package: `pip install 'tunefree[tracking]'`. A sink of your own is a function
of an `Event`, or a class with the hooks it needs:

>>> class Print:
...     def begin(self, settings, history):  # history: the rounds played before, if resumed
...         print(settings["method"]["name"], "from round", len(history))
...     def __call__(self, event):  # after each round
...         print(event.round, event.row["gradients"])
...     def end(self, run):  # None where an error broke it off
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

from ..core.errors import unknown_name
from ..training.callbacks import Callback
from .mlflow import MLflow
from .table import Csv, Parquet
from .tensorboard import TensorBoard
from .wandb import WandB

Kind = Literal["csv", "mlflow", "parquet", "tensorboard", "wandb"]
_KINDS: dict[str, tuple[str, Callable[[Path], Callback]]] = {  # where in a run folder, and what
    "csv": ("history.csv", Csv),
    "mlflow": ("mlflow", MLflow),
    "parquet": ("history.parquet", Parquet),
    "tensorboard": ("tensorboard", TensorBoard),
    "wandb": ("wandb", lambda place: WandB(place.parent)),  # which makes wandb/ itself
}


def into(folder: Path | str, kinds: Iterable[Kind | str] = ()) -> list[Callback]:
    """Return sinks that write into a run folder: those named, and those it has already.

    >>> [type(sink).__name__ for sink in into("runs/first", ["csv"])]
    ['Csv']
    """
    asked = list(kinds)
    for kind in asked:
        if kind not in _KINDS:
            raise unknown_name("log", kind, _KINDS)
    return [
        make(Path(folder) / place)
        for kind, (place, make) in _KINDS.items()
        if kind in asked or (Path(folder) / place).exists()
    ]


__all__ = ["Csv", "MLflow", "Parquet", "TensorBoard", "WandB", "into"]
