"""What a run decides by itself before round 0: its method, validation data and scaling."""

import logging
import math
from dataclasses import replace
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from .. import methods
from ..core.errors import ArgumentError, cannot_use, check_argument
from ..data.federation import count_held
from ..methods import Method
from ..privacy import Privacy
from ..simulation.moments import is_too_noisy
from .client_data import ClientData
from .config import RunConfig
from .run import Run

log = logging.getLogger("tunefree")

C = TypeVar("C", bound=RunConfig)
DEEP = 4  # weight matrices from which on a network is deep
MAX_HOLD_OUT = 0.2  # share of a client's samples that `auto` holds back, at most
FEWEST, ENOUGH, MOST = 50, 2000, 10_000  # samples held back: too few below, enough, too many above
PATIENCE = 20  # evaluations without a gain that end `auto`, at least
PATIENCE_SHARE = 0.2  # and of all evaluations
TOLERANCE = 1.0  # standard errors that the loss on a table may be above the lowest one
TABLE_SCHEDULE = "linear:0"  # of the clients' steps of `auto` on tables
MAX_SPREAD = 100.0  # of the columns' ranges; beyond it a run that does not standardise warns


def decide_method(config: RunConfig, layers: int = 0) -> Method:
    """Return the method in its form for this network, with decided weights.

    `layers` are the model's weight matrices, as `count_layers` returns them.
    """
    method = config.method
    if isinstance(method, str):
        method = methods.get(method, **config.method_settings)
    check_argument("fit", "method", method, "a name or a Method", isinstance(method, Method))
    if method.name == "auto" and isinstance(config.aggregate, Privacy):
        why = "asks clients more than once in a round, which a privacy budget does not allow"
        use = "use method='deltasgd', which has no learning rate either, or 'fedavg'"
        raise ArgumentError(
            f"fit(method='auto', aggregate=Privacy(...)) cannot be: auto {why}; {use}."
        )
    if method.weights == "samples" and isinstance(config.aggregate, Privacy):
        why = "weights by samples are private data, and let one client count for many"
        raise ArgumentError(f"Privacy(...) needs weights='uniform', got 'samples': {why}.")
    if layers >= DEEP and config.has_plain_mean and method.wire.lossless:
        method = method.for_deep_networks()
    if method.weights is None:
        method = replace(method, weights="samples" if config.has_plain_mean else "uniform")
    return method


def adapt_to_table(method: Method, samples: float) -> Method:
    """Return `auto` for a table with standardised columns.

    The weight decay is 1 over the samples, as in scikit-learn's logistic regression. Steps decay to
    zero, so that the clients' different minima do not pull the last models apart; a step that has
    its own decay, as in a race, keeps it.
    """
    schedule = method.schedule if method.step.sets_lr else TABLE_SCHEDULE
    return replace(method, weight_decay=1 / samples, schedule=schedule)


