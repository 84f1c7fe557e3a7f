"""The page: one file, nothing from elsewhere, nothing of a run becomes markup."""

import base64
import hashlib
import json
from html.parser import HTMLParser

import numpy as np
import pytest

import tunefree as tf
from tunefree.core.errors import ArgumentError
from tunefree.report.page import write

from .runs import HOSTILE, row, run, settings

VOID = {"meta", "link", "br", "input", "img"}


class Page(HTMLParser):
    """Elements with their attributes and text; every tag is closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])
        if tag not in VOID:
            self.open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open:
            self.open[-1][2] += data

    def all(self, tag):
        return [(attrs, text) for t, attrs, text in self.elements if t == tag]

    @property
    def data(self):
        (text,) = [text for attrs, text in self.all("script") if attrs.get("type")]
        return json.loads(text)


@pytest.fixture
def made(tmp_path):
    def make(groups, **more):
        return Page(write(groups, tmp_path / "page.html", **more).read_text())

    return make


def test_the_data_are_inside(made):
    page = made({"a": [run(seed=0), run(seed=1)], "b": [run("scaffold")]}, title="Mine")
    assert [g["label"] for g in page.data["groups"]] == ["a", "b"]
    assert page.data["groups"][0]["curves"]["test_accuracy"]["at"] == [1, 2, 3]
    assert page.all("title") == [({}, "Mine")]


def test_nothing_comes_from_elsewhere(made):
    page = made({"a": [run()]})
    for _, attrs, _ in page.elements:
        assert "src" not in attrs
        assert attrs.get("href", "data:").startswith("data:")
    for _, text in page.all("style"):
        assert "url(" not in text
        assert "@import" not in text


def test_the_policy_admits_what_is_inside_and_no_network(made):
    page = made({"a": [run()]})
    (policy,) = [a["content"] for a, _ in page.all("meta") if "http-equiv" in a]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    assert "unsafe" not in policy
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        texts = [text for attrs, text in page.all(tag) if not attrs.get("type")]
        sums = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts]
        assert rules[rule] == " ".join(f"'sha256-{s}'" for s in sums)


def test_what_runs_say_stays_text(made, tmp_path):
    known = settings(HOSTILE)
    known["data"]["name"] = known["device"] = HOSTILE
    known[HOSTILE] = HOSTILE
    history = [row(0, **{HOSTILE: 1.0, f"bytes_up.{HOSTILE}": 5})]
    hostile = run(status=HOSTILE, history=history)
    hostile.settings.update(known)
    tuning = [{"label": HOSTILE, "accuracy": 0.5, "gradients": 1}]
    page = made({HOSTILE: [hostile]}, title=HOSTILE, tuning=tuning)
    assert len(page.all("script")) == 3
    assert "alert(1)" not in "".join(t for a, t in page.all("script") if not a.get("type"))
    assert page.all("title") == [({}, HOSTILE)]
    (group,) = page.data["groups"]
    assert (group["label"], group["method"]) == (HOSTILE, HOSTILE)
    assert HOSTILE in group["curves"]
    assert page.data["tuning"] == tuning
    text = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in text
    assert "<script>alert" not in hostile._repr_html_()


def test_text_of_runs_is_no_template(made):
    assert made({"{{css}}": [run()]}, title="{{data}}").data["title"] == "{{data}}"


def test_ten_long_runs_stay_below_two_megabytes(tmp_path):
    draws = np.random.default_rng(0)
    names = ("lr", "server_step", "mu", "distance", "trials", "sparsity", "stationarity")

    def one(seed):
        rows = [
            row(t, **dict(zip(names, map(float, draws.random(7)), strict=True)))
            | {"test_loss": float(draws.random()), "train_loss": float(draws.random())}
            for t in range(500)
        ]
        return run(seed=seed, history=rows)

    path = write({f"method {i}": [one(0)] for i in range(10)}, tmp_path / "page.html")
    assert path.stat().st_size < 2_000_000


def test_very_long_runs_are_thinned(made):
    rows = [row(t) for t in range(20_000)]
    rows[777]["test_loss"] = 99.0
    (group,) = made({"a": [run(history=rows)]}).data["groups"]
    curve = group["curves"]["test_loss"]
    assert len(curve["at"]) <= 600
    assert (curve["at"][0], curve["at"][-1]) == (1, 20_000)
    assert curve["mean"][curve["at"].index(778)] == 99
    assert len(group["axes"]["at"]) <= 600


@pytest.mark.parametrize(
    "groups",
    [
        {},
        {"a": []},
        {"a": [run(rounds=0)]},
        {"a": [run(rounds=1)]},
        {"a": [run(history=[{"round": 0, "train_loss": None, "test_loss": float("nan")}])]},
        {"a": [run(status="interrupted"), run(seed=1, status="diverged", rounds=1)]},
        {"a": [run(history=[{"round": 0, "train_loss": 1.0}])], "b": [run()]},
        {f"m{i}": [run()] for i in range(20)},
    ],
)
def test_every_kind_of_runs_has_a_page(made, groups):
    assert len(made(groups).data["groups"]) == len([1 for runs in groups.values() if runs])


def test_settings_may_be_missing(made):
    bare = tf.Run(run().x, run().output, [{"train_loss": 1.0}], {}, "finished")
    (group,) = made({"a": [bare]}).data["groups"]
    assert group["method"] == "run"
    assert group["curves"]["train_loss"] == {"at": [1], "mean": [1]}
    assert "run" in bare._repr_html_()


def test_a_run_reports_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = run("scaffold").report()
    assert path.name == "report.html"
    assert Page(path.read_text()).data["groups"][0]["label"] == "scaffold"
    assert "scaffold" in run("scaffold")._repr_html_()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="must go to a file that can be written"):
        write({"a": [run()]}, tmp_path / "file" / "page.html")


def test_the_library_comes_with_its_licence():
    from importlib.resources import files

    text = (files("tunefree.report") / "assets" / "LICENCE-chart.txt").read_text()
    assert "Chart.js Contributors" in text
    assert "Jukka Kurkela" in text
    assert text.count("Permission is hereby granted") == 2
