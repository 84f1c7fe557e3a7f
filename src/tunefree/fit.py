"""The run: bind everything before round 0, play the rounds, keep what they leave."""

import inspect
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import methods
from .clients.rule import Plan
from .data.batches import Cut
from .data.federation import Federation
from .engines.simulate import Local, Simulation, mean_steps
from .errors import ArgumentError, DataError, Interrupted, ResumeError, between, whole
from .evaluate import Evaluation, Metric, are_labels, per_client
from .folder import Folder
from .methods import Method
from .models import augment as augmentations
from .models.losses import Engine
from .models.problem import Loss, Problem
from .random import cohort as draw_cohort
from .rounds import Standing, begin, play
from .run import Run
from .types import Pair, Vector, map_inputs, tensors
from .version import __version__

log = logging.getLogger("tunefree")

CHECKPOINT_SECONDS = 5.0  # without checkpoint_every, a state is written when it is this old


@dataclass(frozen=True)
class Event:
    """What a callback sees after each round."""

    round: int
    x: Vector
    output: Vector
    row: dict[str, Any]


Callback = Callable[[Event], object]


@dataclass(frozen=True)
class Job:
    """A run that is bound and checked, and has not begun."""

    method: Method
    problem: Problem
    federation: Federation
    plan: Plan
    crew: Simulation
    test: Evaluation | None
    validation: Evaluation | None
    settings: dict[str, Any]
    seed: int
    start: Vector
    eval_every: int
    patience: int | None
    keep_best: bool


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
    eval_every: int = 1,
    out: str | Path | None = None,
    resume: bool = True,
    start: nn.Module | Run | None = None,
    validation: float | None = None,
    patience: int | None = None,
    keep_best: bool = False,
    metrics: Mapping[str, Metric] | None = None,
    per_client: bool = False,
    augment: str | augmentations.CropFlip | None = None,
    engine: Engine = "auto",
    compile: bool | None = None,
    chunk: int | None = None,
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
        loss: "cross_entropy", "mse", f(output, target) -> loss per sample, or "auto" by labels.
        seed: Everything random is a function of it.
        device: "auto" takes a GPU if there is one.
        dtype: torch.float32 or torch.float64.
        eval_every: Evaluate every so many rounds, and after the last.
        out: Folder for settings, history and checkpoints; None writes nothing.
        resume: Continue the run in `out` if there is one; False refuses a used folder.
        start: Start from another module's or run's parameters.
        validation: Share of every client's samples kept for validation, in (0, 1).
        patience: Stop after so many evaluations without a better validation score.
        keep_best: Ship the model of the best validation score instead of the method's output.
        metrics: Further numbers by name, each f(outputs, targets) over the test set.
        per_client: Also report the worst client's score and the spread over clients.
        augment: "crop-flip", a `CropFlip`, or None.
        engine: "vmap" batches clients, "loop" runs them in turn, "auto" takes the faster.
        compile: Compile the batched step; None decides by the amount of work.
        chunk: Clients trained at once; None decides by the model's size.
        checkpoint_every: Rounds between checkpoints; None writes when the last is 5 s old.
        callbacks: Called with an `Event` after each round.
        command: Kept in the settings for the record.
    """
    given = {k: v for k, v in locals().items() if k not in _RUN_ONLY}
    if checkpoint_every is not None:
        whole("fit", "checkpoint_every", checkpoint_every)
    if not isinstance(callbacks, Sequence) or not all(callable(c) for c in callbacks):
        raise ArgumentError(f"fit(callbacks=...) must be a list of functions, got {callbacks!r}.")
    job = bind(**given)
    folder = None if out is None else Folder(out)
    return _run(job, folder, resume, checkpoint_every, callbacks)


_RUN_ONLY = ("out", "resume", "checkpoint_every", "callbacks")


def defaults() -> dict[str, Any]:
    """Return the defaults of `fit`'s arguments that `bind` takes."""
    known = inspect.signature(fit).parameters.items()
    empty = inspect.Parameter.empty
    return {k: p.default for k, p in known if k not in _RUN_ONLY and p.default is not empty}


