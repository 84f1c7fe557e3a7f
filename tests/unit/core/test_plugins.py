"""Entry points of other packages: found late, never in the place of built-in names."""

import sys

import pytest
import torch

import tunefree as tf
from tunefree.core.errors import ArgumentError, DataError
from tunefree.core.plugins import Catalogue


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package with entry points on the path, for one test."""
    before = set(sys.modules)

    def put(name, code, **groups):
        info = tmp_path / name / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (tmp_path / name / f"{name}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"[tunefree.{group}]\n{points}\n" for group, points in groups.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(str(tmp_path / name))

    yield put
    for catalogue in (tf.methods.CATALOGUE, tf.models.nets.NETS, tf.data.catalogue._CATALOGUE):
        for name in [n for n in catalogue.loaded if n.startswith("their")]:
            del catalogue._entries[name]
    for name in set(sys.modules) - before:
        if name.startswith("their"):
            del sys.modules[name]


MINE = """
import tunefree as tf

def theirs(*, lr: float = 0.1):
    '''FedAvg of another package.'''
    return tf.Method(step=tf.clients.Constant(lr))
"""


REGISTERED = """
import tunefree as tf

@tf.methods.register_method("P")
def {0}():
    pass

theirs = {0}
"""


def test_a_function_is_enough(install):
    install("theirpackage", MINE, methods="theirs = theirpackage:theirs")
    assert "theirs" in tf.methods.names()
    assert "theirpackage" not in sys.modules  # listed without being loaded
    method = tf.methods.get("theirs", lr=0.3, weights="samples")
    assert (method.name, method.step) == ("theirs", tf.clients.Constant(0.3))
    entry = tf.methods.CATALOGUE["theirs"]
    assert (entry.summary, entry.package) == ("FedAvg of another package.", "theirpackage")
    assert entry.choose == ()
    with pytest.raises(ArgumentError, match=r"Unknown argument of theirs 'mu'\."):
        tf.methods.get("theirs", mu=1)


def test_a_registered_factory_keeps_its_grid(install):
    code = MINE.replace(
        "def theirs", "@tf.methods.register_method('P', choose={'lr': (1.0,)})\ndef theirs"
    )
    install("theirpackage", code, methods="theirs = theirpackage:theirs")
    assert tf.methods.CATALOGUE["theirs"].grid == {"lr": (1.0,)}
    assert tf.methods.names().count("theirs") == 1


def test_built_in_names_stay(install):
    install("theirpackage", MINE, methods="fedavg = theirpackage:theirs")
    assert tf.methods.get("fedavg").server == tf.server.Average()
    assert tf.methods.CATALOGUE["fedavg"].package is None
    assert tf.methods.names().count("fedavg") == 1
    assert "theirpackage" not in sys.modules


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "import nothing_of_this_name",
            "Cannot load the method 'theirs' of the package theirpackage "
            "(ModuleNotFoundError: No module named 'nothing_of_this_name').",
        ),
        (
            "other = 1",
            "Cannot load the method 'theirs' of the package theirpackage "
            "(AttributeError: module 'theirpackage' has no attribute 'theirs').",
        ),
        (
            "theirs = 1",
            "Cannot load the method 'theirs' of the package theirpackage "
            "(it must be a function that returns a Method, got 1).",
        ),
        (
            REGISTERED.format("fedavg"),
            "Cannot load the method 'theirs' of the package theirpackage "
            "(The method name 'fedavg' is taken; choose another).",
        ),
        (
            REGISTERED.format("their2"),
            "Cannot load the method 'theirs' of the package theirpackage "
            "(its entry point must be called 'their2', like its factory).",
        ),
        (
            "def theirs(): return 1",
            "The method 'theirs' of theirpackage must return a Method, got 1.",
        ),
        (
            "def theirs(): return 1 / 0",
            "The method 'theirs' of theirpackage failed (division by zero).",
        ),
    ],
)
def test_a_broken_method_is_one_sentence(install, code, sentence):
    install("theirpackage", code, methods="theirs = theirpackage:theirs")
    with pytest.raises(ArgumentError) as error:
        tf.methods.get("theirs")
    assert str(error.value) == sentence
    assert "fedavg" in tf.methods.names()


def test_two_packages_with_one_name(install):
    install("theirone", MINE, methods="theirs = theirone:theirs")
    install("theirtwo", MINE, methods="theirs = theirtwo:theirs")
    with pytest.raises(ArgumentError) as error:
        tf.methods.get("theirs")
    assert str(error.value) == (
        "The method 'theirs' is offered more than once, by theirone, theirtwo; "
        "uninstall all but one."
    )


DATA = """
import torch
import tunefree as tf

def coins(folder=None, *, rows: int = 6):
    return tf.Dataset("coins", torch.zeros(rows, 2), torch.zeros(rows).long(), note=str(folder))

def wrong():
    return 3

class Tiny(torch.nn.Linear):
    def __init__(self, shape, classes, bias=True):
        super().__init__(shape[0], classes, bias)

def fails(shape, classes):
    raise KeyError("shape")
"""


def test_datasets(install):
    points = (
        "their-coins = theirdata:coins\ntheir-wrong = theirdata:wrong\ntheir-lost = theirdata:no"
    )
    install("theirdata", DATA, datasets=points)
    found = tf.load("their-coins", "somewhere", rows=4)
    assert (found.samples, found.note) == (4, "somewhere")
    with pytest.raises(ArgumentError, match="Unknown option of dataset 'their-coins' 'row'"):
        tf.load("their-coins", row=4)
    with pytest.raises(DataError, match=r"^The dataset 'their-wrong' of theirdata must return a"):
        tf.load("their-wrong")
    table = {row["name"]: row["found"] for row in tf.data.describe()}
    assert table["their-coins"] == "in the package theirdata"
    assert table["their-lost"].startswith("Cannot load the dataset 'their-lost' of the package")
    assert table["digits"] == "in the package"


def test_networks(install):
    points = "their-tiny = theirdata:Tiny\ntheir-fails = theirdata:fails"
    install("theirdata", DATA, models=points)
    assert "their-tiny" in tf.models.names()
    net = tf.models.build("their-tiny", shape=(3,), classes=2, seed=1, bias=False)
    again = tf.models.build("their-tiny", shape=(3,), classes=2, seed=1, bias=False)
    assert torch.equal(net.weight, again.weight)
    with pytest.raises(ArgumentError, match=r"^The model 'their-fails' of another package failed"):
        tf.models.build("their-fails", shape=(3,), classes=2)


def test_entry_points_are_read_late(monkeypatch):
    def refuse(*args):
        raise AssertionError("entry points were read")

    monkeypatch.setattr(Catalogue, "_points", refuse)
    assert tf.methods.get("fedavg").name == "fedavg"
    assert tf.models.build("linear", shape=(3,), classes=2)
    assert tf.load("toy").samples == 2


def test_register_method_checks_what_it_is_given():
    with pytest.raises(ArgumentError, match=r"Unknown setting of theirs 'mu'. Known: lr\."):

        @tf.methods.register_method("P", choose={"mu": (1.0,)})
        def theirs(*, lr=0.1):
            pass

    with pytest.raises(ArgumentError, match=r"Unknown family 'servers'\. Did you mean 'server'"):

        @tf.methods.register_method("P", family="servers")
        def theirs(*, lr=0.1):
            pass

    assert "theirs" not in tf.methods.names()
