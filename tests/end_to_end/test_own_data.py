"""The command line with one's own table, files of Python and TOML."""

import json
import pickle
import random
import tomllib

import polars
import pytest
from safetensors.torch import load_file

import tunefree as tf
from helpers import drop_seconds, read_history
from tunefree.core import plugins
from tunefree.methods import CATALOGUE
from tunefree.study.candidates import make_candidate
from tunefree.study.source import CommandStudy
from tunefree.study.tasks import RunTask
from tunefree.training.command import CommandConfig, make_config

pytestmark = pytest.mark.usefixtures("place")
TABLE = ("--target", "diagnosis", "--owner", "hospital")
SMALL = ("--rounds", 2, "--steps", 2, "--batch", 10, "--device", "cpu")

OWN = """
import torch
import tunefree as tf
from beside import WIDTH


class Net(torch.nn.Sequential):
    def __init__(self, shape, classes):
        size = torch.Size(shape).numel()
        layers = [torch.nn.Flatten(), torch.nn.Linear(size, WIDTH), torch.nn.ReLU()]
        super().__init__(*layers, torch.nn.Linear(WIDTH, classes))


made = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def loss(output, target):
    return 2 * torch.nn.functional.cross_entropy(output, target, reduction="none")


def method(*, lr: float = 0.1):
    return tf.methods.get("fedavg", lr=lr)


@tf.methods.register_method("Ours", choose={"lr": (0.01, 0.1)})
def own_registered(*, lr: float = 0.1):
    return tf.methods.get("fedavg", lr=lr)


fixed = tf.methods.get("fedavg", lr=0.3)


def data():
    return tf.load("digits").split(tf.Iid(), clients=3, seed=0)


def rows():
    return tf.load("digits")


number = 3
"""


@pytest.fixture
def patients(place):
    draw = random.Random(0)
    lines = ["age,bmi,smoker,city,hospital,diagnosis"]
    for _ in range(90):
        age, smokes = draw.randint(20, 90), draw.random() < 0.3
        words = [age, round(draw.gauss(25, 4), 1), str(smokes).lower()]
        words += [draw.choice(["Bonn", "Rome"]), draw.choice(["east", "north", "south"])]
        lines.append(",".join(map(str, [*words, "ill" if age > 55 else "healthy"])))
    path = place / "patients.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def own(place, monkeypatch):
    monkeypatch.setattr(plugins, "_OBJECTS", {})
    monkeypatch.setattr(plugins, "_MODULES", {})
    monkeypatch.setattr(CATALOGUE, "_entries", dict(CATALOGUE._entries))
    (place / "lib").mkdir()
    (place / "lib" / "beside.py").write_text("WIDTH = 4\n")
    (place / "lib" / "own.py").write_text(OWN)
    (place / "lib" / "broken.py").write_text("1 / 0\n")
    return "lib/own.py"


@pytest.mark.parametrize("word", ["--csv", "--table", "--parquet"])
def test_a_table(call, place, patients, word):
    file = patients
    if word == "--parquet":
        file = place / "patients.parquet"
        polars.read_csv(patients).write_parquet(file)
    code, out, err = call("run", word, file.name, *TABLE, "--test-size", 0.3, "--out", "a", *SMALL)
    assert (code, "test accuracy" in out) == (0, True), err
    data = json.loads((place / "a" / "settings.json").read_text())["data"]
    assert data["name"] == "patients"
    assert data["classes"] == ["healthy", "ill"]
    assert data["picture"]["clients"] == ["east", "north", "south"]
    assert 60 <= data["samples"] <= 65
    assert [one["name"] for one in data["features"]] == ["age", "bmi", "smoker", "city"]
    model = tf.models.build("mlp", shape=(5,), classes=2)
    run = tf.Run.load("a", model)
    labels = run.predict(polars.read_csv(patients))
    assert set(labels) <= {"healthy", "ill"}
    model.load_state_dict(load_file("a/model.safetensors"))
    assert call("run", "--resume", "a")[0] == 0


