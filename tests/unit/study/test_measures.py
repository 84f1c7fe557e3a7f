"""The numbers of a comparison, from histories written by hand."""

import json
import re

import pytest
import torch

from tunefree.core.errors import ArgumentError
from tunefree.study import Comparison, FailedRun
from tunefree.training.run import Run

NOTHING = torch.zeros(1)


def run(seed, scores, name="test_accuracy", status="finished", method="fedavg", **costs):
    """A run whose every round costs 10 bytes up, 20 down, 4 gradients and 1 second."""
    each = {"bytes_up": 10, "bytes_down": 20, "gradients": 4, "seconds": 1.0} | costs
    history = [
        {"round": t, "train_loss": 1.0, **each, **({} if s is None else {name: s})}
        for t, s in enumerate(scores)
    ]
    settings = {
        "method": {"name": method},
        "seed": seed,
        "rounds": 3,
        "cohort": 2,
        "steps": 5,
        "epochs": None,
        "data": {"name": "toy", "clients": 4},
    }
    return Run(NOTHING, NOTHING, history, settings, status)


def comparison(groups, target=None, **more):
    count = len(next(iter(groups.values())))
    return Comparison(groups, list(range(count)), target, **more)


def test_means_and_totals():
    found = comparison({"a": [run(0, [0.2, 0.9, 0.8]), run(1, [0.1, 0.5, 0.6])]}, target=0.5)
    (row,) = found.table()
    assert (row["final"], row["best"]) == pytest.approx((0.7, 0.75))
    assert row["final_sd"] == pytest.approx(0.02**0.5)  # .8 and .6 around .7
    assert row["best_sd"] == pytest.approx(0.045**0.5)
    assert (row["bytes_up"], row["bytes_down"], row["gradients"], row["seconds"]) == (30, 60, 12, 3)
    assert (row["rounds_to_target"], row["bytes_up_to_target"]) == (2, 20)
    assert row["gradients_to_target"] == 8
    assert (row["seeds"], row["finished"], row["reached"], row["choose"]) == (2, 2, 2, "lr")


def test_the_first_row_holds_the_pass_before_round_0():
    one = run(0, [0.9])
    one.history[0]["gradients"] = 100
    assert comparison({"a": [one]}, target=0.5).table()[0]["gradients_to_target"] == 100


def test_rounds_that_were_not_evaluated():
    (row,) = comparison({"a": [run(0, [None, 0.9, None])]}, target=0.5).table()
    assert (row["final"], row["rounds_to_target"]) == (0.9, 2)


def test_target_cells():
    groups = {
        "all": [run(0, [0.1, 0.9]), run(1, [0.9, 0.9])],
        "one": [run(0, [0.1, 0.2]), run(1, [0.9, 0.9])],
        "none": [run(0, [0.1, 0.2]), run(1, [0.1, 0.2])],
    }
    cells = {c["label"]: c for c in comparison(groups, target=0.8).cells()}
    assert [cells[k]["rounds"] for k in groups] == [
        "1.5",
        "only 1 of 2 seeds reached it",
        "not reached",
    ]
    assert [cells[k]["bytes_up"] for k in groups] == ["15 B", "–", "–"]
    assert [cells[k]["gradients"] for k in groups] == ["6", "–", "–"]


def test_the_automatic_target_is_stated():
    groups = {"a": [run(0, [0.1, 0.5])], "b": [run(0, [0.1, 0.8])]}
    found = comparison(groups)
    assert found.goal == pytest.approx(0.95 * 0.8)
    assert "until test accuracy 0.7600 (95% of the best final mean)" in found.header
    assert "until test accuracy 0.5000." in comparison(groups, target=0.5).header


def test_losses_where_there_is_no_accuracy():
    groups = {
        "a": [run(0, [3.0, 2.0], "test_loss")],
        "b": [run(0, [3.0, 1.0], "test_loss")],
    }
    found = comparison(groups)
    assert found.measure == "test_loss"
    assert [row["verdict"] for row in found.table()] == ["not tested", "best"]
    assert found.goal == pytest.approx(1.05)
    assert found.table()[1]["rounds_to_target"] == 2
    assert "until test loss 1.0500 (5% above the best final mean)" in found.header
    nothing = comparison({"a": [run(0, [None])]})
    assert (nothing.measure, nothing.table()[0]["final"]) == ("train_loss", 1.0)


