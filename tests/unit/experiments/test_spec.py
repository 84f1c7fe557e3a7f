"""Specifications: what they mean at a scale, and what is wrong with them, in sentences."""

from pathlib import Path

import experiments
import pytest
from experiments import find, load
from experiments.citations import count_sources
from experiments.keys import SCALES
from experiments.library import home
from experiments.runs import make_run, narrow
from experiments.spec import Source

from tunefree.core.errors import ArgumentError

from .papers import EXPECTED, SPEC, write

EVERY = find()


@pytest.mark.parametrize(("name", "scale"), [(n, s) for n in EVERY for s in load(n).scales])
def test_every_experiment_is_right_at_its_scales(name, scale):
    found = load(name).at(scale)
    assert found.title
    assert found.rows
    assert all(found.of(row.task) for row in found.rows)


def test_only_experiments_of_our_own_have_one_scale():
    scales = {name: set(load(name).scales) for name in EVERY}
    assert {name for name, has in scales.items() if has != set(SCALES)} == {"P2-readings"}


@pytest.mark.parametrize("name", [name for name in EVERY if name.startswith(("P1-", "P3-"))])
def test_every_setting_of_p1_and_p3_has_a_source(name):
    spec = load(name)
    assert "assume" not in spec.raw
    assert len(spec.at("paper").sources) > 10


def test_a_scale_lies_over_the_task(tmp_path):
    spec = load(write(tmp_path))
    small, paper = spec.at("small"), spec.at("paper")
    assert spec.name == "PX-table1"
    assert (small.of("T1").words["rows"], small.of("T1").words["rounds"]) == (300, 3)
    assert "rows" not in paper.of("T1").words
    assert paper.of("T1").words["rounds"] == 50
    assert (small.of("T1").says, paper.of("T1").says) == (("300 rows.",), ())
    assert small.of("T1").published["FedAvg"] == {"best": 0.9, "last": 0.8, "last_sd": 0.01}
    assert small.rows[0].points == ({"lr": 1e-6}, {"lr": 0.3}, {"lr": 1e12})


def test_a_method_may_have_its_own_tables_and_settings_of_the_run(tmp_path):
    own = 'set = { clip = 10.0 }\nsteps = 7\n[method.small]\nset = { output = "last" }'
    text = SPEC.replace('method = "auto"', f'method = "auto"\n{own}')
    found = load(write(tmp_path, text)).at("small")
    words = make_run(found, found.rows[1], {}, 1).words
    assert words["set"] == {"clip": 10.0, "output": "last"}
    assert (words["steps"], words["seed"]) == (7, 1)


def test_a_sweep_makes_a_row_of_every_value(tmp_path):
    sweep = '[[sweep]]\nmethods = ["FedAvg"]\nsetting = "{}"\nvalues = [1, 2]\n'
    text = SPEC.replace("[[claim]]", sweep.format("steps") + "[[claim]]")
    found = load(write(tmp_path, text, "")).at("small")
    assert [r.label for r in found.rows] == ["FedAvg, steps=1", "FedAvg, steps=2", "Auto"]
    assert [make_run(found, r, {}, 0).words["steps"] for r in found.rows] == [1, 2, 3]
    assert len(found.rows[0].points) == 3
    expected = EXPECTED.replace("FedAvg =", '"FedAvg, lr=1" =')
    text = text.replace('"steps"', '"lr"')
    found = load(write(tmp_path, text, expected)).at("small")
    assert found.rows[0].points == ({},)  # searched no longer
    assert make_run(found, found.rows[0], {}, 0).words["set"] == {"lr": 1}


def test_data_that_stands_in_is_named(tmp_path):
    text = SPEC.replace('data = "digits"', 'data = "cifar100"')
    text = text.replace("rows = 300", 'rows = 300\ndata = "digits"')
    spec = load(write(tmp_path, text))
    assert spec.at("small").of("T1").label == "T1 (small: digits)"
    assert spec.at("paper").of("T1").label == "T1"
    assert spec.at("small").of("T1").published == {}  # nothing published is beside other data
    assert spec.at("paper").of("T1").published["FedAvg"]["last"] == 0.8


def test_percent_is_turned_into_shares(tmp_path):
    expected = "[table1]\npercent = true\n[table1.T1]\nFedAvg = { last = 80.5 }"
    found = load(write(tmp_path, expected=expected)).at("small")
    assert found.of("T1").published["FedAvg"]["last"] == pytest.approx(0.805)


