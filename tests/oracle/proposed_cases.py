"""The methods of `oracle.proposed` under comparison, as data: arguments are the same on both sides.

A penalty is ("l1", 0.05) and so on, a compressor ("topk", 0.3), in the oracle's words.
"""

from oracle import cases, problems, proposed

# id: (method name, its arguments); absent arguments test the defaults
NAMED = {
    "lod": ("fedproxlod", {}),
    "lod-alone": ("fedproxlod", {"merge": False, "mu_init": 0.3}),
    "lod-server": ("fedproxlod", {"global_loss": "server", "r_rel": 0.1}),
    "lod-server-alone": ("fedproxlod", {"global_loss": "server", "merge": False, "r_rel": 0.1}),
    "lod-far": ("fedproxlod", {"r_rel": 4.0, "mu_init": 0.3}),
    "lod-weights": ("fedproxlod", {"merge_weights": "printed", "r_rel": 0.1}),
    "lod-explicit": ("fedproxlod", {"prox_step": "explicit", "r_rel": 0.05, "mu_init": 0.5}),
    "lod-printed": ("fedproxlod", {"reading": "printed"}),
    "lod-printed-alone": ("fedproxlod", {"reading": "printed", "merge": False}),
    "lod-printed-all": (
        "fedproxlod",
        {
            "reading": "printed",
            "prox_step": "explicit",
            "merge_weights": "printed",
            "global_loss": "server",
            "r_rel": 0.03,
            "mu_init": 0.5,
        },
    ),
    "lod-exact": ("fedproxlod", {"solver": "exact", "r_rel": 0.1}),
    "lod-exact-alone": ("fedproxlod", {"solver": "exact", "merge": False, "r_rel": 0.1}),
    "wlod": ("fedproxwlod", {}),
    "wlod-alone": ("fedproxwlod", {"merge": False, "mu_init": 0.3}),
    "wlod-server": ("fedproxwlod", {"global_loss": "server", "r_rel": 0.1}),
    "wlod-explicit": ("fedproxwlod", {"prox_step": "explicit", "r_rel": 0.05, "mu_init": 0.5}),
    "wlod-weights": ("fedproxwlod", {"merge_weights": "printed", "r_rel": 0.1}),
    "wlod-printed": ("fedproxwlod", {"reading": "printed"}),
    "wlod-printed-alone": ("fedproxwlod", {"reading": "printed", "merge": False}),
    "wlod-exact": ("fedproxwlod", {"solver": "exact", "r_rel": 0.1}),
    "wlod-exact-weights": (
        "fedproxwlod",
        {
            "solver": "exact",
            "merge_weights": "printed",
            "global_loss": "server",
            "r_rel": 0.1,
            "mu_init": 2.0,
        },
    ),
    "wlod-exact-alone": ("fedproxwlod", {"solver": "exact", "merge": False, "r_rel": 0.1}),
    "parfrefl": ("parfrefl", {}),
    "parfrefl-scale": ("parfrefl", {"scale": 0.4}),
    "parfrefl-set": ("parfrefl", {"beta": 0.3, "lr": 0.05, "server_lr": 0.2, "scale": 0.7}),
    "parfrefl-part": ("parfrefl", {"lr": 0.05, "scale": 0.3}),
    "comparfrefl": ("comparfrefl", {"beta": 0.6}),
    "comparfrefl-ratio": ("comparfrefl", {"compressor": ("topk", 0.3), "scale": 0.5}),
    "comparfrefl-set": (
        "comparfrefl",
        {"compressor": ("topk", 0.5), "beta": 0.4, "lr": 0.1, "server_lr": 0.3},
    ),
    "fedcanon": ("fedcanon", {"lr": 0.05}),
    "fedcanon-alpha": ("fedcanon", {"lr": 0.05, "alpha": 0.1}),
    "fedcanon-l1": ("fedcanon", {"lr": 0.05, "penalty": ("l1", 0.3)}),
    "fedcanon-l2": ("fedcanon", {"lr": 0.05, "penalty": ("l2", 0.5)}),
    "fedcanon-elastic": ("fedcanon", {"lr": 0.05, "penalty": ("elastic", 0.3, 0.4)}),
    "fedcanon-mcp": ("fedcanon", {"lr": 0.05, "penalty": ("mcp", 0.3, 3.0), "alpha": 0.25}),
    "fedcanon-scad": ("fedcanon", {"lr": 0.05, "penalty": ("scad", 0.3, 3.7)}),
    "fedcanon2": ("fedcanon2", {"lr": 0.05}),
    "fedcanon2-scad": ("fedcanon2", {"lr": 0.05, "penalty": ("scad", 0.3, 3.7), "alpha": 0.15}),
}

# Defined for everyone in every round.
FULL = {"fedcanon2", "fedcanon2-scad"}

# The package solves to a tolerance, in as many steps as it is given at most.
EXACT = {case for case, (_, settings) in NAMED.items() if settings.get("solver") == "exact"}
ENOUGH = 1000

# Where each is compared: problem, cohort and weights, in turn
_TURNS = (
    ("least_squares", "some-uniform"),
    ("softmax", "some-samples"),
    ("least_squares", "all-samples"),
    ("softmax", "some-uniform"),
)
SETUPS = {case: _TURNS[j % 4] for j, case in enumerate(NAMED)}

# Those run on small batches and on unequal numbers of steps.
SMALL_BATCHES = (
    "lod",
    "lod-server-alone",
    "lod-printed",
    "wlod",
    "wlod-printed-alone",
    "parfrefl",
    "parfrefl-set",
    "comparfrefl-set",
    "fedcanon-l1",
    "fedcanon2-scad",
)

# With weight decay and clipping, and with a schedule where the step is not the method's own.
COMMON = ("lod", "lod-printed-all", "wlod-alone", "parfrefl-set", "fedcanon", "fedcanon-l1")


def held(problem):
    """The server's own sample."""
    if isinstance(problem, problems.Softmax):
        return problems.softmax(seed=8, sizes=(10,))
    return problems.least_squares(seed=8, sizes=(10,))


def setup(case):
    """The problem, the size of the cohort and the weights."""
    kind, name = SETUPS[case]
    problem, (size, weights) = cases.PROBLEMS[kind](), cases.SETUPS[name]
    return problem, problem.clients if case in FULL else size, weights


def run(case, problem, x0, cohorts, steps, **more):
    """The oracle's run of a case."""
    name, settings = NAMED[case]
    if settings.get("global_loss") == "server":
        more["held"] = held(problem)
    return getattr(proposed, name)(problem, x0, cohorts, steps, **settings, **more)
