"""`tunefree methods` and `tunefree datasets`."""

import json
import re

import pytest

import tunefree as tf

pytestmark = pytest.mark.usefixtures("place")


def test_methods(call):
    code, out, _ = call("methods", "--json")
    listed = json.loads(out)
    assert code == 0
    assert [row["name"] for row in listed] == tf.methods.names()
    for row in listed:
        facts = {"up", "down", "before", "client", "server", "paper", "choose", "everyone"}
        assert row.keys() == {"name", "settings", "summary"} | facts
        assert set(row["choose"]) <= row["settings"].keys()
        assert row["settings"] == {
            k: p.default for k, p in tf.methods.settings(row["name"]).items()
        }
        assert row["summary"].endswith(".")
    code, out, _ = call("methods")
    assert code == 0
    for name in tf.methods.names():
        assert re.search(rf"^{name} ", out, re.M)
    assert re.search(r"^scaffold +Karimireddy (2020)? +lr +2d +2d +d +d +any", out, re.M)
    assert re.search(r"^fedproxwlod +FedProxLoD +nothing ", out, re.M)
    assert re.search(r"^scaffnew .* all", out, re.M)
    code, out, _ = call("methods", "fedcanon")
    assert code == 0
    assert re.search(r"^penalty +None", out, re.M)


def test_datasets(call, place):
    code, out, _ = call("datasets", "--json", "--data-dir", place)
    listed = json.loads(out)
    assert code == 0
    assert [row["name"] for row in listed] == sorted(tf.data.names())
    assert {"name", "rows", "classes", "owners", "size", "licence", "found"} <= listed[0].keys()
    assert all(row["licence"] for row in listed)
    code, out, _ = call("datasets")
    assert code == 0
    assert re.search(r"^digits +1,438 \+ 359 +10", out, re.M)