def bind(
    model: nn.Module,
    federation: Federation,
    method: str | Method,
    *,
    rounds: int,
    cohort: int | None,
    steps: int | None,
    epochs: int | None,
    batch: int | None,
    loss: str | Loss,
    seed: int,
    device: str | torch.device,
    dtype: torch.dtype,
    eval_every: int,
    start: nn.Module | Run | None,
    validation: float | None,
    patience: int | None,
    keep_best: bool,
    metrics: Mapping[str, Metric] | None,
    per_client: bool,
    augment: str | augmentations.CropFlip | None,
    engine: Engine,
    compile: bool | None,
    chunk: int | None,
    command: Mapping[str, Any] | None,
) -> Job:
    """Check every argument of `fit` and bind what depends on it; nothing is trained yet."""
    how = methods.get(method) if isinstance(method, str) else method
    if not isinstance(how, Method):
        raise ArgumentError(f"fit(method=...) must be a name or a Method, got {method!r}.")
    if not isinstance(federation, Federation):
        raise ArgumentError(f"fit(federation=...) must be a tf.Federation, got {federation!r}.")
    size = federation.clients if cohort is None else cohort
    _check_numbers(locals())
    if size > federation.clients:
        raise ArgumentError(
            f"fit(cohort=...) must be at most the number of clients, {federation.clients}, "
            f"got {size}."
        )
    if steps is not None and epochs is not None:
        raise ArgumentError(f"fit takes steps or epochs, got steps={steps} and epochs={epochs}.")
    cut = Cut(batch=batch, steps=20 if steps is None and epochs is None else steps, epochs=epochs)
    if (patience is not None or keep_best) and validation is None:
        raise ArgumentError(
            "fit(patience=..., keep_best=...) choose by validation data; give validation=0.1 or so."
        )
    place = _device(device)
    labelled = are_labels(federation.y)
    problem = Problem(model, _loss(loss, labelled), dtype, place)
    fed, held_back = federation, None
    if validation is not None:
        fed, held_back = federation.hold_out(validation, seed)
    fed = _moved(fed, place, dtype)
    few = map_inputs(lambda t: t[:2], fed.x)
    problem.check(few, fed.y[:2], int(fed.y.max()) if labelled else None)
    plan = Plan(fed.clients, size, rounds, mean_steps(fed, cut), problem.layout)
    recipe = augmentations.parse(augment) if isinstance(augment, str) else augment
    if not isinstance(recipe, augmentations.CropFlip | None):
        raise ArgumentError(f"fit(augment=...) must be a name or a CropFlip, got {augment!r}.")
    crew = Simulation(how, problem, fed, cut, plan, seed, Local(engine, compile, chunk, recipe))
    groups = _groups(fed) if per_client else None
    extra = dict(metrics or {})
    test = None
    if fed.test is not None:
        test = Evaluation(problem, fed.test, extra, groups)
    check = None
    if held_back is not None:
        check = Evaluation(problem, _prepared(problem, held_back))
    point = problem.start
    if start is not None:
        point = _start(problem, start)
    settings = {
        "tunefree": __version__,
        "torch": torch.__version__,
        "device": str(place),
        "data": {
            "name": fed.name,
            "clients": fed.clients,
            "samples": fed.samples,
            "digest": federation.digest(),
        },
        "model": {"name": type(model).__name__, "parameters": problem.layout.size},
        "start": _digest(point),
        "method": how.describe(),
        "rounds": rounds,
        "cohort": size,
        "steps": cut.steps,
        "epochs": cut.epochs,
        "batch": batch,
        "loss": problem.loss_name,
        "seed": seed,
        "dtype": str(dtype).removeprefix("torch."),
        "eval_every": eval_every,
        "validation": validation,
        "patience": patience,
        "keep_best": keep_best,
        "metrics": sorted(extra),
        "per_client": per_client,
        "augment": None if recipe is None else repr(recipe),
        **crew.facts(),
        "command": dict(command or {}),
    }
    return Job(
        method=how,
        problem=problem,
        federation=fed,
        plan=plan,
        crew=crew,
        test=test,
        validation=check,
        settings=settings,
        seed=seed,
        start=point,
        eval_every=eval_every,
        patience=patience,
        keep_best=keep_best,
    )


_groups = per_client  # the argument of `fit` has the same name


def _check_numbers(given: dict[str, Any]) -> None:
    whole("fit", "cohort", given["size"])
    for name in ("rounds", "eval_every"):
        whole("fit", name, given[name])
    for name in ("steps", "epochs", "batch", "patience", "chunk"):
        if given[name] is not None:
            whole("fit", name, given[name])
    whole("fit", "seed", given["seed"], 0)
    if given["seed"] >= 1 << 63:
        raise ArgumentError(f"fit(seed=...) must be below 2**63, got {given['seed']!r}.")
    if given["validation"] is not None:
        between("fit", "validation", given["validation"], 0, 1)
    metrics = given["metrics"] or {}
    if not isinstance(metrics, Mapping) or not all(callable(m) for m in metrics.values()):
        raise ArgumentError(f"fit(metrics=...) must map names to functions, got {metrics!r}.")


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise ArgumentError(
            f"fit(device=...) must be 'auto' or a device of this machine, got {device!r}: {first}"
        ) from None
    return place


def _loss(loss: str | Loss, labelled: bool) -> str | Loss:
    return ("cross_entropy" if labelled else "mse") if loss == "auto" else loss


def _moved(federation: Federation, device: torch.device, dtype: torch.dtype) -> Federation:
    fed = federation.to(device, dtype)
    for pair in ((fed.x, fed.y), fed.test, fed.held):
        if pair is not None:
            _check_finite(pair, dtype)
    return fed


def _check_finite(pair: Pair, dtype: torch.dtype) -> None:
    for part in (*tensors(pair[0]), pair[1]):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            raise DataError(
                f"The data has numbers too large for {dtype}; scale it, or use "
                "fit(dtype=torch.float64)."
            )


def _prepared(problem: Problem, pair: Pair) -> Pair:
    inputs, target = problem.prepare(pair[0]), problem.prepare(pair[1])
    assert isinstance(target, torch.Tensor)
    _check_finite((inputs, target), problem.dtype)
    return inputs, target