def test_the_same_words_are_the_same_run(tmp_path):
    found = load(write(tmp_path)).at("small")
    one, other = (make_run(found, found.rows[0], {"lr": v}, 0) for v in (0.3, 0.1))
    assert one.key == make_run(found, found.rows[0], {"lr": 0.3}, 0).key != other.key
    assert one.key != make_run(found, found.rows[0], {"lr": 0.3}, 0, tuning=True).key
    assert narrow(found, rounds=2).of("T1").words["rounds"] == 2
    assert [r.label for r in narrow(found, methods=["auto"]).rows] == ["Auto"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('method = "auto"', 'method = "atuo"', "Unknown method (of row 'Auto') 'atuo'. Did you"),
        ("lr = [", "lrr = [", "Unknown argument of fedavg 'lrr'. Did you mean 'lr'?"),
        ("steps = 3", "stepz = 3", "Unknown key of [[task]] T1 'stepz'. Did you mean 'steps'?"),
        ("tune_rounds = 2", "tune_round = 2", "Unknown key of [scale.small] 'tune_round'."),
        ('data = "digits"', 'data = "digit"', "Unknown dataset 'digit'."),
        ('model = "mlp"', 'model = "mpl"', "Unknown model 'mpl'."),
        ("hidden = [8]", "hiden = [8]", "Unknown argument of model 'mlp' 'hiden'."),
        ("dirichlet:1", "dirichle:1", "Unknown split 'dirichle'."),
        ("rounds = 3\n", "rounds = 0\n", "[scale.small](rounds=...) must be an int >= 1"),
        ('better = ["Auto"]', 'better = ["auto!"]', "Unknown row of a claim 'auto!'."),
        ('by = "last"', 'by = "latest"', "A number must be written best, last"),
        ('"best", "last"]', '"best"]', "Unknown number of FedAvg in expected.toml 'last'."),
        ("steps = 3", "steps = 3\ncohort = 9", "must have a cohort of at most 4 clients, got 9."),
        ("\n[[claim]]", "\ngrid = {}\nset = { lrr = 1 }\n[[claim]]", "Unknown argument of auto"),
        ('name = "Auto"', 'name = "FedAvg"', "There must be one row of T1 called 'FedAvg'"),
        ("[scale.paper]", 'tune_by = "luck"\n[scale.paper]', "Unknown way to choose 'luck'."),
        ('title = "Accuracy on digits"', "", "the specification lacks 'title'."),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(tmp_path, old, new, sentence):
    assert old in SPEC
    path = write(tmp_path, SPEC.replace(old, new))
    with pytest.raises(ArgumentError) as caught:
        load(path).at("small")
    assert str(caught.value).startswith(f"PX-table1 ({path}), small: ")
    assert sentence in str(caught.value)


SOURCES = """
[sources]
rounds = "paper: section 5"
data = "paper: section 5"
split = "code: owner/name, main.py"
clients = "paper: section 5"
model = "paper: appendix A"
steps = "assumed: the paper is silent"
batch = "paper: section 5"
T1.lr = "assumed: no grid is printed"
"""


def test_sources_cover_every_setting_of_the_paper_scale(tmp_path):
    found = load(write(tmp_path, SPEC + SOURCES)).at("paper")
    assert count_sources(found) == {"paper": 5, "code": 1, "assumed": 2}
    assert Source("T1.lr", "assumed", "no grid is printed") in found.sources
    for line in SOURCES.splitlines()[2:]:
        path = write(tmp_path, SPEC + SOURCES.replace(f"{line}\n", ""))
        assert load(path).at("small").sources  # what it is at scale paper counts
        setting = line.partition(" ")[0].removeprefix("T1.")
        with pytest.raises(ArgumentError, match=rf"\[sources\] lacks '{setting}(_args)?', which"):
            load(path).at("paper")


@pytest.mark.parametrize("text", ['"section 5"', '"papers: 5"', '"paper"', '"assumed: "', "3"])
def test_a_source_says_what_kind_it_is(tmp_path, text):
    path = write(tmp_path, SPEC + SOURCES.replace('"paper: appendix A"', text))
    with pytest.raises(ArgumentError, match=r"\[sources\] model must begin with 'paper:', 'code:'"):
        load(path).at("small")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("FedAvg =", "FedAgv =", "Unknown row of T1 in expected.toml 'FedAgv'."),
        ("table1.T1", "table1.T2", "Unknown task in expected.toml 'T2'."),
        ("0.9", "90.0", "expected.toml has 90.0 as an accuracy of FedAvg"),
    ],
)
def test_published_numbers_must_have_their_place(tmp_path, old, new, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        load(write(tmp_path, expected=EXPECTED.replace(old, new))).at("small")


def test_specifications_lie_beside_the_program_wherever_it_is_called(tmp_path, monkeypatch):
    monkeypatch.delenv("TUNEFREE_EXPERIMENTS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert home() == Path(experiments.__file__).parent
    assert "P3-figure1" in find()
    monkeypatch.setenv("TUNEFREE_EXPERIMENTS", str(tmp_path / "nowhere"))
    with pytest.raises(ArgumentError, match="must name a folder that exists"):
        home()


def test_names_that_are_not_there(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setenv("TUNEFREE_EXPERIMENTS", str(tmp_path))
    assert list(find()) == ["PX-table1"]
    assert load("px-TABLE1").name == "PX-table1"
    with pytest.raises(ArgumentError, match="Unknown experiment 'PX-table2'"):
        load("PX-table2")
    with pytest.raises(ArgumentError, match="Unknown scale 'large'"):
        load("PX-table1").at("large")
    (tmp_path / "PX" / "table2.toml").write_text("a = [")
    with pytest.raises(ArgumentError, match="is not TOML"):
        load("PX-table2")
