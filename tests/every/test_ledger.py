"""What each method sends and remembers: by its declarations, and against the published table.

Units: vectors of d numbers and single numbers, per client and round, everyone taking part. Every
method of the catalogue is checked against what its parts declare; those of the published table also
number by number.
"""

import pytest
import torch

import tunefree as tf
from every.cases import SIZES, make_federation, make_net
from tunefree.clients import Plan, Round
from tunefree.core.layout import Layout
from tunefree.simulation.dry_run import Units, count_units

# name: down, up, what a client keeps, what the server keeps beyond x and the output part
V, S = Units, lambda scalars: Units(1, scalars)
NONE, ONE, TWO, THREE = V(0), V(1), V(2), V(3)
TABLE = {
    "fedavg": (ONE, ONE, NONE, NONE),
    "fedprox": (ONE, ONE, NONE, NONE),
    "fedsls": (ONE, ONE, NONE, NONE),
    "fedsps": (ONE, ONE, NONE, NONE),
    "fedexp": (ONE, S(1), NONE, NONE),
    "fedexpsls": (ONE, S(1), NONE, NONE),
    "fedexprox": (ONE, S(1), NONE, NONE),
    "feddua": (ONE, S(1), NONE, NONE),
    "fedduadagrad": (ONE, S(1), NONE, ONE),
    "fedavgm": (ONE, ONE, NONE, ONE),
    "fedadagrad": (ONE, ONE, NONE, ONE),
    "fedadam": (ONE, ONE, NONE, TWO),
    "fedyogi": (ONE, ONE, NONE, TWO),
    "fedams": (ONE, ONE, NONE, THREE),
    "fedduadam": (ONE, S(1), NONE, V(2, 1)),
    "fedexpm": (ONE, S(1), NONE, V(1, 1)),
    "feddog": (S(1), S(1), NONE, V(1, 4)),  # z, r, v, lr, K
    "feddowg": (S(1), S(1), NONE, V(1, 4)),
    "fedprodigy": (S(2), S(2), NONE, V(1, 3)),  # z, d, v, n
    "feddowgdua": (S(2), S(2), NONE, V(2, 4)),  # FedDuAdagrad's s too
    "auto": (S(2), S(2), NONE, V(2, 4)),  # as feddowgdua
    "fedrace": (S(1), S(2), NONE, V(4, 15)),  # x0, an arm's average, two s; f(x0) on the panel
    # down: x+ when it is probed, mu, lr, accepted?, w1, w2; up: delta, loss, |delta|^2, q, 3 probes
    "fedproxlod": (S(5), S(6), NONE, V(3, 7)),
    "fedproxwlod": (S(5), S(6), NONE, V(3, 7)),
    "fedhyper": (TWO, ONE, NONE, V(1, 1)),  # the last mean move, eta
    "parfrefl": (ONE, ONE, TWO, ONE),
    "padamfed": (TWO, TWO, ONE, TWO),
    "scaffold": (TWO, TWO, ONE, ONE),
    "scaffoldm": (THREE, TWO, ONE, TWO),
    "fedavgcm": (TWO, ONE, NONE, ONE),
    "mime": (THREE, TWO, NONE, ONE),  # 2d and the momentum
    "mimelite": (TWO, TWO, NONE, ONE),
    "fedlin": (TWO, TWO, NONE, NONE),
    "adaalter": (TWO, TWO, NONE, ONE),
    "fedcanon": (TWO, ONE, ONE, NONE),
    "fedcanon2": (ONE, ONE, TWO, NONE),
    "scaffnew": (ONE, ONE, ONE, NONE),
    "fedmid": (ONE, ONE, NONE, NONE),
    "fedda": (ONE, ONE, NONE, V(1, 1)),  # the model beside the dual vector
    "za1": (ONE, ONE, ONE, ONE),  # the model beside the point before its proximal map
    "fastfedda": (TWO, TWO, NONE, ONE),
    "feddr": (ONE, ONE, THREE, ONE),
    "fedadmm": (ONE, ONE, THREE, ONE),
    "fedpd": (ONE, ONE, TWO, NONE),
    "feddyn": (ONE, ONE, ONE, ONE),
    "feddc": (TWO, TWO, TWO, TWO),
}
COMPRESSED = {  # down, client, server; up is what the compressor's code takes
    "comparfrefl": (ONE, TWO, ONE),
    "scafcom": (TWO, TWO, ONE),
    "fedefsgd": (ONE, ONE, NONE),
    "fedefams": (ONE, ONE, THREE),
    "localsgdc": (ONE, ONE, NONE),
}


def last(name, **settings):
    return tf.methods.get(name, output="last", **settings)


