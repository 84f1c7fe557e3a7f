"""Figures for papers."""

import re

import pytest

from tunefree.core.errors import ArgumentError
from tunefree.report.figures import draw

from .runs import run

pytest.importorskip("matplotlib")

BOTH = ("rounds", "bytes")


def groups():
    return {"fedavg": [run(seed=0), run(seed=1, rounds=2)], "scaffold": [run("scaffold")]}


@pytest.mark.parametrize(
    ("format", "head"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")]
)
def test_formats(tmp_path, format, head):
    paths = draw(groups(), tmp_path / "figures", format)
    curves = [f"{c}-{a}" for c in ("test_accuracy", "test_loss", "train_loss") for a in BOTH]
    assert [p.name for p in paths] == [f"{name}.{format}" for name in [*curves, "clients"]]
    assert all(p.read_bytes().startswith(head) for p in paths)


def test_text_stays_text(tmp_path):
    draw(groups(), tmp_path, "svg")
    text = (tmp_path / "test_accuracy-bytes.svg").read_text()
    for words in ("Test accuracy (%)", "Bytes sent, up and down", "scaffold"):
        assert f">{words}<" in text


def test_the_same_runs_give_the_same_file(tmp_path):
    bare = {"a": [run(history=[{"round": t, "train_loss": 1.0} for t in range(3)], data={})]}
    (one,), (two,) = (draw(bare, tmp_path / name, "pdf") for name in "ab")
    assert one.read_bytes() == two.read_bytes()


def test_only_what_is_there(tmp_path):
    bare = run(history=[{"round": 0, "train_loss": 1.0}], data={})
    assert [p.name for p in draw({"a": [bare], "b": []}, tmp_path)] == ["train_loss-rounds.pdf"]
    assert draw({"a": [run(rounds=0, data={})]}, tmp_path) == []


def test_many_groups_and_clients_without_labels(tmp_path):
    sizes = {"clients": list(range(100)), "sizes": [3] * 100}
    many = {f"m{i}": [run(data={"name": "d", "picture": sizes})] for i in range(20)}
    assert len(draw(many, tmp_path, "png")) == 7


def size(path):
    """Width and height of a PDF's page in inches."""
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", path.read_bytes())
    return float(box[1]) / 72, float(box[2]) / 72


def test_figures_have_the_width_of_a_column(tmp_path):
    assert {size(p)[0] for p in draw(groups(), tmp_path)} == {3.25}
    many = {f"a method of some name {i}": [run(seed=i)] for i in range(12)}
    paths = [draw(many, tmp_path / str(width), width=width)[0] for width in (3.5, 7)]
    (narrow, tall), (wide, low) = map(size, paths)
    assert (narrow, wide) == (3.5, 7)
    assert tall - 0.7 * 3.5 > 2 * (low - 0.7 * 7) > 0  # the legend: fewer names in a row


def test_rounds_are_integers_and_the_legend_is_below_the_axes(tmp_path):
    draw({"a": [run(rounds=15)], "b": [run("scaffold", rounds=15)]}, tmp_path, "svg")
    text = (tmp_path / "test_loss-rounds.svg").read_text()
    ticks = re.search(r'id="matplotlib.axis_1">(.*?)id="matplotlib.axis_2">', text, re.S)[1]
    *numbers, title = re.findall(r">([^<>\n]+)</text>", ticks)
    assert title == "Rounds"
    assert numbers == [str(int(number)) for number in numbers]
    down = {
        words: float(y)
        for y, words in re.findall(r'<text [^>]*?y="([\d.]+)"[^>]*>([^<>]+)</text>', text)
    }
    assert down["a"] > down["Rounds"]


def test_mistakes(tmp_path):
    with pytest.raises(ArgumentError, match=r"figures\(width=...\) must be a finite number >= 2"):
        draw(groups(), tmp_path, width=1)
    with pytest.raises(ArgumentError, match="Unknown format 'gif'"):
        draw(groups(), tmp_path, "gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="must go to a folder that can be written"):
        draw(groups(), tmp_path / "file" / "x")
