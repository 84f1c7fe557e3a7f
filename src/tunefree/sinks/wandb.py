"""Weights & Biases, offline: a run's folder that `wandb sync` can send later."""

import re
import shutil
from pathlib import Path
from typing import Any

from ._values import digest, flat, need, title
from .tracker import Numbers, Row, Tracker


class WandB(Tracker):
    """The history as an offline run of Weights & Biases; needs wandb and no network.

    `wandb sync FOLDER/wandb/offline-run-*` sends it. An offline run cannot be continued: a resumed
    run is written anew as a whole, and its earlier part is removed.

    Args:
        folder: The folder wandb/ is made in it; many runs may share it.
        project: The project's name.
    """

    def __init__(self, folder: Path | str, *, project: str = "tunefree") -> None:
        super().__init__(folder)
        self.project = project
        self._wandb = need("WandB", "wandb", silent="WANDB_ERROR_REPORTING=false")
        self._run: Any = None

    def _open(self, settings: Row, played: int) -> int:
        mark = digest(settings)
        number = max((n for n, _ in self._earlier(mark)), default=0)
        if played:
            for n, path in self._earlier(mark):
                if n == number:
                    shutil.rmtree(path)
        quiet = self._wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True
        )
        self._run = self._wandb.init(
            dir=str(self.folder),
            project=self.project,
            name=title(settings),
            id=f"{mark}-{number + 1}",
            config=flat(settings),
            mode="offline",
            reinit="create_new",
            settings=quiet,
        )
        return 0

    def _earlier(self, mark: str) -> list[tuple[int, Path]]:
        """Return the runs with these settings that the folder has, and their numbers."""
        paths = (self.folder / "wandb").glob(f"offline-run-*-{mark}-*")
        found = ((re.fullmatch(r".*-(\d+)", path.name), path) for path in paths)
        return [(int(match[1]), path) for match, path in found if match]

    def _log(self, round: int, values: Numbers) -> None:
        self._run.log(values, step=round)

    def _close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status in ("finished", "stopped early") else 1)