def test_which_differences_are_real():
    """Against the best: -.10 -.11 -.09 -.10 (t = -24.5, p = .00015) and +.01 -.02 .00 -.01."""
    best = [0.80, 0.81, 0.82, 0.83]
    far = [b - d for b, d in zip(best, (0.10, 0.11, 0.09, 0.10), strict=True)]
    near = [b - d for b, d in zip(best, (-0.01, 0.02, 0.0, 0.01), strict=True)]
    groups = {
        name: [run(s, [v]) for s, v in enumerate(values)]
        for name, values in {"far": far, "best": best, "near": near}.items()
    }
    found = comparison(groups)
    rows = {row["label"]: row for row in found.table()}
    assert rows["far"]["difference"] == pytest.approx(-0.1)
    assert rows["far"]["p"] == pytest.approx(2 * 0.000148, rel=0.02)  # two methods: Holm doubles
    assert rows["near"]["p"] == pytest.approx(0.495, abs=0.01)  # t = -0.775, 3 degrees
    verdicts = {k: row["verdict"] for k, row in rows.items()}
    assert verdicts == {"far": "worse", "best": "best", "near": "not told apart"}
    said = found.sentences[0]
    assert "worse than best beyond chance (5%, paired t-test over 4 seeds, Holm): far." in said
    assert "Not told apart from best: near." in said
    cells = {c["label"]: c["against"] for c in found.cells()}
    assert cells == {"far": "−0.1000 (p < 0.001) *", "best": "best", "near": "−0.0050 (p = 0.495)"}


def test_one_seed_cannot_tell():
    found = comparison({"a": [run(0, [0.5])], "b": [run(0, [0.9])]})
    assert found.sentences == [
        "One seed cannot tell which differences are real; three or more can."
    ]
    assert [row["p"] for row in found.table()] == [None, None]


def test_lost_seeds_neither_win_nor_are_tested():
    groups = {
        "lucky": [run(0, [0.99]), run(1, [0.99], status="diverged"), FailedRun(2, "It broke.")],
        "sound": [run(s, [0.5 + s / 100]) for s in range(3)],
    }
    found = comparison(groups)
    rows = {row["label"]: row for row in found.table()}
    assert {k: r["verdict"] for k, r in rows.items()} == {"lucky": "not tested", "sound": "best"}
    assert (rows["lucky"]["final"], rows["lucky"]["finished"], rows["lucky"]["p"]) == (
        0.99,
        1,
        None,
    )
    cells = {c["label"]: c for c in found.cells()}
    assert cells["lucky"]["final"] == "0.9900 (1 of 3 diverged, 1 of 3 failed)"
    assert cells["lucky"]["rounds"] == "only 1 of 3 seeds reached it"
    assert "lucky: seed 1: diverged after 1 rounds; seed 2: It broke." in found.sentences


def test_nothing_finished():
    found = comparison({"a": [FailedRun(0, "No.")], "b": [run(0, [], status="diverged")]})
    assert found.goal is None
    assert found.sentences[0] == "No method finished, so there is nothing to compare."
    assert [c["final"] for c in found.cells()] == ["1 of 1 failed", "1 of 1 diverged"]
    for form in (found.markdown, found.csv, found.latex, found._repr_html_, found.json):
        assert form()


def test_what_tuning_cost_is_a_column():
    groups = {"a": [run(0, [0.5])], "b": [run(0, [0.6], method="auto")]}
    spent = {"method": "fedavg", "settings": {"lr": 0.3}, "gradients": 1200}
    found = comparison(groups, tunings={"a": spent})
    cells = {c["label"]: c for c in found.cells()}
    assert found.columns["tuning"] == "tuning"
    assert (cells["a"]["tuning"], cells["a"]["choose"]) == ("1,200 gradients", "tuned: lr=0.3")
    assert (cells["b"]["tuning"], cells["b"]["choose"]) == ("", "nothing")
    assert "tuning" not in comparison(groups).columns
    found = comparison(groups, tunings={"a": spent | {"runs": 5}})
    assert found.cells()[0]["tuning"] == "1,200 gradients, 5 runs"


