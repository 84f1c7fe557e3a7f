"""The training loop of a run: rounds, evaluation, callbacks, checkpoints, stopping."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..core.errors import CheckpointError, Interrupted, ResumeError, convert_errors, is_overflow
from ..core.heap import keep_heap
from ..core.plan import Round
from ..core.types import Vector
from ..rounds.server import ServerState, init_server_state, output_model, run_round
from ..simulation.dry_run import reads_rounds
from .best import BestRound
from .bind import BoundRun
from .callbacks import Callback, Event, begin_callbacks
from .folder import RunFolder
from .history import History
from .run import Run
from .stability import judge_losses, suggest_remedy

log = logging.getLogger("tunefree")

PARTS = {  # of the server's state, in the message of a run that diverged
    "x": "the model",
    "server": "the server's memory",
    "direction": "what the direction shares",
    "step": "what the step shares",
    "output": "the memory of the output",
}
CHECKPOINT_SECONDS = 5.0  # without checkpoint_every, a checkpoint is written when this old


class Trainer:
    """Trains a bound run, from its start or from the checkpoint in its folder, as `fit` does."""

    def __init__(
        self,
        run: BoundRun,
        folder: RunFolder | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self._run, self._folder, self._written = run, folder, time.monotonic()
        self._leads = run.ranks.leads
        self._callbacks = callbacks if self._leads else ()
        self._state = init_server_state(run.method, run.start, run.plan)
        self._history = History()
        self._best, self._best_model = BestRound(), run.start
        self._status = "unfinished"
        self._is_warm = False  # whether a round has run here, so that its parts are compiled
        self._replays = 0  # releases that may have been made before, with other noise

    def train(self) -> Run:
        """Run the remaining rounds.

        Raises:
            Interrupted: If the run was stopped by Ctrl-C or by a callback; it holds the run so far.
            ResumeError, CheckpointError: If the folder cannot be continued, read or written.
        """
        if self._folder is None or not self._leads:
            return self._train()
        with self._folder.locked():
            return self._train()

    def _train(self) -> Run:
        self._restore()
        run = self._run
        with begin_callbacks(self._callbacks, run.settings, self._history) as callbacks:
            with keep_heap(), _catch_interrupt(lambda: not self._is_warm) as interrupted:
                cause = self._run_rounds(callbacks.call, interrupted)
            if self._leads and (said := run.pool.summarize_refused()) is not None:
                log.warning("%s", said)
            if self._is_warm:  # otherwise the folder has this state already, or none
                self._save(self._status)
            result = self._result()
            if self._folder is not None and self._status != "unfinished" and self._leads:
                self._folder.export_model(result.model.state_dict())
            callbacks.run = result
        if self._status == "unfinished":
            raise Interrupted(describe_stop(cause, self._state.round, self._folder), result)
        return result

    def _restore(self) -> None:
        """Start the folder, or restore the run from its checkpoint."""
        folder, run = self._folder, self._run
        if folder is None:
            return
        opened = (folder.is_started, self._open(folder)) if self._leads else None
        resumes, found = run.ranks.agreed(opened)
        rounds, rows = 0, folder.read_history() if resumes else []
        if found is not None:
            rounds, tensors, facts = found
            with convert_errors(f"The run in {folder.name} cannot be continued", CheckpointError):
                self._state = self._state.restored(rounds, tensors)
                run.pool.load_state(tensors)
                for name, scaling in self._scales().items():
                    scaling.copy_(tensors[name])
                self._best = BestRound.from_json(facts["best"])
                self._best_model = tensors["best"].to(run.start.device)
                self._history = History(r for r in rows if r.get("round", rounds) < rounds)
                self._status = str(facts["status"])
                if self._status == "unfinished" and rounds == run.plan.rounds:
                    self._status = "finished"  # more rounds were asked for, and it stopped there
                self._replays = int(facts["replays"])
            if len(self._history) < rounds:
                missing = rounds - len(self._history)
                log.warning("The history lacks %d of %d rounds.", missing, rounds)
        if self._leads:
            folder.rewrite_history(self._history)
        if resumes and run.has_fresh_noise and self._status == "unfinished":
            # Rounds after the checkpoint were released, perhaps one that has no row yet, and what
            # clients send before round 0 if that is not behind the checkpoint.
            self._replays += 1 + sum(row.get("round", -1) >= rounds for row in rows)
            self._replays += run.first_releases if rounds == 0 else 0
            self._save("unfinished")

    def _open(self, folder: RunFolder) -> Any:
        if not folder.is_started:
            folder.start(self._run.settings)
            return None
        if not folder.resume:
            used = "an unused folder, but it holds a run"
            use = "choose another, or resume=True to continue it"
            raise ResumeError(f"fit(out={folder.name}, resume=False) needs {used}; {use}.")
        run, before = self._run, folder.read_settings().get("rounds")
        before = before if isinstance(before, int) else self._run.plan.rounds
        is_longer = before < run.plan.rounds
        # More rounds are more work, which may be worth compiling.
        free = ("rounds", "engine") if is_longer else ()
        folder.check_settings(run.settings, free)
        found = folder.load_checkpoint()
        if found is None:
            folder.start(run.settings)
        elif is_longer:
            self._check_more_rounds(folder, before, found[2])
            found[2]["status"] = "unfinished"
            folder.save_checkpoint(*found)  # first, so that the old one fits the settings
            folder.start(run.settings)
        return found

    def _check_more_rounds(self, folder: RunFolder, before: int, facts: dict[str, Any]) -> None:
        """Refuse more rounds than the `before` planned ones where that cannot be."""
        run, status = self._run, facts.get("status")
        why = None
        if status not in ("unfinished", "finished", "unstable"):
            why = f"is {status}"
        elif reads_rounds(run.method, run.plan, run.start):
            why = f"was planned for {before} rounds, which the step sizes of its method depend on"
        if why is not None:
            use = "train in another folder, from tf.Run.load(folder, model) as the model"
            raise ResumeError(f"The run in {folder.name} {why}; for more rounds, {use}.")

    def _run_rounds(
        self, call: Callable[[Event], None], interrupted: Callable[[], bool]
    ) -> str | None:
        """Run rounds until the run ends or is stopped; return what stopped it."""
        run, pool = self._run, self._run.pool
        cohort = self._sample_cohort(0)
        self._is_warm = self._status != "unfinished"
        while self._status == "unfinished":
            began, now = time.perf_counter(), self._state
            is_last = now.round + 1 == run.plan.rounds
            pool.announce(None if is_last else self._sample_cohort(1))
            try:
                before = run.standardise(pool) if now.round == 0 else None
                after, row = run_round(run.method, run.plan, now, pool, cohort, before)
                row["train_loss"] *= run.problem.loss_unit
                output = output_model(run.method, after)
                what = _find_nonfinite(after, row)
            except (Exception, KeyboardInterrupt) as error:  # Ctrl-C also ends a C++ compiler
                if interrupted() and (isinstance(error, Exception) or not self._is_warm):
                    return "Ctrl-C"
                if isinstance(error, KeyboardInterrupt) or not is_overflow(error):
                    raise
                what = "a number that is computed from the settings"
            self._is_warm = True
            if what is not None:
                self._status = "diverged"
                said = (
                    "Diverged in round %d: %s is no longer finite; the state before it is kept. %s"
                )
                log.warning(said, now.round, what, suggest_remedy(run))
                return None
            pool.commit()
            if is_last or after.round % run.config.eval_every == 0:
                row |= run.evaluate(output) | run.privacy_cost(after.round, self._replays)
                if run.data.validation is not None and self._best.update(row, run.settings):
                    self._best_model = output
            self._state = after
            cohort = cohort if is_last else self._sample_cohort(0)
            row["seconds"] = time.perf_counter() - began
            if self._folder is not None and self._leads:
                self._folder.append_row(row)
            event = Event(row["round"], after.x, output, row)
            call(event)
            self._history.append(row)  # with entries that callbacks added
            patience = run.config.evaluate.patience
            if is_last or (patience is not None and self._best.waited >= patience):
                self._status = self._judge("finished" if is_last else "stopped early")
            elif sum(run.ranks.counts([interrupted() or event.stop_requested])):
                return "a callback" if event.stop_requested else "Ctrl-C"
            elif self._is_checkpoint_due():
                self._save("unfinished")
        return None

    def _sample_cohort(self, ahead: int) -> Tensor:
        """Return the cohort of the next round, or of a later one as far as it can be known."""
        t = Round(self._run.plan, self._state.round + ahead)
        index = self._run.method.server.cohort_round(self._state.server, t)
        return self._run.pool.sample_cohort(index)

    def _judge(self, status: str) -> str:
        """Return the status of a run that ends, with a warning if its losses went badly."""
        test, start = self._run.data.test, self._run.start
        loss = None if test is None else lambda: test.measure(start)["test_loss"]
        found = judge_losses(self._history, loss)
        if found is None:
            return status
        bad, what = found
        if self._run.config.evaluate.keep_best and self._best.round >= 0:
            bad = "unstable"  # the model that is shipped is an earlier one
        log.warning("The run is %s: %s. %s", bad, what, suggest_remedy(self._run))
        return bad

    def _is_checkpoint_due(self) -> bool:
        if self._folder is None:
            return False
        if (every := self._folder.checkpoint_every) is not None:
            return self._state.round % every == 0
        old = time.monotonic() - self._written > CHECKPOINT_SECONDS
        return bool(self._run.ranks.agreed(old))

    def _save(self, status: str) -> None:
        """Write a checkpoint."""
        if self._folder is None:
            return
        tensors = self._state.tensors() | self._run.pool.state()
        tensors |= {"best": self._best_model, "shipped": self._shipped()}
        tensors |= self._scales()
        if self._leads:
            facts = {"status": status, "best": vars(self._best), "replays": self._replays}
            self._folder.save_checkpoint(self._state.round, tensors, facts)
        self._written = time.monotonic()

    def _scales(self) -> dict[str, Tensor]:
        """Return how inputs and targets are standardised, as the checkpoint names it."""
        problem = self._run.problem
        found = {"scale": problem.scaling, "target_scale": problem.target_scaling}
        return {name: scaling for name, scaling in found.items() if scaling is not None}

    def _shipped(self) -> Vector:
        if self._run.config.evaluate.keep_best and self._best.round >= 0:
            return self._best_model
        return output_model(self._run.method, self._state)

    def _result(self) -> Run:
        path = None if self._folder is None else self._folder.path
        status = "interrupted" if self._status == "unfinished" else self._status
        x, history, settings = self._state.x, list(self._history), self._run.settings
        problem = self._run.problem
        scales = problem.scaling, problem.target_scaling
        return Run(x, self._shipped(), history, settings, status, path, problem, *scales)


def describe_stop(cause: str | None, rounds: int, folder: RunFolder | None) -> str:
    """Return the message of `Interrupted`: what stopped the run when, and how it goes on."""
    where = "" if folder is None else f" Call fit again with out={folder.name}."
    return f"Stopped by {cause} after {rounds} rounds.{where}"


def _find_nonfinite(after: ServerState, row: dict[str, Any]) -> str | None:
    """Return a description of what is not finite after a round, or None."""
    is_known = row.get("answered") == 0 or "recovered" in row  # why there is no loss
    if not math.isfinite(row["train_loss"]) and not is_known:
        return "the training loss"
    found = after.tensors()
    finite = torch.stack([torch.isfinite(v).all() for v in found.values()]).tolist()
    for name, is_finite in zip(found, finite, strict=True):
        if not is_finite:
            part, _, own = name.partition(".")
            return PARTS[part] + (f" ({own})" if own else "")
    return None


@contextmanager
def _catch_interrupt(at_once: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a request to stop after the round; the second stops at once.

    The first one stops at once, too, while `at_once()` is true. Yields a function that returns
    whether Ctrl-C was pressed. Outside of the main thread, where Python delivers no signals,
    nothing is changed.
    """
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        stops, pressed = pressed or at_once(), True
        if stops:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
