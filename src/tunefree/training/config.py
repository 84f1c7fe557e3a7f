"""The configuration of a run.

`fit`'s keyword arguments, the options of the command line, the settings of a Flower federation and
`settings.json` all derive from the fields of `RunConfig`. To add an option, add a field here (in
`RunConfig` or in one of its groups) and the code that uses it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

import torch
from torch import Tensor

from .. import attacks, faults, robust
from ..attacks import Attack
from ..core.errors import (
    ArgumentError,
    check_argument,
    check_between,
    check_int,
    check_known,
    check_nonnegative,
    check_numbers,
)
from ..core.text import parse_value, read_argument_docs
from ..data.batches import BatchPlan
from ..faults import Faults
from ..methods import Method
from ..models import augment as augmentations
from ..models.augment import CropFlip
from ..models.engine import EngineName
from ..models.problem import Loss, Precision
from ..server.aggregate import Aggregation, weighted_mean

T = TypeVar("T")
Metric = Callable[[Tensor, Tensor], Tensor | float]
MODES: dict[str, Literal["min", "max"]] = {  # what is better
    "loss": "min",
    "calibrated_loss": "min",
    "accuracy": "max",
}


def make_option(
    default: Any,
    *,
    cli: Any = None,
    cli_default: Any = MISSING,
    least: int | None = None,
    recorded: bool = True,
    node: bool = False,
    federated: bool = True,
) -> Any:
    """Return the dataclass field of an option; the Args of its class say what it does.

    Args:
        default: The default value.
        cli: Type of the option on the command line, True for that of the field; None if it has
            none there.
        cli_default: Default on the command line, if it is another.
        least: For integers, the smallest value.
        recorded: Whether `settings.json` holds the option and a resumed run must agree on it.
        node: Whether the nodes of a Flower federation must know it.
        federated: Whether a real federation can have it: False if it takes all data in one process.
    """
    about = {"cli": cli, "least": least, "recorded": recorded, "node": node, "federated": federated}
    about["cli_default"] = default if cli_default is MISSING else cli_default
    return field(default=default, metadata=about)


def get_parsed(value: T | str) -> T:
    """Return an option that may be given as text, which its class has parsed."""
    assert not isinstance(value, str)
    return value


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """How samples are scaled, augmented and weighted for training: `fit(preprocess=...)`.

    Args:
        scale: Standardise the columns of tables (2-D floats) by federated means and deviations:
            "auto" does so for method auto, "standard" for any method, none never does. The exported
            model takes raw inputs.
        augment: "crop-flip" or a `CropFlip`, for images; none by default.
        class_weight: Weights of the classes in training: "balanced" (as many as if all were equally
            frequent), a dict by label, or a text such as ill=3,healthy=1.
    """

    scale: Literal["auto", "standard"] | None = make_option(
        "auto", cli=Literal["auto", "standard", "none"]
    )
    augment: str | CropFlip | None = make_option(None, cli=str, cli_default="none", node=True)
    class_weight: str | Mapping[Any, float] | None = make_option(
        None, cli=str, cli_default="none", federated=False
    )

    def __post_init__(self) -> None:
        _parse_text(self, "scale", lambda text: None if text == "none" else text)
        is_known = self.scale in ("auto", "standard", None)
        check_argument("Preprocess", "scale", self.scale, "'auto', 'standard' or None", is_known)
        _parse_part(self, "augment", augmentations.parse, CropFlip, "a name or a CropFlip")
        _parse_text(self, "class_weight", _parse_class_weight)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """What is measured beside the test set, and what is decided by it: `fit(evaluate=...)`.

    Args:
        validation: Fraction of every client's samples held out for validation, such as 0.1; 0 holds
            out none. By default, method auto holds out some, follows their loss (calibrated for
            classes, unless the data are a table), ships the best model and has a patience in
            proportion to the rounds, or for classes in a table a tolerance of 1; other methods hold
            out none.
        patience: Stop after this many evaluations without a better value of monitor.
        keep_best: Ship the model with the best value of monitor instead of the method's output.
        monitor: Metric on the validation data that patience and keep-best follow: loss, accuracy,
            calibrated_loss (the loss of the outputs divided by their best temperature) or, in
            Python, one of metrics; by default the accuracy where there is one, else the loss.
        mode: Whether the best monitor is the lowest (min) or the highest (max). The loss is lowered
            and the accuracy raised; one of metrics needs a mode.
        tolerance: With keep_best and the monitor loss: ship the latest model whose loss is less
            than this many standard errors above the lowest.
        metrics: Further metrics by name, each f(outputs, targets) over the whole test set, and over
            the whole validation set.
        per_client: Report the worst client's score and the spread over clients.
        heterogeneity: Report how much the clients' gradients differ, at every evaluation: zeta, the
            root mean square of |grad f_i - grad f|, and dissimilarity, the mean of |grad f_i|^2
            over |grad f|^2. Costs a pass over all clients' data.
    """

    validation: float | None = make_option(None, cli=True, federated=False)
    patience: int | None = make_option(None, cli=True, least=1, federated=False)
    keep_best: bool = make_option(False, cli=True, federated=False)
    monitor: str | None = make_option(None, cli=True, federated=False)
    mode: Literal["min", "max"] | None = make_option(None, cli=True, federated=False)
    tolerance: float | None = make_option(None, cli=True, federated=False)
    metrics: Mapping[str, Metric] | None = make_option(None)
    per_client: bool = make_option(False, cli=True, federated=False)
    heterogeneity: bool = make_option(False, cli=True, federated=False)

    def __post_init__(self) -> None:
        _make_plain(self)
        if self.validation is not None and self.validation != 0:
            check_between("Evaluate", "validation", self.validation, 0, 1)
        elif self.patience is not None or self.keep_best or self.monitor is not None:
            why = "choose by validation data; give validation=0.1 or so"
            raise ArgumentError(f"Evaluate(patience=..., keep_best=..., monitor=...) {why}.")
        metrics = self.metrics or {}
        if not isinstance(metrics, Mapping) or not all(callable(m) for m in metrics.values()):
            raise ArgumentError(
                f"Evaluate(metrics=...) must map names to functions, got {metrics!r}."
            )
        if taken := set(MODES) & set(metrics):
            raise ArgumentError(
                f"Evaluate(metrics=...) cannot have the name {taken.pop()!r}, which is reserved."
            )
        self._check_monitor((*MODES, *metrics))
        if self.tolerance is not None:
            check_nonnegative("Evaluate", "tolerance", self.tolerance)
            if not (self.keep_best and self.monitor == "loss"):
                why = "chooses among models by their loss; give keep_best=True, monitor='loss'"
                raise ArgumentError(f"Evaluate(tolerance=...) {why}.")

    def _check_monitor(self, known: tuple[str, ...]) -> None:
        name, mode = self.monitor, self.mode
        if mode is not None:
            check_argument("Evaluate", "mode", mode, "'min' or 'max'", mode in ("min", "max"))
            if name is None:
                why = "is the direction of monitor; give monitor as well"
                raise ArgumentError(f"Evaluate(mode={mode!r}) {why}.")
        if name is None:
            return
        if name not in known:
            names = ", ".join(map(repr, known))
            raise ArgumentError(f"Evaluate(monitor=...) must be one of {names}, got {name!r}.")
        if name not in MODES and mode is None:
            use = "give mode='max' if higher is better, mode='min' if lower is"
            raise ArgumentError(f"Evaluate(monitor={name!r}) is a metric of your own; {use}.")
        if mode is not None and MODES.get(name, mode) != mode:
            use = f"leave mode out, or use mode={MODES[name]!r}"
            raise ArgumentError(f"Evaluate(monitor={name!r}, mode={mode!r}) cannot be; {use}.")

    def resolve_monitor(self, has_accuracy: bool, has_logits: bool) -> dict[str, str | None]:
        """Return what `patience` and `keep_best` follow, and its direction."""
        if not self.validation:
            return {"monitor": None, "mode": None}
        if self.monitor == "calibrated_loss" and not has_logits:
            why = (
                "divides scores of classes by a temperature: it needs the loss cross_entropy or bce"
            )
            raise ArgumentError(f"Evaluate(monitor='calibrated_loss') {why}; use 'loss'.")
        if self.monitor == "accuracy" and not has_accuracy:
            names = ", ".join(map(repr, ("loss", *(self.metrics or {}))))
            why = "needs classes, and this task has none"
            raise ArgumentError(f"Evaluate(monitor='accuracy') {why}; use one of {names}.")
        name = self.monitor or ("accuracy" if has_accuracy else "loss")
        return {"monitor": name, "mode": self.mode or MODES[name]}


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How the simulated clients are computed: `fit(engine=...)`.

    Args:
        backend: "vmap" trains the clients of a chunk in one batched call, "loop" one after the
            other, "auto" takes the faster.
        chunk: Clients trained at once; None takes the whole cohort, fewer where that is faster.
        precision: fp32, tf32 (on a GPU) or bf16 inside the model's matrix products; parameters and
            rules keep the dtype. auto is tf32 on a GPU.
    """

    backend: EngineName = make_option("auto", recorded=False, federated=False)
    chunk: int | None = make_option(None, least=1, recorded=False, federated=False)
    precision: Precision = make_option("auto", cli=True)

    def __post_init__(self) -> None:
        _make_plain(self)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Clients that fail or attack, in a simulation: `fit(scenario=...)`.

    Args:
        faults: How clients fail: a `tf.faults.Faults`, or a text such as
            before=0.1,after=0.1,slow=0.2,stale=0.1,delay=3 or available=24/0.5 (reachable for half
            of every 24 rounds); none by default.
        attack: Hostile clients and their attack: one of `tf.attacks`, or a text: sign-flip:0.2,
            large-norm, gaussian, misreport, label-flip, little-is-enough or inner-product, with a
            fraction of the clients or their ids (0+3+7), and settings such as :scale=10; none by
            default.
    """

    faults: Faults | str | None = make_option(None, cli=str, cli_default="none", federated=False)
    attack: Attack | str | None = make_option(None, cli=str, cli_default="none", federated=False)

    def __post_init__(self) -> None:
        _parse_part(self, "faults", faults.parse, Faults, "a tf.faults.Faults")
        _parse_part(self, "attack", attacks.parse, Attack, "one of tf.attacks")


GROUPS: dict[str, Any] = {
    "preprocess": Preprocess,
    "evaluate": Evaluate,
    "engine": Engine,
    "scenario": Scenario,
}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The options of a run; `fit` takes them as keyword arguments and documents them.

    Args:
        method: Method name (`tunefree methods` lists them), a `tf.Method` or, on the command line,
            FILE.py:NAME of your own; auto needs no learning rate.
        rounds: Communication rounds T, >= 1.
        cohort: Clients per round S; by default, or with 0 on the command line, all clients.
        steps: Local steps K per client and round; 20 unless epochs is given.
        epochs: Passes over each client's data instead of steps.
        batch: Samples per local step; None, or 0 on the command line, is all of a client's data.
        loss: "cross_entropy", "bce" (a logit for each 0/1 target), "mse", "auto" by outputs and
            targets, or a pure function f(output, target) -> loss of each sample (FILE.py:NAME on
            the command line).
        seed: Seed of everything random.
        device: "auto", "cpu", "cuda", ...; "auto" takes a GPU if there is one.
        dtype: Type of the parameters: float32 or float64 of torch.
        compile: Compile the batched step; None decides by the amount of work.
        eval_every: Rounds between evaluations; the last round is always evaluated. With a penalty
            an evaluation includes sparsity and stationarity, which costs a pass over all clients'
            data.
        aggregate: How the server averages uploads: mean, or a rule of `tf.robust` that withstands
            hostile clients: median, trimmed-mean:f=2, geometric-median, krum:f=2, multi-krum:f=2,
            norm-clip or centred-clip, with nnm:f=2+ or bucketing:size=2+ in front where clients
            differ; f may be a fraction such as 0.2. In Python also `tf.privacy.Secure()`
            (experimental, unaudited), which sums them under masks, or a `tf.privacy.Privacy`, which
            clips them and adds noise.
        preprocess: A `tf.Preprocess`: scaled columns, augmented images, weights of classes.
        evaluate: A `tf.Evaluate`: validation data, early stopping, own metrics, scores per client.
        engine: "vmap", "loop" or "auto", or a `tf.Engine` with chunk size and precision.
        scenario: A `tf.Scenario`: clients that fail or attack.
    """

    owner: ClassVar[str] = "fit"  # that takes the options, in errors
    method: str | Method = make_option("auto", cli=str)
    rounds: int = make_option(100, cli=True, least=1, node=True)
    cohort: int | None = make_option(None, cli=True, least=1, node=True)
    steps: int | None = make_option(None, cli=True, least=1, node=True)
    epochs: int | None = make_option(None, cli=True, least=1, node=True)
    batch: int | None = make_option(50, cli=int, least=1, node=True)
    loss: str | Loss = make_option("auto", cli=str, node=True)
    seed: int = make_option(0, cli=True, least=0, node=True)
    device: str | torch.device = make_option("auto", cli=str)
    dtype: torch.dtype = make_option(
        torch.float32, cli=Literal["float32", "float64"], cli_default="float32", node=True
    )
    compile: bool | None = make_option(None, recorded=False, federated=False)
    eval_every: int = make_option(1, cli=True, least=1)
    aggregate: Aggregation | str = make_option(weighted_mean, cli=str, cli_default="mean")
    preprocess: Preprocess = field(default_factory=Preprocess)
    evaluate: Evaluate = field(default_factory=Evaluate)
    engine: EngineName | Engine = field(default_factory=Engine)
    scenario: Scenario = field(default_factory=Scenario)

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Refuse unknown options with an error that says where they are now."""
        check_option_names(cls.owner, options, cls)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        owner = self.owner
        _make_plain(self, owner)
        if isinstance(self.engine, str):
            object.__setattr__(self, "engine", Engine(backend=self.engine))
        for name, kind in GROUPS.items():
            value = getattr(self, name)
            check_argument(owner, name, value, f"a tf.{kind.__name__}", isinstance(value, kind))
        if self.steps is not None and self.epochs is not None:
            given = f"steps={self.steps} and epochs={self.epochs}"
            raise ArgumentError(f"{owner} takes steps or epochs, got {given}.")
        _parse_text(self, "aggregate", robust.parse)
        check_numbers(owner, self)
        if get_parsed(self.engine).backend == "loop" and self.compile:
            why = "only the batched engine is compiled; leave one of them out"
            raise ArgumentError(f"fit(engine='loop', compile=True) cannot be: {why}.")

    @property
    def batch_plan(self) -> BatchPlan:
        """How local work is divided into batches."""
        steps = 20 if self.steps is None and self.epochs is None else self.steps
        return BatchPlan(batch=self.batch, steps=steps, epochs=self.epochs)

    @property
    def method_settings(self) -> Mapping[str, Any]:
        """Settings of a method that is given by name."""
        return {}

    @property
    def has_plain_mean(self) -> bool:
        """Whether the server averages uploads as they are."""
        return self.aggregate is weighted_mean

    @property
    def sets_itself(self) -> bool:
        """Whether the method is the name `auto` alone: scaling and validation are then decided."""
        return self.method == "auto" and not self.method_settings

    def flat(self) -> dict[str, Any]:
        """Return every option by name, those of the groups included."""
        return {
            about.name: getattr(self if group is None else getattr(self, group), about.name)
            for group, about in OPTIONS
        }

    def replace(self, **options: Any) -> Self:
        """Return a copy with other values; options of the groups are given by their own names."""
        own: dict[str, Any] = {}
        groups: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            target = groups.setdefault(GROUP_OF[name], {}) if name in GROUP_OF else own
            target[name] = value
        for group, inside in groups.items():
            base: Any = own.get(group, getattr(self, group))
            if not is_dataclass(base):  # the engine by its backend's name
                base = Engine(backend=base)
            own[group] = replace(base, **inside)
        return replace(self, **own)

    def record(self, *, node: bool = False) -> dict[str, Any]:
        """Return the recorded options as plain data; with `node`, those that nodes must know."""
        kind, values = "node" if node else "recorded", self.flat()
        names = [about.name for _, about in OPTIONS if about.metadata[kind]]
        found = {name: _to_plain(values[name]) for name in names}
        return (
            found | {"augment": augmentations.name_of(get_parsed(self.preprocess.augment))}
            if node
            else found
        )


OPTIONS: list[tuple[str | None, Field[Any]]] = [  # with the names of their groups
    (one.name if one.name in GROUPS else None, about)
    for one in fields(RunConfig)
    for about in (fields(GROUPS[one.name]) if one.name in GROUPS else [one])
]
OPTION_DOCS = {  # what each option does
    name: text
    for kind in (RunConfig, *GROUPS.values())
    for name, text in read_argument_docs(kind.__doc__).items()
}
GROUP_OF = {about.name: group for group, about in OPTIONS if group is not None}


def check_option_names(owner: str, names: Iterable[str], kind: type[RunConfig] = RunConfig) -> None:
    """Refuse keyword arguments that are no options, and say where those are that moved."""
    known = {f.name for f in fields(kind)}
    for name in names:
        if (group := GROUP_OF.get(name)) is not None and name not in known:
            kind = GROUPS[group].__name__
            raise ArgumentError(f"{owner} takes {name} as {group}=tf.{kind}({name}=...).")
        if name == "start":
            use = "give the run, or a module with these parameters, as the model"
            raise ArgumentError(f"{owner} takes no start; {use}.")
        check_known(f"argument of {owner}", name, known)


def _parse_text(config: Any, name: str, parse: Callable[[str], Any]) -> None:
    """Replace an option that was given as text by what the text stands for."""
    value = getattr(config, name)
    if isinstance(value, str):
        object.__setattr__(config, name, parse(value))


def _parse_part(config: Any, name: str, parse: Callable[[str], Any], kind: type, rule: str) -> None:
    """Parse an option if it is text, and check that it is None or of this class."""
    _parse_text(config, name, parse)
    value = getattr(config, name)
    is_known = value is None or isinstance(value, kind)
    check_argument(type(config).__name__, name, value, rule, is_known)


def _parse_class_weight(text: str) -> "str | dict[str, float] | None":
    """Return the weights of classes of a text: none, balanced, or LABEL=WEIGHT,LABEL=WEIGHT."""
    if text in ("none", "balanced"):
        return None if text == "none" else text
    pairs = [part.rpartition("=") for part in text.split(",")]
    rule = "'balanced', or weights such as ill=3,healthy=1"
    check_argument("Preprocess", "class_weight", text, rule, all(label for label, _, _ in pairs))
    return {label.strip(): parse_value("class_weight", value, float) for label, _, value in pairs}


def _make_plain(config: Any, owner: str | None = None) -> None:
    """Check the integer options of a configuration and turn NumPy's integers into plain ones."""
    for one in fields(config):
        least, value = one.metadata.get("least"), getattr(config, one.name)
        is_optional = type(None) in get_args(one.type)
        if least is None or (value is None and is_optional):
            continue
        check_int(owner or type(config).__name__, one.name, value, least)
        object.__setattr__(config, one.name, int(value))


def _to_plain(value: Any) -> Any:
    """Return an option's value as plain data, for records."""
    if value is None or isinstance(value, str | bool | float | Integral):
        return value
    if value is weighted_mean:
        return "mean"
    if isinstance(value, torch.dtype | torch.device):
        return str(value).removeprefix("torch.")
    if isinstance(value, Method):
        return value.describe()
    if isinstance(value, Mapping):
        is_plain = all(isinstance(v, int | float) for v in value.values())
        return {str(k): v for k, v in value.items()} if is_plain else sorted(value)
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    return repr(value)