def test_the_same_as_from_python(call, place, patients):
    call("run", "--csv", patients.name, *TABLE, "--method", "fedavg", "--out", "a", *SMALL)
    fed = tf.Federation(polars.read_csv(patients), "diagnosis", "hospital", test=0.2)
    model = tf.models.build("mlp", shape=(5,), classes=2, seed=0)
    options = {
        "rounds": 2,
        "steps": 2,
        "batch": 10,
        "device": "cpu",
        "preprocess": tf.Preprocess(scale="standard"),
    }
    run = tf.fit(model, fed, "fedavg", **options)
    assert drop_seconds(read_history(place / "a")) == drop_seconds(run.history)
    assert run.scaling is not None


def test_rows_without_owners_are_split_and_columns_dropped(call, place, patients):
    words = ("--csv", patients.name, "--target", "diagnosis", "--drop", "hospital,city")
    code, _, err = call("run", *words, "--clients", 4, "--split", "iid", "--out", "a", *SMALL)
    assert code == 0, err
    settings = json.loads((place / "a" / "settings.json").read_text())
    assert settings["data"]["clients"] == 4
    assert [one["name"] for one in settings["data"]["features"]] == ["age", "bmi", "smoker"]
    code, _, err = call(
        "run", "--csv", patients.name, *TABLE, "--test-by", "clients", "--out", "b", *SMALL
    )
    assert code == 0, err
    assert json.loads((place / "b" / "settings.json").read_text())["data"]["clients"] == 2


def test_weights_of_rows(call, place, patients):
    words = ("run", "--csv", patients.name, *TABLE, "--method", "fedavg", *SMALL)
    code, _, err = call(*words, "--sample-weight", "age", "--out", "a")
    assert code == 0, err
    frame = polars.read_csv(patients)
    fed = tf.Federation(frame, "diagnosis", "hospital", sample_weight="age", test=0.2)
    assert len(fed.features.names) == 4
    model = tf.models.build("mlp", shape=(4,), classes=2, seed=0)
    options = {
        "rounds": 2,
        "steps": 2,
        "batch": 10,
        "device": "cpu",
        "preprocess": tf.Preprocess(scale="standard"),
    }
    run = tf.fit(model, fed, "fedavg", **options)
    assert drop_seconds(read_history(place / "a")) == drop_seconds(run.history)


def test_numbers_as_targets(call, place, patients):
    words = ("run", "--csv", patients.name, "--owner", "hospital", "--drop", "diagnosis")
    code, out, _ = call(*words, "--target", "age", "--loss", "mse", "--out", "a", *SMALL)
    assert (code, "accuracy" in out) == (0, False)
    tf.Run.load("a", tf.models.build("mlp", shape=(4,), classes=1))  # as for classes
    code, out, _ = call(*words, "--target", "bmi", "--out", "b", *SMALL)
    assert (code, "accuracy" in out) == (0, False)
    words = (*words, "--class-weight", "balanced")
    code, out, _ = call(*words, "--target", "smoker", "--loss", "bce", "--out", "c", *SMALL)
    assert (code, "test accuracy" in out) == (0, True)
    assert json.loads((place / "c" / "settings.json").read_text())["data"]["classes"] == [
        False,
        True,
    ]


