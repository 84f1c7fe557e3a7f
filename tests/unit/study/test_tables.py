"""Tables as text: nothing in a label can break a format."""

import csv
import html.parser
import io
import re

import pytest

from tunefree.core.text import format_bytes
from tunefree.study import tables

NASTY = [
    "<script>alert(1)</script>", "a|b", "a & b", "a_b", 'say "x"', "it's", "a,b", "a\\b", "100 %",
    "{x}", "$5", "#1", "~a^b", "*b*", "`c`", "[l](u)", "two\nlines", "±−", "a\\|b", "=1+1",
]  # fmt: skip
COLUMNS = {"label": "method & <b>", "n": "n"}


def rows(label):
    return [{"label": label, "n": 1, "none": None}]


@pytest.mark.parametrize("label", NASTY)
def test_csv(label):
    found = list(csv.reader(io.StringIO(tables.to_csv(rows(label)), newline="")))
    assert found == [["label", "n", "none"], [label, "1", ""]]


@pytest.mark.parametrize("label", NASTY)
def test_markdown(label):
    lines = tables.to_markdown(rows(label), COLUMNS).splitlines()
    assert len(lines) == 3
    # A cell ends at a bar that no backslash escapes.
    cells = re.split(r"(?<!\\)(?:\\\\)*\|", lines[2])
    assert len(cells) == 4
    plain = re.sub(r"\\([^A-Za-z0-9 ])", r"\1", cells[1]).strip()
    assert plain == " ".join(label.split())
    bare = re.sub(r"\\.", "", cells[1])
    assert not set(bare) & set("<>`*_[]|~$&#")


@pytest.mark.parametrize("label", NASTY)
def test_latex(label):
    lines = tables.to_latex(rows(label), COLUMNS).splitlines()
    assert lines[0] == r"\begin{tabular}{lr}"
    assert lines[-1] == r"\end{tabular}"
    line = lines[4]
    assert line.endswith(r" & 1 \\")
    cell = line.removesuffix(r" & 1 \\")
    bare = re.sub(r"\\[A-Za-z]+\{\}|\\[{}$&#_%]|\$\\pm\$|\$-\$", "", cell)
    assert not set(bare) & set("\\{}$&#_%~^<>|")


def test_latex_has_the_rules_of_booktabs_and_the_best_in_bold():
    text = tables.to_latex([*rows("a"), *rows("b"), {"label": "c"}], COLUMNS, {(1, "n"), (2, "n")})
    lines = text.splitlines()
    assert lines[1:4:2] == [r"\toprule", r"\midrule"]
    assert lines[4:] == [
        r"a & 1 \\", r"b & \textbf{1} \\", r"c &  \\", r"\bottomrule", r"\end{tabular}"
    ]  # fmt: skip


def test_text_fits_on_a_screen():
    columns = {"label": "method", "a": "first", "b": "second", "c": "third"}
    many = [{"label": f"m{i}", "a": "1.5", "b": "2", "c": "x" * 30} for i in range(40)]
    lines = tables.to_text(many, columns, 40).splitlines()
    assert lines[:2] == ["method  first  second", "m0      1.5    2"]
    assert lines[-2:] == ["… 10 more rows", "Not shown: third; table() has all."]
    assert len(lines) == 1 + 30 + 2
    assert tables.to_text(many[:1], columns, 80).splitlines()[1].endswith("xxx")


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("label", NASTY)
def test_html(label):
    reader = Reader()
    reader.feed(tables.to_html(rows(label), COLUMNS, [label]))
    reader.close()
    tags = ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "td", "p"]
    assert reader.tags == tags
    assert reader.texts == ["method & <b>", "n", label, "1", label]


def test_numbers():
    assert tables.format_mean(None, None) == ""
    assert tables.format_mean(0.12345, None) == "0.1235"
    assert tables.format_mean(0.5, 0.01) == "0.5000 ± 0.0100"
    assert [format_bytes(n) for n in (12, 1500, 2.5e6, 3e9, 4e15)] == [
        "12 B", "1.5 kB", "2.5 MB", "3.0 GB", "4000.0 TB",
    ]  # fmt: skip
    assert tables.format_p(0.0001) == "p < 0.001"
    assert tables.format_p(0.0312) == "p = 0.031"