def declared(method, d):
    """Return (down, up) in numbers: what the parts declare, return from `down`, and ask for.

    A vector that was sent once in a round is known to the clients, and is not counted again.
    """
    plan = Plan(4, 4, 100, 2.0, Layout(("w",), ((d,),)), held=True)
    x, t, asked, answers = torch.ones(d), Round(plan, 1), [], []

    def ask(what, at, who="cohort", sent=None):
        means = [torch.zeros(d) if what == "grad" else torch.zeros(()) for _ in at]
        if who != "held":
            asked.extend(at if sent is None else sent.values())
            answers.extend(means)
        return means

    def answer(what, at, who="cohort", sent=None):
        return [torch.ones(d) if what == "grad" else torch.ones(()) for _ in at]

    def start(part, state):
        """What is asked once is asked in round 0."""
        return part.start_round(x, part.start_round(x, state, Round(plan, 0), answer), t, ask)

    state = start(method.server, method.server.init(x, plan))
    down = dict(method.server.down(x, state, t))
    for part in (method.direction, method.step):
        down |= part.down(start(part, part.init(x, plan)[1]))
    mean = {name: torch.zeros(d) for name in method.vectors}
    mean |= {name: torch.zeros(()) for name in method.scalars}
    method.server.step(x, mean, state, t, ask)
    sent = [*down.values(), *(mean[name] for name in method.echo), *asked]
    vectors = {id(v): v.numel() for v in sent if v.ndim}
    scalars = [v for v in sent if not v.ndim]
    return sum(vectors.values()) + len(scalars), sum(v.numel() for v in (*mean.values(), *answers))


def numbers(found, d):
    return found.vectors * d + found.scalars


@pytest.mark.parametrize("name", tf.methods.names())
def test_the_ledger_counts_what_parts_declare(name):
    dense = {"compressor": "dense"} if "compressor" in tf.methods.settings(name) else {}
    method, d = last(name, **dense), 40_000
    found = count_units(method)
    assert (numbers(found["down"], d), numbers(found["up"], d)) == declared(method, d)


def test_the_table_is_of_methods():
    assert TABLE.keys() | COMPRESSED.keys() <= set(tf.methods.names())


@pytest.mark.parametrize("name", TABLE)
def test_table(name):
    composite = "penalty" in tf.methods.settings(name)
    found = count_units(last(name, **({"penalty": "l1:1e-4"} if composite else {})))
    assert (found["down"], found["up"], found["client"], found["server"]) == TABLE[name]


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed(name):
    found = count_units(last(name))
    assert (found["down"], found["client"], found["server"]) == COMPRESSED[name]
    plain = count_units(last(name, compressor="dense"))
    assert plain["up"] == ONE
    kept, index = 2000, 16  # a twentieth of 40,000; bits of an index below that
    assert found["up"] == Units((8 + kept * 4 + kept * index / 8) / 4 / 40_000)


@pytest.mark.parametrize(
    ("settings", "down", "up"),
    [
        ({"global_loss": "server"}, S(2), S(3)),
        ({"global_loss": "server", "merge": False}, S(2), S(3)),
        ({"global_loss": "server", "solver": "exact"}, S(1), S(2)),
        ({"merge": False}, S(2), S(4)),
        ({"solver": "exact"}, S(4), S(5)),
    ],
)
def test_forms_of_lod(settings, down, up):
    found = count_units(last("fedproxwlod", **settings))
    assert (found["down"], found["up"]) == (down, up)


@pytest.mark.parametrize("name", ["parfrefl", "comparfrefl", "padamfed"])
def test_the_pass_before_round_0_is_counted_uncompressed(name):
    found = count_units(last(name))
    assert found["before"] == ONE
    assert all(
        count_units(last(n))["before"].vectors < 0.1 for n in ("fedavg", "scaffold", "feddog")
    )


@pytest.mark.parametrize("name", sorted(set(tf.methods.names()) - COMPRESSED.keys()))
def test_a_run_costs_what_the_ledger_says(name):
    """Float64, 57 parameters, everyone: the history of a real run, after round 0."""
    run = tf.fit(
        make_net(0),
        make_federation(),
        last(name),
        rounds=3,
        steps=2,
        batch=4,
        dtype=torch.float64,
        device="cpu",
        eval_every=3,
    )
    down, up = (count_units(last(name))[way] for way in ("down", "up"))
    for row in run.history[1:]:
        assert row["bytes_down"] == 8 * len(SIZES) * (57 * down.vectors + down.scalars)
        assert row["bytes_up"] == 8 * len(SIZES) * (57 * up.vectors + up.scalars)
