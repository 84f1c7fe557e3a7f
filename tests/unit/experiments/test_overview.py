"""What is confirmed: the state of every claim, and the page that shows it."""

import pytest
from experiments import load
from experiments.index import MARKS, Overview, replace_lines
from experiments.overview import count, describe_deviations, describe_group, list_findings
from experiments.record import apply_spec

from tunefree.core.errors import ArgumentError

from .papers import EXPECTED, SPEC, write

AUTO, AVG = [0.9, 0.92], [0.8, 0.81]
SECOND = """[[task]]
name = "T2"
data = "femnist"
split = "owner"
model = "linear"
steps = 3
[[method]]"""
TWO_TASKS = SPEC.replace("[[method]]", SECOND, 1)


def make_record(spec, values=(AVG, AUTO), scale="small", **more):
    """Return a kept record of FedAvg and Auto in T1, as it would be shown today."""
    found = spec.at(scale)
    rows = [
        {
            "task": "T1",
            "label": row.label,
            "base": row.base,
            "method": row.method,
            "set": {},
            "words": {},
            "chosen": {"lr": 0.3} if row.base == "FedAvg" else None,
            "search": None,
            "status": ["finished"] * len(last),
            "notes": [],
            "values": {"best": last, "last": last},
            "curves": {},
            **more,
        }
        for row, last in zip([r for r in found.rows if r.task == "T1"], values, strict=True)
    ]
    words = found.of("T1").words
    tasks = [{"name": "T1", "label": "T1", "words": words, "skipped": ""}]
    made = {"machine": {}, "versions": {}, "date": "2026-01-01", "seconds": 1}
    facts = {"name": spec.name, "scale": scale, "command": "python -m experiments", "seeds": [0, 1]}
    return apply_spec({**facts, **made, "narrowed": "", "tasks": tasks, "rows": rows}, found)


@pytest.fixture
def spec(tmp_path):
    return load(write(tmp_path, TWO_TASKS))


@pytest.mark.parametrize(
    ("values", "state", "said"),
    [
        ((AVG, AUTO), "holds", "**holds**; T1: +0.1050 ± 0.0050"),
        ((AUTO, AVG), "fails", "**fails**; T1: −0.1050 ± 0.0050"),
        (([0.8, 0.9], [0.9, 0.81]), "seeds", "2 seeds do not decide; T1: +0.0050 ± 0.0950"),
        (([0.8], [0.9]), "seeds", "undecided: one seed; T1: +0.1000"),
    ],
)
def test_a_claim_is_decided_or_not_by_its_seeds(spec, values, state, said):
    found = list_findings(spec.at("small"), make_record(spec, values))
    assert [one.state for one in found] == [state, "not run"]
    assert said in describe_group(found)
    assert describe_group(found).endswith("undecided: not run (T2)")


def test_what_was_not_tested_says_why(spec):
    small, paper = spec.at("small"), spec.at("paper")
    assert [one.state for one in list_findings(small, None)] == ["not run", "not run"]
    assert [one.state for one in list_findings(paper, None, ["femnist"])] == ["not run", "data"]
    old = make_record(spec, superseded="The method was wrong.")
    assert [one.state for one in list_findings(small, old)] == ["settings", "not run"]
    assert count(list_findings(small, old)) == {"settings": 1, "not run": 1}


def test_a_published_difference_stands_beside_ours_of_the_same_data(tmp_path):
    both = EXPECTED.replace("FedAvg =", "Auto = { best = 0.95, last = 0.93 }\nFedAvg =")
    spec = load(write(tmp_path, expected=both))
    kept = make_record(spec)
    said = describe_group(list_findings(spec.at("small"), kept))
    assert said == "**holds**; +0.1050 ± 0.0050 (published +0.1300)"
    assert describe_deviations(kept) == "4 accuracies: −3.0 points (−9.5 to +0.5)"
    instead = SPEC.replace("rows = 300", 'data = "synthetic"\nrows = 300')
    other = load(write(tmp_path / "stand-in", instead, both))
    kept = make_record(other)
    assert "published" not in describe_group(list_findings(other.at("small"), kept))
    assert describe_deviations(kept) == ""


def test_the_page_counts_all_claims_and_fills_in_numbers(tmp_path, spec):
    kept = make_record(spec)
    (tmp_path / "reproduced.toml").write_text('missing = ["femnist"]')
    found = Overview(tmp_path, [kept])
    page = found.page()
    assert "| **all papers, the paper's size** | 2 |  |  |  |  | 1 | 1 |" in page
    assert "| **all papers, small** | 2 | 1 |  |  |  | 1 |  |" in page
    assert "small scale, which shows orderings and not the papers' numbers, 1 of 2 claims hold" in (
        found.readme()
    )
    assert "it holds that" not in page
    at_size = Overview(tmp_path, [make_record(spec, scale="paper")]).page()
    assert "it holds that: Auto beats FedAvg (PX-table1, 1 of 2 tasks)." in at_size
    assert found.fill("It ends at {{PX-table1 small | T1 | Auto | last}}.") == "It ends at 0.9100."
    assert found.fill("It {{PX-table1 small | T1 | Auto beats FedAvg}}.") == "It holds."
    for wrong in ("PX-table1 paper | T1 | Auto | last", "PX-table1 small | T1 | Auto | at-3"):
        with pytest.raises(ArgumentError, match="PX-table1"):
            found.fill(f"{{{{{wrong}}}}}")
    old = Overview(tmp_path, [make_record(spec, superseded="The method was wrong.")])
    with pytest.raises(ArgumentError, match="no number or verdict"):
        old.fill("{{PX-table1 small | T1 | Auto | last}}")


def test_claims_of_ours_are_counted_apart(tmp_path):
    spec = load(write(tmp_path, SPEC.replace('"Auto beats', '"Ours: Auto beats')))
    found = Overview(tmp_path, [make_record(spec)])
    assert "| **all papers, small** | 0 |" in found.page()
    assert "| of our own, small | 1 | 1 |" in found.page()
    assert "0 of 0 claims hold" in found.readme()


def test_a_claim_is_followed_from_the_paper_to_the_verdict(tmp_path, spec):
    chain = 'experiment = "PX-table1"\nscale = "small"\ntask = "T1"\nclaim = "Auto beats FedAvg"'
    (tmp_path / "reproduced.toml").write_text(f'[[chain]]\n{chain}\nplace = "table 1"')
    page = Overview(tmp_path, [make_record(spec)]).page()
    for words in ("`experiments/PX/table1.toml`", "| Auto | 0.9000, 0.9200 |", "verdict*: holds;"):
        assert words in page
    with pytest.raises(ArgumentError, match="not tested"):
        Overview(tmp_path, []).page()


def test_only_the_lines_between_the_marks_are_replaced():
    readme = f"before\n{MARKS[0]}old\n{MARKS[1]}\nafter\n"
    assert replace_lines(readme, "new\n") == f"before\n{MARKS[0]}new\n{MARKS[1]}\nafter\n"
    assert replace_lines("no marks\n", "new\n") == "no marks\n"
