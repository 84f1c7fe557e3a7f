"""Every public name is there, and says what it is."""

import inspect

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


def public_methods():
    for name, (room, own) in NAMES.items():
        value = getattr(room, own)
        if isinstance(value, type):
            for key, member in vars(value).items():
                kinds = property | staticmethod | classmethod
                if not key.startswith("_") and (callable(member) or isinstance(member, kinds)):
                    yield f"{name}.{key}", getattr(value, key)


@pytest.mark.parametrize(("name", "member"), list(public_methods()))
def test_methods_of_public_classes_have_docstrings(name, member):
    assert inspect.getdoc(member), name


@pytest.mark.parametrize("name", tf.methods.names())
def test_methods_have_one_line_that_says_what_they_are(name):
    line = tf.methods.CATALOGUE[name].summary
    assert line.endswith(".")
    assert 20 < len(line) <= 90
    assert tf.methods.CATALOGUE[name].make.__name__ == name
    assert tf.methods.get(name).name == name
