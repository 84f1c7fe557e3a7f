"""A paper of our own, small enough to be reproduced in a test."""

SPEC = """
title = "Accuracy on digits"
show = ["best", "last"]
curves = ["test_accuracy"]
assume = ["Nothing is stated."]
[scale.small]
rounds = 3
seeds = 2
tune_rounds = 2
says = "3 rounds instead of 50."
[scale.paper]
rounds = 50
[[task]]
name = "T1"
data = "digits"
split = "dirichlet:1"
clients = 4
model = "mlp"
model_args = { hidden = [8] }
steps = 3
batch = 16
[task.small]
rows = 300
says = "300 rows."
[[method]]
name = "FedAvg"
method = "fedavg"
grid = { lr = [1e-6, 0.3, 1e12] }
[[method]]
name = "Auto"
method = "auto"
[[claim]]
says = "Auto beats FedAvg"
better = ["Auto"]
than = ["FedAvg"]
by = "last"
"""
EXPECTED = """
[table1]
note = "As printed."
[table1.T1]
FedAvg = { best = 0.9, last = 0.8, last_sd = 0.01 }
"""


def write(folder, spec=SPEC, expected=EXPECTED, what="table1"):
    """Write the paper PX into a folder of experiments, and return the specification's file."""
    home = folder / "PX"
    home.mkdir(parents=True, exist_ok=True)
    (home / "expected.toml").write_text(expected)
    (home / f"{what}.toml").write_text(spec)
    return home / f"{what}.toml"
