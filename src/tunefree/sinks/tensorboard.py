"""TensorBoard: scalars by round."""

import json
from pathlib import Path
from typing import Any

from ..core.files import to_json
from ._values import flat, need
from .tracker import Numbers, Row, Tracker


class TensorBoard(Tracker):
    """The history as TensorBoard scalars; needs tensorboard. Look with `tensorboard --logdir`.

    Args:
        folder: For the event files of this one run. A resumed run adds a file that takes back the
            rounds it plays again.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        need("TensorBoard", "tensorboard")
        self._module = need("TensorBoard", "tensorboard", "torch.utils.tensorboard")
        self._writer: Any = None

    def _open(self, settings: Row, played: int) -> int:
        used = any(self.folder.glob("events.out.tfevents.*"))
        self._writer = self._module.SummaryWriter(
            str(self.folder), purge_step=played if used else None, flush_secs=5
        )
        if settings:
            text = json.dumps(json.loads(to_json(flat(settings))), indent=2)
            self._writer.add_text("settings", f"```json\n{text}\n```", played)
        return played if used else 0

    def _log(self, round: int, values: Numbers) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def _close(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()