BAD = {
    "integers": (
        ("--csv", "patients.csv", "--target", "age"),
        "The target 'age' has ",
    ),
    "text": (
        ("--csv", "patients.csv", "--target", "city", "--loss", "mse"),
        "The loss mse needs numbers, but the target 'city' is text.",
    ),
    "column": (
        ("--csv", "patients.csv", "--target", "diagnoses"),
        "Unknown column of patients.csv (--target) 'diagnoses'. Did you mean 'diagnosis'?",
    ),
    "drop": (
        ("--csv", "patients.csv", "--target", "diagnosis", "--drop", "x"),
        "Unknown column (--drop) 'x'.",
    ),
    "no target": (("--csv", "patients.csv"), "A table needs --target, the name of the column"),
    "no table": (("--owner", "hospital"), "--owner names a column of a table; give --csv or"),
    "two": (
        ("--csv", "patients.csv", "--target", "age", "--data", "mnist"),
        "patients.csv and --data mnist are both data; give one of them.",
    ),
    "no file": (("--csv", "x.csv", "--target", "a"), "No such file or directory: 'x.csv'."),
    "test": (("--test-size", "0.1"), "--test-size 0.1: the data 'digits' has a test set already."),
    "size": (("--test-size", "1.5"), "run(test_size=...) must be a number between 0 and 1"),
    "name": (("--model", "lib/own.py:Nett"), "Unknown name in lib/own.py 'Nett'. Did you mean"),
    "path": (("--model", "no.py:x"), "'no.py:x' names an object of a file, but 'no.py' is no"),
    "broken": (("--loss", "lib/broken.py:x"), "lib/broken.py cannot be run (ZeroDivisionError:"),
    "model": (("--model", "lib/own.py:number"), "lib/own.py:number must be a torch.nn.Module, or"),
    "made": (("--model", "lib/own.py:data"), "lib/own.py:data must return a torch.nn.Module, got"),
    "data": (("--data", "lib/own.py:number"), "lib/own.py:number must be a tf.Dataset or a tf.Fed"),
    "fails": (("--data", "lib/own.py:loss"), "lib/own.py:loss failed (loss() missing 2 required"),
    "split": (("--data", "lib/own.py:data", "--clients", "3"), "is divided among clients already"),
    "method": (("--method", "lib/own.py:number"), "must be a Method, or a function that returns"),
    "config": (("--config", "bad.toml"), "bad.toml is not TOML"),
    "config twice": (("--config", "a.toml", "--config", "a.toml"), "--config may be given once."),
    "config alone": (("--config",), "--config must name a TOML file."),
    "config nested": (("--config", "nested.toml"), "nested.toml cannot name another --config."),
    "config value": (("--config", "date.toml"), "date.toml: rounds must be text, a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(call, place, patients, own, case):
    (place / "bad.toml").write_text("rounds = = 3")
    (place / "nested.toml").write_text('config = "a.toml"')
    (place / "date.toml").write_text("rounds = 2020-01-01")
    words, sentence = BAD[case]
    code, out, err = call("run", *words)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert sentence in err


def test_missing_values_name_the_line(call, patients):
    lines = patients.read_text().splitlines()
    lines[4] = "," + lines[4].partition(",")[2]
    patients.write_text("\n".join(lines))
    code, _, err = call("run", "--csv", patients.name, *TABLE)
    assert code == 2
    assert "The column 'age' has a missing value, in line 5 of patients.csv; fill or drop" in err


def test_own_model_data_loss_and_method(call, place, own):
    words = [f"--{name}" for name in ("model", "data", "loss", "method")]
    given = [f"{own}:{name}" for name in ("Net", "data", "loss", "method")]
    pairs = [word for pair in zip(words, given, strict=True) for word in pair]
    code, _, err = call("run", *pairs[2:], "--set", "lr=0.2", "--model", "mlp", *SMALL)
    assert code == 0, err
    settings = json.loads((place / "runs" / "data-method-1" / "settings.json").read_text())
    assert settings["loss"] == "loss"
    assert settings["method"]["step"]["lr"] == 0.2
    assert settings["data"]["clients"] == 3
    code, _, err = call("run", "--model", f"{own}:made", "--method", f"{own}:fixed", *SMALL)
    assert code == 0, err
    code, _, err = call("run", "--data", f"{own}:rows", "--clients", 5, "--out", "rows", *SMALL)
    assert code == 0, err


def test_an_own_model_starts_from_the_seed(call, place, own, patients):
    for seed, out in ((0, "a"), (0, "b"), (1, "c")):
        words = ("--csv", patients.name, *TABLE, "--model", f"{own}:Net", "--seed", seed)
        assert call("run", *words, "--out", out, *SMALL)[0] == 0
    starts = [json.loads((place / out / "settings.json").read_text())["start"] for out in "abc"]
    assert starts[0] == starts[1] != starts[2]


def test_a_folder_cannot_name_code(call, place, own):
    call("run", "--model", f"{own}:made", "--out", "a", *SMALL)
    call("run", "--method", f"{own}:fixed", "--out", "b", *SMALL)
    plugins._OBJECTS.clear()  # as in a new process
    CATALOGUE._entries.pop(f"{own}:fixed")
    for folder in "ab":
        code, _, err = call("run", "--resume", folder)
        assert code == 2
        assert "names code in a file, which a command line may do, but not a folder" in err
    before = read_history(place / "a")
    assert call("run", "--config", "a/config.toml", "--out", "a")[0] == 0
    assert read_history(place / "a") == before


@pytest.mark.parametrize("command", ["run", "compare", "tune", "advise"])
def test_every_command_takes_a_table_by_each_name(call, place, patients, command):
    more = {"compare": ("--methods", "auto"), "advise": ("--no-tuning",)}.get(command, ())
    dry = () if command == "advise" else ("--dry-run",)
    said = []
    for name in ("csv", "parquet", "table"):
        (place / "it.toml").write_text(f'{name} = "{patients.name}"\ntarget = "diagnosis"\n')
        code, out, err = call(command, f"--{name}", patients.name, *TABLE, *more, *dry)
        assert code == 0, err
        said.append(out)
        code, out, err = call(command, "--config", "it.toml", *TABLE[2:], *more, *dry)
        assert (code, out) == (0, said[0]), err
        code, _, err = call(command, "--config", "it.toml", "--table", "other.csv", *more, *dry)
        assert (code, err) == (2, "Error: No such file or directory: 'other.csv'.\n")
    assert said[0] == said[1] == said[2]


def test_studies_of_own_methods_and_tables(call, place, own, patients):
    words = ("--csv", patients.name, *TABLE, "--model", f"{own}:Net", *SMALL)
    methods = f"auto,{own}:method:lr=0.3,{own}:own_registered:tuned"
    code, out, err = call(
        "compare", *words, "--methods", methods, "--seeds", 1, "--out", "s", "--json"
    )
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [row["label"] for row in rows] == methods.split(",")
    kept = tomllib.loads((place / "s" / "config.toml").read_text())
    assert (kept["methods"], kept["table"], kept["target"]) == (
        methods,
        "patients.csv",
        "diagnosis",
    )
    assert call("compare", "--config", "s/config.toml", "--out", "s")[0] == 0
    code, out, err = call("tune", *words, "--method", f"{own}:own_registered", "--out", "t")
    assert code == 0, err
    assert "It took 2 runs" in out
    assert tomllib.loads((place / "t" / "config.toml").read_text())["method"].endswith("registered")
    code, out, _ = call("advise", *words[:6], "--model", f"{own}:Net", "--no-tuning")
    assert code == 0
    assert "tunefree run --table patients.csv --target diagnosis --owner hospital" in out


def test_another_process_runs_the_files_too(own):
    name = f"{own}:method"
    command = CommandConfig(data=f"{own}:data", options={"method": name, "rounds": 1})
    command.load_user_objects()
    study = CommandStudy(config=command).with_candidates([make_candidate(name, ("lr=0.2",))])
    sent = pickle.dumps(study)
    plugins._OBJECTS.clear()
    del CATALOGUE._entries[name]
    found = pickle.loads(sent).inputs(RunTask(name, 0, 1))
    assert found.federation.clients == 3
    assert found.config.method.step.lr == 0.2


def test_a_goal_is_not_a_target(call):
    words = ("compare", "--methods", "fedavg", "--seeds", 1, "--clients", 3, *SMALL)
    code, said, _ = call(*words, "--goal", 0.05)
    assert code == 0
    assert "until test accuracy 0.0500" in said
    code, _, err = call(*words, "--target", 0.05)
    assert code == 2
    assert "--target names a column of a table; give --csv or --parquet as well." in err


def test_what_a_run_follows(call, place):
    words = ("--clients", 3, "--rounds", 2, "--steps", 1, "--validation", 0.2, "--keep-best")
    assert call("run", *words, "--monitor", "loss", "--mode", "min", "--out", "a")[0] == 0
    code, _, err = call("run", "--config", "a/config.toml", "--out", "b")
    assert code == 0, err
    for folder in ("a", "b"):
        settings = json.loads((place / folder / "settings.json").read_text())
        assert (settings["monitor"], settings["mode"]) == ("loss", "min")


def test_defaults_are_those_of_python():
    said = make_config(CommandConfig()).record()
    assert said == tf.RunConfig(method=tf.methods.get("auto")).record()


def test_everyone_takes_part_by_default(call):
    assert json.loads(call("run", "--clients", 6, "--dry-run", "--json")[1])["cohort"] == 6
    words = ("run", "--clients", 6, "--cohort", 2, "--dry-run", "--json")
    assert json.loads(call(*words)[1])["cohort"] == 2
