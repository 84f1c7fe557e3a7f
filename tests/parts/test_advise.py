"""Advice: rules that agree with what was measured, costs that agree with a dry run."""

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from torch import nn

import tunefree as tf
from parts.problems import labelled, linear
from tunefree import cli
from tunefree.advice.advise import Advice, advise, label_skew, make, read_bytes
from tunefree.advice.rules import RULES, Situation
from tunefree.core.errors import ArgumentError

DOCS = Path(__file__).parents[2] / "docs"


def results(heading=None):
    """{row: (accuracy, % zeros, MB up)} of a table of docs/catalogue.md, by default the first."""
    page = (DOCS / "catalogue.md").read_text()
    part = re.split(r"^## ", page, flags=re.M)
    text = part[0] if heading is None else next(p for p in part if p.startswith(heading))
    rows = {}
    for line in re.findall(r"^\| (?!method)(.+) \|$", text, re.M):
        name, accuracy, _, up, *_ = line.split(" | ")
        zeros = re.search(r"(\d+)% zeros", accuracy)
        rows[name] = (float(accuracy.split()[0]), int(zeros[1]) if zeros else None, float(up))
    assert rows
    return rows


def skewed(clients=10, rows=20):
    """Clients with one class each."""
    y = torch.arange(clients).repeat_interleave(rows) % 5
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0))
    return tf.Federation(x, y, torch.arange(clients).repeat_interleave(rows))


def even(clients=10, rows=100):
    y = torch.arange(clients * rows) % 5
    return tf.Federation(torch.ones(len(y), 3), y, torch.arange(clients).repeat_interleave(rows))


def net():
    return nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 5))


def names(advice):
    return [" ".join((c.method, *c.settings)) for c in advice]


def tuneless():
    return {n for n, entry in tf.methods.CATALOGUE.items() if not entry.choose}


def test_without_tuning_on_skewed_data_the_best_measured_are_advised():
    found = advise(net(), skewed(), cohort=3)
    measured = results()
    ranked = sorted(tuneless(), key=lambda name: -measured[name][0])
    assert len(found) == 3
    assert set(names(found)) == set(ranked[:3])
    assert names(found)[0] == ranked[0] == max(measured, key=lambda name: measured[name][0])


def test_with_a_penalty_the_claims_are_those_of_the_table():
    table = {k.split(",")[0]: v for k, v in results("With a penalty").items()}
    (full,) = [k for k in results("With a penalty") if k.endswith("*")]
    assert full.startswith("za1")
    del table["za1"]  # everyone takes part: not the same problem
    assert max(table, key=lambda n: table[n][0]) == "fedcanon"
    assert max(table, key=lambda n: table[n][1]) == "fedda"
    found = advise(net(), skewed(), cohort=3, penalty="l1:1e-4")
    assert [c.method for c in found] == ["fedcanon", "fedda", "fedmid"]
    assert "sets its own step size" in found.notes[0]
    everyone = advise(net(), skewed(), penalty="l1:1e-4")
    assert [c.method for c in everyone] == ["za1", "fedcanon", "fedda"]


def test_with_tuning_the_claims_are_those_of_the_tables():
    measured = results()
    servers = ("fedadagrad", "fedadam", "fedyogi", "fedams")
    assert max(servers, key=lambda name: measured[name][0]) == "fedyogi"
    page = (DOCS / "auto.md").read_text()
    rows = {
        line.split(" | ")[0].strip("| "): [
            float(n)
            if (n := re.search(r"\.\d+", cell)[0] if re.search(r"\.\d+", cell) else "0")
            else 0
            for cell in line.split(" | ")[1:]
        ]
        for line in re.findall(r"^\| Fed.+$", page, re.M)
    }
    best = [max(rows, key=lambda name: rows[name][task]) for task in range(7)]
    assert sum(name.startswith("FedDuAdagrad") for name in best) >= 4
    for rate in ("0.03", "0.1", "0.3"):  # even labels: digits 1, fmnist 1
        for task in (1, 3):
            assert rows[f"FedExP lr {rate}"][task] > rows[f"FedAvg lr {rate}"][task]
    assert names(advise(net(), even(), cohort=3, tuning=True)) == ["fedduadagrad", "auto", "fedexp"]
    found = names(advise(net(), skewed(), cohort=3, tuning=True))
    assert found == ["fedduadagrad", "auto", "fedyogi"]