def count_layers(model: torch.nn.Module) -> int:
    """Return the number of trained weight matrices, convolutions included.

    An embedding counts as `DEEP`: on text, the race was ahead by five points (docs/auto.md).
    """
    if not isinstance(model, torch.nn.Module):  # is refused later
        return 0
    embeddings = [m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    extra = (DEEP - 1) * sum(w.requires_grad for w in embeddings)
    return extra + sum(p.requires_grad and p.ndim > 1 for p in model.parameters())


def decide_validation(config: C, sizes: Tensor | None) -> C:
    """Return the configuration with decided validation data: a fraction, or None for none.

    `sizes` are the samples of each client; None if they cannot be held out.
    """
    found = config.evaluate
    if found.validation is None and config.sets_itself and config.has_plain_mean:
        share = None if sizes is None else choose_share(sizes)
        if share is not None:
            evaluations = -(-config.rounds // config.eval_every)
            patience = max(PATIENCE, math.ceil(PATIENCE_SHARE * evaluations))
            found = replace(
                found,
                validation=share,
                patience=patience,
                keep_best=True,
                monitor="calibrated_loss",
            )
    return replace(config, evaluate=replace(found, validation=found.validation or None))


def decide_monitor(config: C, is_decided: bool, has_logits: bool, is_table: bool) -> C:
    """Return the configuration with the loss that `auto` follows, and whether it may stop early.

    Networks become overconfident while they still learn to tell classes apart: the loss rises, the
    accuracy too, and the loss at the best temperature falls. On small tables the plain loss chose
    the better probabilities. But there it rises from an early round on until the steps are short,
    and the classes are told apart best at the end: the run is not stopped, and the latest model is
    shipped that is not clearly worse than the best.

    Args:
        is_decided: Whether the validation data were decided by the run, not given.
        has_logits: Whether the outputs are scores of classes.
        is_table: Whether the data are a table with standardised columns.
    """
    if not (is_decided and config.evaluate.validation) or (has_logits and not is_table):
        return config
    found = replace(config.evaluate, monitor="loss")
    if has_logits:
        found = replace(found, patience=None, tolerance=TOLERANCE)
    return replace(config, evaluate=found)


def choose_share(sizes: Tensor) -> float | None:
    """Return the fraction that every client with these samples holds back; None for nothing.

    >>> choose_share(torch.tensor([300, 700])), choose_share(torch.tensor([6000] * 10))
    (0.2, 0.0333)
    >>> choose_share(torch.tensor([10] * 6000)), choose_share(torch.tensor([120, 80]))
    (0.0666, None)
    """
    share = round(min(MAX_HOLD_OUT, ENOUGH / int(sizes.sum())), 4)
    while share < MAX_HOLD_OUT and int(count_held(sizes, share).sum()) < ENOUGH / 2:
        share = min(MAX_HOLD_OUT, 2 * share)  # clients so small that they would give nothing
    return share if FEWEST <= int(count_held(sizes, share).sum()) <= MOST else None


def decide_scaling(config: RunConfig, data: ClientData, earlier: Run | None) -> bool:
    """Return whether inputs are standardised; refuse what cannot be, warn of unequal columns.

    `earlier` is the run that this one starts from, if it does.
    """
    given, private, columns = config.preprocess.scale, config.aggregate, data.columns
    is_noisy = isinstance(private, Privacy) and is_too_noisy(private, columns + data.targets)
    found = None if earlier is None else earlier.scaling
    if found is not None and (given is None or found.shape != (2, columns)):
        why = f"a run whose inputs are standardised by the scales of its {found.shape[1]} columns"
        rest = "leave scale out" if given is None else "give a table with the same columns"
        raise ArgumentError(f"fit(model=...) is {why}; {rest}.")
    if given == "standard":
        if not columns:
            why = "needs a table: one tensor of floats, a row per sample and a column per feature"
            raise ArgumentError(f"Preprocess(scale='standard') {why}; leave scale out.")
        if is_noisy:
            why = f"the noise is too large for {columns} columns of so few clients"
            use = "divide the columns by ranges that are publicly known"
            raise cannot_use("Preprocess(scale='standard')", "tf.privacy.Privacy", f"{why}; {use}")
        if earlier is not None and found is None:
            why = "is a run whose inputs are not standardised, so its parameters do not fit"
            raise ArgumentError(f"fit(model=...) {why} Preprocess(scale='standard'); leave it out.")
    is_automatic = given == "auto" and config.sets_itself and earlier is None and not is_noisy
    if found is not None or given == "standard" or (is_automatic and columns):
        return True
    if given is not None and data.spread >= MAX_SPREAD:
        use = "fit(preprocess=tf.Preprocess(scale='standard')) standardises them"
        if is_noisy:
            use = "the budget's noise is too large to learn them, so divide by public ranges"
        _warn_of_spread(data.spread, use)
    return False


@cache
def _warn_of_spread(spread: float, use: str) -> None:
    """Log that columns differ in scale; once in a process, since studies have many runs."""
    said = (
        "The columns of the inputs differ in scale by a factor of %.0e: %s; scale=None keeps them."
    )
    log.warning(said, spread, use)
