"""The named methods under comparison, as data: argument names are the same on both sides."""

from oracle import methods, problems

PROBLEMS = {"least_squares": problems.least_squares, "softmax": problems.softmax}

# (cohort size, weights); the problems have 7 clients of unequal size
SETUPS = {
    "some-uniform": (3, "uniform"),
    "all-samples": (7, "samples"),
    "some-samples": (4, "samples"),
}

# id: (method name, its arguments); absent arguments test the defaults
NAMED = {
    "fedavg": ("fedavg", {"lr": 0.05}),
    "fedavg-server_lr": ("fedavg", {"lr": 0.1, "server_lr": 0.7}),
    "fedavgm": ("fedavgm", {"lr": 0.03}),
    "fedavgm-both": ("fedavgm", {"lr": 0.05, "server_lr": 0.6, "momentum": 0.5}),
    "fedprox": ("fedprox", {"lr": 0.05, "mu": 0.8}),
    "scaffold-II": ("scaffold", {"lr": 0.05, "option": "II"}),
    "scaffold-I": ("scaffold", {"lr": 0.05, "option": "I", "server_lr": 0.8}),
    "fedexp": ("fedexp", {"lr": 0.05}),
    "fedexp-eps": ("fedexp", {"lr": 0.02, "eps": 1e-6}),
    "fedexp-decay": ("fedexp", {"lr": 0.05, "eps": 0.1, "eps_decay": 0.5}),
    "fedexpsls-decay": ("fedexpsls", {"max_lr": 0.3, "eps": 0.1, "eps_decay": 0.5}),
    "fedexp-cap": ("fedexp", {"lr": 0.05, "eps": 0.0, "max_server_step": 1.2}),
    "fedexpm": ("fedexpm", {"lr": 0.05}),
    "fedexpm-both": ("fedexpm", {"lr": 0.05, "eps": 1e-2, "momentum": 0.5}),
    "fedsls": ("fedsls", {}),
    "fedsls-reset": ("fedsls", {"reset": "reset", "max_lr": 2.0, "c": 0.3, "backtrack": 0.7}),
    "fedsls-keep": ("fedsls", {"reset": "keep", "server_lr": 0.9}),
    "fedsls-growth": ("fedsls", {"reset": "grow", "growth": 1.3, "max_lr": 0.5}),
    "fedsls-fallback": ("fedsls", {"max_lr": 1.5, "max_backtracks": 6}),
    "fedsls-untested": ("fedsls", {"max_lr": 0.07, "max_backtracks": 0}),
    "fedexpsls": ("fedexpsls", {}),
    "fedexpsls-cap": ("fedexpsls", {"eps": 1e-5, "max_server_step": 1.5, "reset": "reset"}),
    "fedduadagrad": ("fedduadagrad", {"lr": 0.05}),
    "fedduadagrad-eps": ("fedduadagrad", {"lr": 0.05, "eps": 1e-4, "eps_g": 0.1}),
    "fedduadam": ("fedduadam", {"lr": 0.05}),
    "fedduadam-all": (
        "fedduadam",
        {"lr": 0.05, "beta1": 0.5, "beta2": 0.8, "eps": 1e-4, "eps_g": 0.02},
    ),
    "feddog": ("feddog", {}),
    "feddog-r": ("feddog", {"r_rel": 0.1}),
    "feddowg": ("feddowg", {}),
    "feddowg-r": ("feddowg", {"r_rel": 0.1}),
    "auto": ("auto", {}),
    "feddowgdua": ("feddowgdua", {}),
    "fedrace": ("fedrace", {}),
}

ROUNDS, STEPS = 6, 4


def oracle(name):
    return getattr(methods, name)
