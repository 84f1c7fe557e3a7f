"""Options in a file of TOML."""

import json

from helpers import drop_seconds, read_history

CONFIG = """
data = "digits"
clients = 3
rounds = 9
keep-best = false
eval_every = 2
set = ["lr=0.1"]
method = "fedavg"
"""


def test_a_config_and_what_is_typed(call, place):
    (place / "run.toml").write_text(CONFIG)
    code, out, err = call("run", "--config", "run.toml", "--rounds", 2, "--steps", 1, "--out", "a")
    assert code == 0, err
    settings = json.loads((place / "a" / "settings.json").read_text())
    assert (settings["rounds"], settings["eval_every"]) == (2, 2)
    assert settings["method"]["step"]["lr"] == 0.1
    kept = (place / "a" / "config.toml").read_text()
    code, out, _ = call("run", "--config=a/config.toml", "--dry-run")
    assert code == 0
    assert out.endswith("\n\n" + kept + "\n")
    code, out, _ = call("run", "--config", "a/config.toml", "--dry-run", "--json")
    assert json.loads(out)["config"] == settings["command"]
    code, _, err = call("run", "--config", "a/config.toml", "--out", "b")
    assert drop_seconds(read_history(place / "b")) == drop_seconds(read_history(place / "a"))


def test_configs_of_studies(call, place):
    (place / "sweep.toml").write_text(
        'methods = ["fedavg:lr=0.1", "auto"]\nseeds = [0, 4]\nclients = 3\nrounds = 1\n'
    )
    code, out, _ = call("compare", "--config", "sweep.toml", "--dry-run")
    assert code == 0
    assert out.startswith("4 runs of 1 rounds, 3 clients, ")
    assert 'methods = "fedavg:lr=0.1,auto"\nseeds = "0,4"\n' in out
    (place / "tune.toml").write_text(
        'method = "fedavg"\nclients = 3\nrounds = 1\n[grid]\nlr = [0.01, 0.1, 1.0]\n'
    )
    code, out, _ = call("tune", "--config", "tune.toml", "--dry-run")
    assert code == 0
    assert out.startswith("3 runs of 1 rounds, 3 clients, ")
    assert 'grid = ["lr=0.01,0.1,1.0"]\n' in out
