"""The keys that a specification may have."""

from tunefree.training.config import OPTIONS

DATA = (
    "data",
    "data_args",
    "redraw",
    "standardise",
    "rows",
    "test_rows",
    "test",
    "held",
    "split",
    "clients",
    "model",
    "model_args",
    "start",
    "solution",
    "features",
)
OPTION_OF = {"engine": "backend"}  # options of a run that specifications call otherwise
_CHOSEN = {"method", "seed", "device", "metrics", "backend"}  # not by these keys
RUN_OPTIONS = (*(o.name for _, o in OPTIONS if o.name not in _CHOSEN), *OPTION_OF)
VECTOR = ("size", "shape", "classes")  # of kind "prox-cost": a vector as long as a network
WORDS = (*DATA, *RUN_OPTIONS, "checkpoint_every", "moves", *VECTOR)
STUDY = ("seeds", "tune_rounds", "tune_by", "minutes", "says", "set")
SCALES = ("small", "paper")
KINDS = ("runs", "toy", "prox-cost", "peak-memory")
TUNE_BY = ("test", "validation", "train")
TOP = (
    "title",
    "kind",
    "alone",
    "measure",
    "higher",
    "show",
    "curves",
    "x",
    "assume",
    "sources",
    "common",
    "scale",
    "task",
    "method",
    "sweep",
    "claim",
)
TASK = ("name", "says", "skip", "scales", "set", *WORDS)
METHOD = ("name", "method", "penalty", "set", "grid", "tasks", "scales", "says", "skip", *WORDS)
SWEEP = ("methods", "setting", "values", "tasks", "scales", "says")
CLAIM = (
    "says",
    "task",
    "better",
    "than",
    "by",
    "margin",
    "within",
    "factor",
    "higher",
    "measure",
    "scales",
)
COUNTS = ("rounds", "steps", "epochs", "clients", "eval_every", "seeds", "tune_rounds", "rows")
EXPECTED = ("note", "percent")