def test_with_short_uploads_the_order_is_that_of_the_table():
    words = {
        "auto wire=qsgd:15": "auto, qsgd of 15 levels",
        "auto wire=qsgd:3": "auto, qsgd of 3 levels",
        "fedsps wire=qsgd:15": "fedsps, qsgd of 15 levels",
        "auto wire=ef+topk:0.05": "auto, top 5 % with error feedback",
        "auto wire=ef+sign": "auto, sign with error feedback",
    }
    found = names(advise(net(), skewed(), cohort=3, max_upload=1000, most=9))
    assert found == list(words)
    table = results("Compressed uploads")
    if words["auto wire=qsgd:15"] not in table:
        pytest.skip("docs/catalogue.md has no compressed auto yet")
    accuracy = [table[words[name]][0] for name in found]
    assert accuracy == sorted(accuracy, reverse=True)
    dense = results()["auto"]
    for name, times, lost in (("qsgd:15", 6, 0.005), ("qsgd:3", 10, 0.005)):
        row = table[words[f"auto wire={name}"]]
        assert dense[2] / row[2] > times
        assert dense[0] - row[0] <= lost


def test_stateless_clients_keep_nothing():
    for asked in ({}, {"tuning": True}, {"penalty": "l1:1e-4"}, {"max_upload": "700B"}):
        for cohort in (3, None):
            found = advise(net(), skewed(), cohort=cohort, stateless=True, **asked)
            assert found
            for choice in found:
                assert choice.client_memory == 0
    keeps = advise(net(), skewed(), cohort=3, penalty="l1:1e-4")
    assert [c.client_memory for c in keeps] == [4 * 365, 0, 0]


def test_uploads_fit():
    d = 365  # 3 * 40 + 40 + 40 * 5 + 5
    for limit in (4 * d + 8, 4 * d, 700, 200, 80):
        found = advise(net(), skewed(), cohort=3, max_upload=limit)
        assert found
        assert all(c.bytes_up <= limit for c in found)
    assert names(advise(net(), skewed(), cohort=3, max_upload=4 * d + 8))[0] == "auto"
    nothing = advise(net(), skewed(), cohort=3, max_upload=10)
    assert len(nothing) == 0
    assert nothing.notes[0].startswith("Nothing fits 10 B up per client and round: the least is")


EVERY = [
    dict(zip(("cohort", "tuning", "stateless", "penalty", "max_upload"), values, strict=True))
    for values in itertools.product(
        (3, None), (False, True), (False, True), (None, "l1:1e-4", "mcp:1e-4"), (None, "1kB", 100)
    )
]


def test_every_situation_is_answered_and_every_answer_can_be_bound():
    """Either methods that fit, or a sentence; each trains."""
    seen, fed = set(), skewed()
    for asked in EVERY:
        found = advise(net(), fed, **asked)
        assert isinstance(found, Advice)
        assert bool(found.choices) or found.notes
        for choice in found:
            key = (choice.method, choice.settings, asked["cohort"])
            assert asked["tuning"] or not choice.choose or found.notes
            if key not in seen:
                seen.add(key)
                work = {"rounds": 1, "steps": 1, "device": "cpu", "compile": False}
                run = tf.fit(net(), fed, choice.make(), cohort=asked["cohort"], **work)
                assert run.status == "finished"
                assert run.settings["method"]["name"] == choice.method


def test_every_rule_is_reached():
    """A row that is never advised would be a row that nobody checks."""
    reached = set()
    for asked, fed in itertools.product(EVERY, (skewed(), even())):
        found = advise(net(), fed, **asked, most=9)
        reached |= {(c.method, c.settings, c.when) for c in found}
    for rule in RULES:
        words = {tuple(w.format(penalty=p) for w in rule.settings) for p in ("l1:1e-4", "mcp:1e-4")}
        assert any((rule.method, w, rule.when) in reached for w in words), rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.method} {rule.when}")
def test_rules_are_readable(rule):
    method = make(rule.method, tuple(w.format(penalty="l1:1e-4") for w in rule.settings))
    assert method.name == rule.method
    assert rule.reason.endswith(".")
    assert not rule.when.endswith(".")
    for page in re.findall(r"docs/[\w.]+", rule.source):
        assert (DOCS.parent / page).exists()
    for heading in re.findall(r"catalogue.md, ([\w ]+)", rule.source):
        assert results(heading)


