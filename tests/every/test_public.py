"""Every public name is there, and says what it is."""

import functools
import importlib
import inspect
import pkgutil
import types

import pytest

import tunefree as tf

ROOMS = (tf, tf.attacks, tf.clients, tf.data, tf.faults, tf.models, tf.privacy, tf.robust)
ROOMS += (tf.server, tf.sinks, tf.wire)
NAMES = {f"{room.__name__}.{name}": (room, name) for room in ROOMS for name in room.__all__}


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_docstrings(name):
    room, own = NAMES[name]
    value = getattr(room, own)
    if own == "__version__":
        assert isinstance(value, str)
        return
    doc = inspect.getdoc(value) if not isinstance(value, type) else value.__dict__.get("__doc__")
    assert doc
    assert not doc.startswith(f"{own}(")  # what a dataclass without one gets
    assert doc.strip().splitlines()[0].rstrip().endswith((".", ":")), doc.splitlines()[0]


@pytest.mark.parametrize("room", ROOMS)
def test_all_is_sorted_and_without_repetition(room):
    assert list(room.__all__) == sorted(set(room.__all__))


def package_classes():
    """The public classes of all modules of the package, by "module.Class"."""
    found = {}
    for info in pkgutil.walk_packages(tf.__path__, "tunefree."):
        if not info.name.endswith("__main__"):
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                own = isinstance(value, type) and value.__module__ == info.name
                if own and not name.startswith("_"):
                    found[f"{info.name.removeprefix('tunefree.')}.{name}"] = value
    return found


CLASSES = package_classes()
METHODS = types.FunctionType | property | staticmethod | classmethod | functools.cached_property


def undocumented(cls):
    """Public methods and properties without a docstring of their own or of a base class here."""
    bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "tunefree"]
    docs = [
        {name: m.__doc__ for name, m in vars(base).items() if isinstance(m, METHODS)}
        for base in (cls, *bases)
    ]
    public = (name for name in docs[0] if not name.startswith("_"))
    return [name for name in public if not any(own.get(name) for own in docs)]


def test_a_method_without_a_docstring_is_found():
    class Silent(tf.server.Server):
        def step(self, x, mean, state, t, query):
            return x, state, {}

        def added(self):
            return 1

        @property
        def size(self):
            return 1

        @staticmethod
        def make():
            return Silent()

        def documented(self):
            """Return nothing."""

    assert undocumented(Silent) == ["added", "size", "make"]


@pytest.mark.parametrize("name", CLASSES)
def test_methods_of_a_class_have_docstrings(name):
    assert undocumented(CLASSES[name]) == []


@pytest.mark.parametrize("name", tf.methods.names())
def test_methods_have_one_line_that_says_what_they_are(name):
    line = tf.methods.CATALOGUE[name].summary
    assert line.endswith(".")
    assert 20 < len(line) <= 90
    assert tf.methods.CATALOGUE[name].make.__name__ == name
    assert tf.methods.get(name).name == name