def test_the_page_has_the_verdicts_and_the_cost_of_tuning(tmp_path):
    groups = {"a": [run(s, [0.5, 0.6 + s / 100]) for s in range(3)]}
    groups["b"] = [run(s, [0.7, 0.9 + s / 50]) for s in range(3)]
    spent = {"method": "fedavg", "settings": {"lr": 0.3}, "gradients": 1200, "runs": 5}
    found = comparison(groups, tunings={"a": spent})
    text = found.report(tmp_path / "page.html", title="Mine").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    assert data["title"] == "Mine"
    rows = data["comparison"]["rows"]
    assert re.fullmatch(r"−31\.00 points \(p [=<] 0\.\d+\) \*", rows["a"]["against"])
    assert rows["a"]["choose"] == "tuned: lr=0.3"
    assert rows["a"]["tuning"] == "1,200 gradients, 5 runs"
    assert rows["a"]["rounds"] == "not reached"
    assert (rows["b"]["against"], rows["b"]["tuning"]) == ("best", "")
    assert data["comparison"]["columns"]["rounds"] == "rounds to 87.40 %"
    assert data["comparison"]["lines"] == found.sentences
    assert [row["label"] for row in data["tuning"]] == ["a", "b"]


def test_latex_for_a_paper():
    """Mean and deviation, the best in bold, the columns that were asked for, in that order."""
    groups = {"a": [run(s, [0.5, 0.8 + s / 100]) for s in range(2)]}
    groups["b"] = [run(s, [0.85, 0.7]) for s in range(2)]
    groups["c"] = [run(0, [0.5, 0.9]), FailedRun(1, "lost")]
    found = comparison(groups, target=0.75)
    text = found.latex(["label", "final", "best", "rounds"])
    assert text.startswith("% \\usepackage{booktabs}\n% ")
    body = text[text.index("\\midrule") :].splitlines()[1:4]
    assert body == [
        r"a & \textbf{0.8050 $\pm$ 0.0071} & 0.8050 $\pm$ 0.0071 & 2 \\",
        r"b & 0.7000 $\pm$ 0.0000 & \textbf{0.8500 $\pm$ 0.0000} & \textbf{1} \\",
        r"c & 0.9000 (1 of 2 failed) & 0.9000 & only 1 of 2 seeds reached it \\",
    ]
    assert found.markdown(["label"]).count("\n| a |") == 1
    with pytest.raises(ArgumentError, match="Unknown column 'accurcy'"):
        found.latex(["accurcy"])
    alone = comparison({"c": groups["c"]})
    assert r"\textbf" not in alone.latex()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_print_fits_on_a_screen(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    groups = {n: [run(s, [0.5, 0.6 + s / 100]) for s in range(3)] for n in ("fedavg", "auto", "c")}
    spent = {"method": "fedavg", "settings": {"lr": 0.3}, "gradients": 1200}
    lines = str(comparison(groups, tunings={"fedavg": spent})).splitlines()
    assert len(lines) < 20
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if line.startswith("method "))
    assert head.split()[:2] == ["method", "accuracy"]
    assert ("Not shown: " in "\n".join(lines)) == (width < 200)


def test_repr_is_one_line():
    found = comparison({"fedavg": [run(0, [0.5] * 99)], "auto": [FailedRun(0, "lost")]})
    assert repr(found) == "<Comparison of fedavg>"
    assert repr(found.runs["fedavg"]) == "[<Run of fedavg: finished, 99 rounds>]"


def test_print_of_a_run_fits_on_a_screen():
    lines = str(run(0, [0.5] * 999)).splitlines()
    assert lines[0].split() == ["method", "fedavg"]
    assert "rounds" in lines[1]
    assert len(lines) < 12
    assert max(map(len, lines)) < 80


def test_a_label_can_be_anything():
    nasty = "<script>|&_\"',\\\n"
    found = comparison({nasty: [FailedRun(0, nasty)], "b": [run(0, [0.6])]})
    assert "<script>" not in found._repr_html_()
    assert all(line.startswith(("%", "\\", "b &", "method &")) or " & " in line
               for line in found.latex().splitlines())  # fmt: skip
    assert found.json()["rows"][0]["label"] == nasty
