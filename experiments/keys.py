"""The keys that a specification may have, and what they are."""

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
FIT = (
    "rounds",
    "cohort",
    "steps",
    "epochs",
    "batch",
    "loss",
    "dtype",
    "precision",
    "eval_every",
    "validation",
    "patience",
    "keep_best",
    "per_client",
    "heterogeneity",
    "augment",
    "engine",
    "compile",
    "chunk",
    "checkpoint_every",
)
VECTOR = ("size", "shape", "classes")  # of kind "prox-cost": a vector as long as a network
WORDS = (*DATA, *FIT, *VECTOR)
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
