"""Compressed, composite and primal-dual methods under comparison, as data.

Arguments are named as in the package, except that penalties and compressors are tuples
(see `oracle.penalties`).
"""

from oracle import composite

L1, L2, ELASTIC = ("l1", 0.05), ("l2", 0.4), ("elastic", 0.1, 0.3)
MCP, SCAD = ("mcp", 0.25, 3.0), ("scad", 0.2, 3.7)

# id: (method name, its arguments); absent arguments test the defaults
NAMED = {
    "scafcom": ("scafcom", {}),
    "scafcom-all": (
        "scafcom",
        {"lr": 0.05, "server_lr": 0.7, "beta": 0.4, "compressor": ("topk", 0.3)},
    ),
    "scafcom-uncompressed": ("scafcom", {"lr": 0.04, "beta": 1.0, "compressor": ("topk", 1.0)}),
    "fedefsgd": ("fedefsgd", {"lr": 0.05}),
    "fedefsgd-all": ("fedefsgd", {"lr": 0.05, "server_lr": 0.8, "compressor": ("topk", 0.5)}),
    "fedefams": ("fedefams", {}),
    "fedefams-all": (
        "fedefams",
        {
            "lr": 0.05,
            "server_lr": 0.1,
            "beta1": 0.5,
            "beta2": 0.7,
            "eps": 1e-3,
            "compressor": ("topk", 0.5),
        },
    ),
    "localsgdc": ("localsgdc", {"lr": 0.05}),
    "localsgdc-all": ("localsgdc", {"lr": 0.03, "compressor": ("topk", 0.5)}),
    "scaffnew": ("scaffnew", {"lr": 0.05}),
    "scaffnew-p": ("scaffnew", {"lr": 0.03, "p": 0.5}),
    "fedmid": ("fedmid", {}),
    "fedmid-l1": ("fedmid", {"lr": 0.05, "penalty": L1}),
    "fedmid-l2": ("fedmid", {"lr": 0.05, "server_lr": 0.7, "penalty": L2}),
    "fedmid-elastic": ("fedmid", {"lr": 0.05, "server_lr": 1.2, "penalty": ELASTIC}),
    "fedmid-mcp": ("fedmid", {"lr": 0.05, "penalty": MCP}),
    "fedmid-scad": ("fedmid", {"lr": 0.05, "server_lr": 0.8, "penalty": SCAD}),
    "fedda": ("fedda", {}),
    "fedda-l1": ("fedda", {"lr": 0.05, "penalty": L1}),
    "fedda-elastic": ("fedda", {"lr": 0.05, "server_lr": 0.7, "penalty": ELASTIC}),
    "fedda-mcp": ("fedda", {"lr": 0.05, "server_lr": 1.2, "penalty": MCP}),
    "fastfedda": ("fastfedda", {}),
    "fastfedda-l1": ("fastfedda", {"lr": 0.05, "mu": 0.5, "penalty": L1}),
    "fastfedda-scad": ("fastfedda", {"lr": 0.05, "mu": 2.0, "penalty": SCAD}),
    "za1": ("za1", {}),
    "za1-l1": ("za1", {"lr": 0.05, "penalty": L1}),
    "za1-elastic": ("za1", {"lr": 0.05, "server_lr": 0.7, "penalty": ELASTIC}),
    "za1-scad": ("za1", {"lr": 0.05, "server_lr": 1.2, "penalty": SCAD}),
    "feddr": ("feddr", {}),
    "feddr-l1": ("feddr", {"lr": 0.05, "mu": 2.0, "relax": 1.3, "penalty": L1}),
    "feddr-mcp": ("feddr", {"lr": 0.05, "mu": 0.6, "penalty": MCP}),
    "feddr-exact": ("feddr", {"mu": 1.5, "penalty": L1, "solver": "exact"}),
    "fedadmm": ("fedadmm", {}),
    "fedadmm-elastic": ("fedadmm", {"lr": 0.05, "mu": 2.0, "penalty": ELASTIC}),
    "fedadmm-exact": ("fedadmm", {"mu": 0.7, "penalty": L2, "solver": "exact"}),
    "fedpd": ("fedpd", {}),
    "fedpd-skip": ("fedpd", {"lr": 0.05, "mu": 2.0, "skip": 0.5}),
    "fedpd-exact": ("fedpd", {"mu": 2.0, "solver": "exact"}),
    "feddyn": ("feddyn", {}),
    "feddyn-mu": ("feddyn", {"lr": 0.05, "mu": 0.5}),
    "feddyn-exact": ("feddyn", {"mu": 2.0, "solver": "exact"}),
    "feddc": ("feddc", {"lr": 0.05}),
    "feddc-mu": ("feddc", {"lr": 0.05, "mu": 0.5}),
}

# every client must take part in every round
FULL = {
    case for case, (name, _) in NAMED.items() if name in ("localsgdc", "scaffnew", "za1", "fedpd")
}
# the closed form needs a quadratic loss
EXACT = {case for case, (_, settings) in NAMED.items() if settings.get("solver") == "exact"}

# (problem, cohort size where a method does not need everyone, weights)
SETUPS = {
    "some-uniform": ("least_squares", 3, "uniform"),
    "some-samples": ("softmax", 4, "samples"),
}
PAIRS = [
    (setup, case)
    for setup, (kind, _, _) in SETUPS.items()
    for case in NAMED
    if kind == "least_squares" or case not in EXACT
]

# what a shared coin decides, where a method needs one, for comparisons among oracles alone
COINS = {"scaffnew": {"lengths": [3, 1, 5, 4, 2, 6]}, "fedpd": {"solves": [2, 1, 1, 3, 1, 2]}}


def coins(name, settings):
    if name == "scaffnew" or settings.get("skip", 0) > 0:
        return COINS[name]
    return {}


def oracle(name):
    return getattr(composite, name)