def _start(problem: Problem, start: nn.Module | Run) -> Vector:
    if isinstance(start, Run):
        if start.output.numel() != problem.layout.size:
            raise ArgumentError(
                f"fit(start=...) must be a run of the same model, with {problem.layout.size} "
                f"trainable numbers, got {start.output.numel()}."
            )
        return start.output.to(problem.device, problem.dtype)
    if not isinstance(start, nn.Module):
        raise ArgumentError(f"fit(start=...) must be a module or a Run, got {start!r}.")
    return problem.vector_of(start)


def _digest(x: Vector) -> str:
    import hashlib

    return hashlib.sha256(x.cpu().numpy().tobytes()).hexdigest()[:16]


class _Best:
    """The best validation score so far, and the model that had it."""

    def __init__(self, x: Vector) -> None:
        self.score, self.round, self.waited, self.x = float("inf"), -1, 0, x

    def see(self, row: dict[str, Any], output: Vector) -> None:
        score = (
            -row["validation_accuracy"] if "validation_accuracy" in row else row["validation_loss"]
        )
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


def _run(
    job: Job,
    folder: Folder | None,
    resume: bool,
    checkpoint_every: int | None,
    callbacks: Sequence[Callback],
) -> Run:
    now = begin(job.method, job.start, job.plan)
    history: list[dict[str, Any]] = []
    best = _Best(job.start)
    status = "unfinished"
    if folder is not None:
        found = _open(folder, job.settings, resume)
        if found is not None:
            rounds, tensors, facts = found
            now = now.restored(rounds, tensors)
            job.crew.restore(tensors)
            best.restore(facts["best"], tensors["best"].to(now.x.device))
            history = folder.history()[:rounds]
            status = facts["status"]
        folder.rewrite_history(history)
    saver = _Saver(job, folder, checkpoint_every)
    with _ctrl_c() as stopping:
        while status == "unfinished":
            began = time.perf_counter()
            after, row = play(job.method, job.plan, now, job.crew, _cohort(job, now.round))
            output = job.method.shipped.value(after.x, after.output)
            if not bool(torch.isfinite(after.x).all()):
                status = "diverged"
                log.warning(
                    "Diverged in round %d: the model is no longer finite; the state before it is "
                    "kept. Try a smaller learning rate, or a method that sets its own.",
                    now.round,
                )
                break
            last = after.round == job.plan.rounds
            if last or after.round % job.eval_every == 0:
                if job.test is not None:
                    row |= job.test.measure(output)
                if job.validation is not None:
                    row |= job.validation.measure(output, "validation")
                    best.see(row, output)
            now = after
            row["seconds"] = time.perf_counter() - began
            history.append(row)
            if folder is not None:
                folder.append(row)
            for callback in callbacks:
                callback(Event(row["round"], now.x, output, row))
            if last:
                status = "finished"
            elif job.patience is not None and best.waited >= job.patience:
                status = "stopped early"
            elif stopping():
                break
            saver.perhaps(now, best, status)
    run = _result(job, folder, now, best, history, status)
    saver.save(now, best, status, run)
    if status == "unfinished":
        where = "" if folder is None else f" Call fit again with out={str(folder.path)!r}."
        raise Interrupted(f"Stopped by Ctrl-C after {now.round} rounds.{where}", run)
    return run


def _cohort(job: Job, t: int) -> torch.Tensor:
    return draw_cohort(job.seed, t, job.plan.clients, job.plan.cohort)


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
    now: Standing,
    best: _Best,
    history: list[dict[str, Any]],
    status: str,
) -> Run:
    output = job.method.shipped.value(now.x, now.output)
    if job.keep_best and best.round >= 0:
        output = best.x
    path = None if folder is None else folder.path
    said = "interrupted" if status == "unfinished" else status
    return Run(now.x, output, history, job.settings, said, path, job.problem)


class _Saver:
    """Writes checkpoints: when due, and at the end."""

    def __init__(self, job: Job, folder: Folder | None, every: int | None) -> None:
        self._job, self._folder, self._every = job, folder, every
        self._written = time.monotonic()

    def perhaps(self, now: Standing, best: _Best, status: str) -> None:
        due = (
            now.round % self._every == 0
            if self._every is not None
            else time.monotonic() - self._written > CHECKPOINT_SECONDS
        )
        if due and status == "unfinished":
            self._write(now, best, status)

    def _write(self, now: Standing, best: _Best, status: str) -> None:
        if self._folder is None:
            return
        shipped = self._job.method.shipped.value(now.x, now.output)
        if self._job.keep_best and best.round >= 0:
            shipped = best.x
        tensors = {**now.tensors(), **self._job.crew.tensors(), "best": best.x, "shipped": shipped}
        self._folder.save(now.round, tensors, {"status": status, "best": best.facts()})
        self._written = time.monotonic()

    def save(self, now: Standing, best: _Best, status: str, run: Run) -> None:
        self._write(now, best, status)
        if self._folder is not None and status != "unfinished":
            run.export(self._folder.path / "model.safetensors")
