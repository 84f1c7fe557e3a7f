"""Why claims fail: the file is checked by name, and the page has a line for each claim."""

import pytest
from experiments.causes import count_kinds, describe_causes, read_causes
from experiments.index import Overview
from experiments.overview import list_findings

from tunefree.core.errors import ArgumentError

from .papers import write
from .test_overview import AUTO, AVG, TWO_TASKS, load, make_record

CAUSE = """[[cause]]
title = "Early rounds"
kind = "scale"
scale = "small"
says = "Six rounds are few."
evidence = "`python -m experiments PX-table1 --rounds 60`"
[cause.claims]
PX-table1 = ["Auto beats FedAvg"]
"""


@pytest.fixture
def spec(tmp_path):
    return load(write(tmp_path, TWO_TASKS))


def _failing(spec):
    findings = list_findings(spec.at("small"), make_record(spec, (AUTO, AVG)))
    return findings, [one for one in findings if one.state == "fails"]


def _causes(tmp_path, spec, text):
    path = tmp_path / "causes.toml"
    path.write_text(text)
    return read_causes(path, _failing(spec)[0])


def test_a_failing_claim_stands_below_its_cause_with_the_size_of_the_miss(tmp_path, spec):
    for named in ("Auto beats FedAvg", "Auto beats FedAvg | T1", "Auto beats FedAvg | T2; T1"):
        causes = _causes(tmp_path, spec, CAUSE.replace("Auto beats FedAvg", named))
        failing = _failing(spec)[1]
        assert describe_causes(causes, failing).split("\n\n") == [
            "**Early rounds** (small scale is another regime; 1 claim). Six rounds are few.",
            "Evidence: `python -m experiments PX-table1 --rounds 60`",
            "- PX-table1, T1: Auto beats FedAvg: −0.1050 ± 0.0050",
        ]
        assert count_kinds(causes, failing)["scale"] == 1


def test_a_claim_without_a_cause_counts_as_not_explained(tmp_path, spec):
    other_task = CAUSE.replace("Auto beats FedAvg", "Auto beats FedAvg | T2")
    for causes in ([], _causes(tmp_path, spec, other_task)):
        failing = _failing(spec)[1]
        assert "**No cause was found yet** (1 claim)." in describe_causes(causes, failing)
        assert "Early rounds" not in describe_causes(causes, failing)
        assert {kind: n for kind, n in count_kinds(causes, failing).items() if n} == {"open": 1}


def test_the_page_has_the_causes_of_what_fails_and_of_nothing_else(tmp_path, spec):
    (tmp_path / "causes.toml").write_text(CAUSE)
    page = Overview(tmp_path, [make_record(spec, (AUTO, AVG))]).page()
    assert "### Why claims of PX fail, small\n\n**Early rounds**" in page
    assert "Causes of the 1 that fail at small scale" in page
    assert "small scale is another regime: 1." in page
    page = Overview(tmp_path, [make_record(spec, (AVG, AUTO))]).page()
    assert "Early rounds" not in page
    assert "Why claims" not in page


@pytest.mark.parametrize(
    ("was", "now", "sentence"),
    [
        ("Auto beats", "Autos beat", "there is no claim"),
        ("Auto beats FedAvg", "Auto beats FedAvg | T3", "there is no claim"),
        ("PX-table1 =", "PX-table9 =", "there is no claim"),
        ('"scale"', '"size"', "kind must be one of code, reading, scale, paper, open"),
        ('title = "Early rounds"', 'name = "Early rounds"', "has title, kind, scale, says"),
        ('"Six rounds are few."', '""', "has title, kind, scale, says"),
    ],
)
def test_errors_are_sentences(tmp_path, spec, was, now, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        _causes(tmp_path, spec, CAUSE.replace(was, now))
