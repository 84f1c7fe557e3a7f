"""The run: bind everything before round 0, play the rounds, keep what they leave."""

import inspect
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..attacks import Attack
from ..core.errors import (
    ArgumentError,
    CheckpointError,
    Interrupted,
    ResumeError,
    check_int,
    convert_errors,
)
from ..core.types import Vector
from ..data.federation import Federation
from ..faults import Faults
from ..methods import Method
from ..models import augment as augmentations
from ..models.engine import Engine
from ..models.problem import Loss, Precision
from ..rounds import ServerState, init_server_state, run_round
from ..rounds import output_model as shipped
from ..server.aggregate import Aggregation, weighted_mean
from ..simulation.heap import keep_heap
from .bind import Job, Options, bind
from .callbacks import Callback, watching
from .callbacks import Event as Event
from .diverge import divergence_message, find_nonfinite
from .evaluate import Metric
from .folder import Folder
from .history import History
from .run import Run, validation_score

log = logging.getLogger("tunefree")

CHECKPOINT_SECONDS = 5.0  # without checkpoint_every, a state is written when it is this old


def fit(
    model: nn.Module,
    federation: Federation,
    method: str | Method = "auto",
    *,
    rounds: int = 100,
    cohort: int | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int | None = 50,
    loss: str | Loss = "auto",
    seed: int = 0,
    device: str | torch.device = "auto",
    dtype: torch.dtype = torch.float32,
    precision: Precision = "auto",
    eval_every: int = 1,
    out: str | Path | None = None,
    resume: bool = True,
    start: nn.Module | Run | None = None,
    validation: float | None = None,
    patience: int | None = None,
    keep_best: bool = False,
    metrics: Mapping[str, Metric] | None = None,
    per_client: bool = False,
    heterogeneity: bool = False,
    augment: str | augmentations.CropFlip | None = None,
    engine: Engine = "auto",
    compile: bool | None = None,
    chunk: int | None = None,
    aggregate: Aggregation = weighted_mean,
    faults: Faults | None = None,
    attack: Attack | None = None,
    checkpoint_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    command: Mapping[str, Any] | None = None,
) -> Run:
    """Train one model over many clients' data.

    Args:
        model: Any module; its own parameters are the start, and it is not changed.
        federation: Who owns which samples.
        method: A name, or a `tf.Method`; "auto" needs no learning rate.
        rounds: Rounds T, >= 1.
        cohort: Clients per round S; None is everyone.
        steps: Local steps K of every client (20 unless epochs is given).
        epochs: Passes over each client's own data, instead of steps.
        batch: Samples per local step; None is all of a client's data.
        loss: "cross_entropy", "mse", "auto" by the labels, or a pure function
            f(output, target) -> loss of each sample.
        seed: Everything random is a function of it.
        device: "auto" takes a GPU if there is one.
        dtype: torch.float32 or torch.float64.
        precision: "fp32", "tf32" (on a GPU) or "bf16" inside the model's products; parameters and
            rules keep the dtype. "auto" is tf32 on a GPU.
        eval_every: Evaluate every so many rounds, and after the last. With a penalty this includes
            sparsity and stationarity, which costs a pass over all clients' data.
        out: Folder for settings, history and checkpoints; None writes nothing.
        resume: Continue the run in `out` if there is one; False refuses a used folder.
        start: Start from another module's or run's parameters.
        validation: Share of every client's samples kept for validation, in (0, 1).
        patience: Stop after so many evaluations without a better validation score.
        keep_best: Ship the model of the best validation score instead of the method's output.
        metrics: Further numbers by name, each f(outputs, targets) over the test set.
        per_client: Also report the worst client's score and the spread over clients.
        heterogeneity: Also report how much clients' gradients differ, at every evaluation: `zeta`,
            the root mean square of |grad f_i - grad f|, and `dissimilarity`, the mean of
            |grad f_i|^2 over |grad f|^2. Costs a pass over all clients' data.
        augment: "crop-flip", a `CropFlip`, or None.
        engine: "vmap" batches clients, "loop" runs them in turn, "auto" takes the faster.
        compile: Compile the batched step; None decides by the amount of work.
        chunk: Clients trained at once; None takes the whole cohort, fewer where that is faster.
        aggregate: How means are made of what clients send: `tf.privacy.Secure()` sums it under
            masks, a `tf.privacy.Privacy` clips and noises it, a rule of `tf.robust` withstands
            hostile clients.
        faults: How clients fail, in a simulation: a `tf.faults.Faults`.
        attack: What hostile clients do, in a simulation: one of `tf.attacks`.
        checkpoint_every: Rounds between checkpoints; None writes when the last is 5 s old.
        callbacks: Called with an `Event` after each round; `tf.sinks` has some, and says how to
            write one.
        command: Kept in the settings for the record.
    """
    given = {k: v for k, v in locals().items() if k not in _RUN_ONLY}
    if checkpoint_every is not None:
        check_int("fit", "checkpoint_every", checkpoint_every)
    if not isinstance(callbacks, Sequence) or not all(callable(c) for c in callbacks):
        raise ArgumentError(f"fit(callbacks=...) must be a list of functions, got {callbacks!r}.")
    job = bind(Options(**given))
    folder = None if out is None else Folder(out)
    return train(job, folder, resume, checkpoint_every, callbacks)