def test_words_and_predicates_agree():
    """What a row says in words is what it asks."""
    base = {"clients": 10, "parameters": 100}
    states = [
        Situation(cohort=c, tuning=t, penalty=p, max_upload=u, skew=s, **base)
        for c in (10, 3)
        for t in (True, False)
        for p in (None, "l1:1")
        for u in (None, 50)
        for s in (0.0, 0.9)
    ]
    words = {
        "penalty": lambda s: s.penalty is not None,
        "short": lambda s: s.tight,
        "searched": lambda s: s.tuning,
        "nothing is to be tuned": lambda s: not s.tuning,
        "alike": lambda s: not s.skewed,
        "differ": lambda s: s.skewed,
        "take": lambda s: s.everyone,
    }
    for rule in RULES:
        asks = [test for word, test in words.items() if word in rule.when]
        assert asks
        if "penalty" not in rule.when:  # unsaid: none, and uploads as long as they are
            asks.append(lambda s: s.penalty is None)
            if "short" not in rule.when:
                asks.append(lambda s: not s.tight)
        for state in states:
            assert rule.holds(state) == all(test(state) for test in asks), (rule.when, state)


def test_costs_are_those_of_a_dry_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main(list(words))
        assert stopped.value.code == 0
        return json.loads(capsys.readouterr().out)

    small = ("--clients", "6", "--cohort", "3", "--batch", "0", "--device", "cpu")
    asked = (("--no-tuning",), ("--sparse",), ("--max-upload", "9kB"), ("--tuning", "--skew", "0"))
    for words in asked:
        facts = call("advise", *small, *words, "--json")
        assert len(facts["choices"]) >= 2
        for choice in facts["choices"]:
            command = shlex.split(choice["command"])
            assert command[:2] == ["tunefree", "run"]
            cost = call(*command[1:], "--dry-run", "--json")
            assert (cost["cohort"], cost["clients"]) == (3, 6)
            assert choice["bytes_up"] == -(-cost["bytes_up"] // 3)
            assert choice["bytes_down"] == -(-cost["bytes_down"] // 3)
            assert choice["client_memory"] == cost["client_memory"]


def test_the_command_prints_what_to_type(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        cli.main(["advise", "--clients", "6", "--split", "iid", "--tuning"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("6 clients, 3 a round, label skew 0.")
    assert "   tunefree run --split iid --clients 6 --method fedduadagrad" in said
    assert "   tunefree tune --split iid --clients 6 --method fedduadagrad" in said
    assert "   To choose: lr." in said


def test_gradients_and_memory_in_closed_form():
    asked = {"steps": 3, "batch": 4, "tuning": True, "skew": 0.9}
    found = {c.method: c for c in advise(linear(), labelled(rows=6), **asked)}
    d = 8
    assert found["fedduadagrad"].gradients == 3
    assert found["fedduadagrad"].bytes_up == 4 * (d + 1)
    assert found["scaffold"].bytes_up == 4 * 2 * d
    assert found["scaffold"].client_memory == 4 * d
    assert found["scaffold"].server_memory == 4 * 2 * d


def test_label_skew():
    assert label_skew(even()) == 0.0
    assert label_skew(skewed(rows=2000)) == pytest.approx(0.8, abs=0.001)  # one of five classes
    noise = torch.randint(0, 5, (1000,), generator=torch.Generator().manual_seed(0))
    by_chance = tf.Federation(torch.ones(1000, 1), noise, torch.arange(1000) % 100)
    assert label_skew(by_chance) < 0.1  # though ten samples never show five even classes
    numbers = tf.Federation(torch.ones(4, 1), torch.rand(4), [0, 0, 1, 1])
    assert label_skew(numbers) is None
    assert advise(nn.Linear(1, 1), numbers).situation.skewed


@pytest.mark.parametrize("text", ["1XB", "much", "-3", "0", "1.2.3MB", ""])
def test_sizes_that_are_none(text):
    with pytest.raises(ArgumentError, match="must be bytes > 0, or text such as '300kB'"):
        read_bytes(text)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cohort": 11}, "advise(cohort=...) must be at most the number of clients, 10, got 11."),
        ({"cohort": 0}, "advise(cohort=...) must be an int >= 1, got 0."),
        ({"most": 0}, "advise(most=...) must be an int >= 1, got 0."),
        ({"penalty": "l7:1"}, "Unknown penalty 'l7'."),
    ],
)
def test_bad_arguments(given, said):
    with pytest.raises(ArgumentError) as error:
        advise(net(), skewed(), **given)
    assert str(error.value).startswith(said)
