"""What each method sends and remembers, against the published table, number by number.

Units: vectors of d numbers and single numbers, per client and round, everyone taking part.
"""

import pytest
import torch

import tunefree as tf
from every.cases import SIZES, federation, net
from tunefree.simulation import Units, units

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
    "auto": (S(2), S(2), NONE, V(2, 4)),  # FedDuAdagrad's s too
    # down: x+ when it is probed, mu, lr, accepted?, w1, w2; up: delta, loss, |delta|^2, q, 3 probes
    "fedproxlod": (S(5), S(6), NONE, V(3, 7)),
    "fedproxwlod": (S(5), S(6), NONE, V(3, 7)),
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


def test_every_method_is_in_the_table():
    assert TABLE.keys() | COMPRESSED.keys() == set(tf.methods.names())


@pytest.mark.parametrize("name", TABLE)
def test_table(name):
    composite = "penalty" in tf.methods.settings(name)
    found = units(last(name, **({"penalty": "l1:1e-4"} if composite else {})))
    assert (found["down"], found["up"], found["client"], found["server"]) == TABLE[name]


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed(name):
    found = units(last(name))
    assert (found["down"], found["client"], found["server"]) == COMPRESSED[name]
    plain = units(last(name, compressor="dense"))
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
    found = units(last("fedproxwlod", **settings))
    assert (found["down"], found["up"]) == (down, up)


@pytest.mark.parametrize("name", ["parfrefl", "comparfrefl", "padamfed"])
def test_the_pass_before_round_0_is_counted_uncompressed(name):
    found = units(last(name))
    assert found["before"] == ONE
    assert all(units(last(n))["before"].vectors < 0.1 for n in ("fedavg", "scaffold", "feddog"))


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_run_costs_what_the_table_says(name):
    """Float64, 57 parameters, everyone: the history of a real run, after round 0."""
    run = tf.fit(
        net(0),
        federation(),
        last(name),
        rounds=3,
        steps=2,
        batch=4,
        dtype=torch.float64,
        device="cpu",
        eval_every=3,
    )
    down, up, _, _ = TABLE[name]
    for row in run.history[1:]:
        assert row["bytes_down"] == 8 * len(SIZES) * (57 * down.vectors + down.scalars)
        assert row["bytes_up"] == 8 * len(SIZES) * (57 * up.vectors + up.scalars)