_RUN_ONLY = ("out", "resume", "checkpoint_every", "callbacks")


def options(**given: Any) -> Options:
    """Return the options that `fit(**given)` would bind, defaults filled in."""
    known = inspect.signature(fit).parameters.items()
    filled = {k: given.get(k, p.default) for k, p in known if k not in _RUN_ONLY}
    return Options(**filled)


class _Best:
    """The best validation score so far, and the model that had it."""

    def __init__(self, x: Vector) -> None:
        self.score, self.round, self.waited, self.x = float("inf"), -1, 0, x

    def see(self, row: dict[str, Any], output: Vector) -> None:
        score = validation_score(row)
        assert score is not None
        if score < self.score:
            self.score, self.round, self.waited, self.x = score, row["round"], 0, output
        else:
            self.waited += 1

    def facts(self) -> dict[str, Any]:
        return {"score": self.score, "round": self.round, "waited": self.waited}

    def restore(self, facts: dict[str, Any], x: Vector) -> None:
        score = facts["score"]
        self.score = float("inf") if score is None else score
        self.round, self.waited, self.x = facts["round"], facts["waited"], x


@contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a request to stop after the round; the second stops at once."""
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def train(
    job: Job,
    folder: Folder | None,
    resume: bool,
    checkpoint_every: int | None,
    callbacks: Sequence[Callback],
) -> Run:
    """Play the rounds of a job that is bound, from where its folder stands; the crew may be any."""
    with nullcontext() if folder is None or not job.crew.ranks.leads else folder.alone():
        return _train(job, folder, resume, checkpoint_every, callbacks)


def _train(
    job: Job,
    folder: Folder | None,
    resume: bool,
    checkpoint_every: int | None,
    callbacks: Sequence[Callback],
) -> Run:
    now = init_server_state(job.method, job.start, job.plan)
    history = History()
    best = _Best(job.start)
    status = "unfinished"
    ranks = job.crew.ranks
    if folder is not None:
        found = ranks.agreed(_open(folder, job.settings, resume) if ranks.leads else None)
        if found is not None:
            rounds, tensors, facts = found
            with convert_errors(
                f"The run in {str(folder.path)!r} cannot be continued", CheckpointError
            ):
                now = now.restored(rounds, tensors)
                job.crew.load_state(tensors)
                best.restore(facts["best"], tensors["best"].to(now.x.device))
                history = History(r for r in folder.history() if r.get("round", rounds) < rounds)
                status = str(facts["status"])
            if len(history) < rounds:
                log.warning("The history lacks %d of %d rounds.", rounds - len(history), rounds)
        if ranks.leads:
            folder.rewrite_history(history)
    saver = _Saver(job, folder, checkpoint_every)
    cohort, everyone = job.crew.sample_cohort(now.round), torch.arange(job.plan.clients)
    with watching(callbacks if ranks.leads else (), job.settings, history) as watch:
        with keep_heap(), _ctrl_c() as stopping:
            while status == "unfinished":
                began = time.perf_counter()
                last = now.round + 1 == job.plan.rounds
                following = None if last else job.crew.sample_cohort(now.round + 1)
                job.crew.announce(following)
                after, row = run_round(job.method, job.plan, now, job.crew, cohort, everyone)
                output = shipped(job.method, after)
                if (what := find_nonfinite(after, row)) is not None:
                    status = "diverged"
                    log.warning("%s", divergence_message(what, now.round, job.method))
                    break
                job.crew.commit()
                cohort = cohort if following is None else following
                if last or after.round % job.options.eval_every == 0:
                    row |= job.measured(output) | job.cost(after.round)
                    if job.validation is not None:
                        best.see(row, output)
                now = after
                row["seconds"] = time.perf_counter() - began
                if folder is not None and ranks.leads:
                    folder.append(row)
                watch.tell(Event(row["round"], now.x, output, row))
                history.append(row)  # with what callbacks have added to it
                if last:
                    status = "finished"
                elif job.options.patience is not None and best.waited >= job.options.patience:
                    status = "stopped early"
                elif sum(ranks.counts([stopping()])):
                    break
                saver.perhaps(now, best, status)
        run = _result(job, folder, now, best, history, status)
        saver.save(now, best, status, run)
        watch.run = run
    if status == "unfinished":
        where = "" if folder is None else f" Call fit again with out={str(folder.path)!r}."
        raise Interrupted(f"Stopped by Ctrl-C after {now.round} rounds.{where}", run)
    return run


def _open(folder: Folder, settings: dict[str, Any], resume: bool) -> Any:
    if not folder.started:
        folder.start(settings)
        return None
    if not resume:
        raise ResumeError(
            f"fit(out={str(folder.path)!r}, resume=False) needs an unused folder, but it holds a "
            "run; choose another, or resume=True to continue it."
        )
    folder.compare(settings)
    return folder.load()


def _result(
    job: Job,
    folder: Folder | None,
    now: ServerState,
    best: _Best,
    history: History,
    status: str,
) -> Run:
    output = _shipped(job, now, best)
    path = None if folder is None else folder.path
    said = "interrupted" if status == "unfinished" else status
    return Run(now.x, output, list(history), job.settings, said, path, job.problem)


def _shipped(job: Job, now: ServerState, best: _Best) -> Vector:
    if job.options.keep_best and best.round >= 0:
        return best.x
    return shipped(job.method, now)


class _Saver:
    """Writes checkpoints: when due, and at the end."""

    def __init__(self, job: Job, folder: Folder | None, every: int | None) -> None:
        self._job, self._folder, self._every = job, folder, every
        self._written = time.monotonic()

    def perhaps(self, now: ServerState, best: _Best, status: str) -> None:
        if self._folder is None or status != "unfinished":
            return
        due = (
            now.round % self._every == 0
            if self._every is not None
            else self._job.crew.ranks.agreed(time.monotonic() - self._written > CHECKPOINT_SECONDS)
        )
        if due:
            self._write(now, best, status)

    def _write(self, now: ServerState, best: _Best, status: str) -> None:
        if self._folder is None:
            return
        shipped = _shipped(self._job, now, best)
        tensors = {**now.tensors(), **self._job.crew.state(), "best": best.x, "shipped": shipped}
        if self._job.crew.ranks.leads:
            self._folder.save(now.round, tensors, {"status": status, "best": best.facts()})
        self._written = time.monotonic()

    def save(self, now: ServerState, best: _Best, status: str, run: Run) -> None:
        self._write(now, best, status)
        if self._folder is not None and status != "unfinished" and self._job.crew.ranks.leads:
            self._folder.export(run.model.state_dict())
