"""Every method and several compositions: the contract of `tf.testing`, and what is ours alone."""

import signal

import pytest
import torch

import tunefree as tf
from every.cases import (
    KINDS,
    METHODS,
    SIZES,
    cover,
    first_of_families,
    parts_of,
    run_trial,
    same,
    timeless,
)
from tunefree.core.errors import Interrupted

ROUNDS = 3

# Checks that repeat whole runs. Every part is seen by those of WITH_EVERY_PART in some method, and
# one method of each family, and of each kind of memory, by all checks.
WITH_EVERY_PART = (
    tf.testing.check_batched_equals_looped,
    tf.testing.check_chunks_agree,
    tf.testing.check_order_of_clients_does_not_matter,
    tf.testing.check_crashed_and_resumed,
)
REPEATING = (
    *WITH_EVERY_PART,
    tf.testing.check_same_seed_same_bits,
    tf.testing.check_stopped_and_resumed,
)


def contract():
    """(name, check): all checks that see one run for every method, the others for some."""
    covering, full = cover(), {*first_of_families(), *KINDS}
    for name in METHODS:
        for check in tf.testing.ALL:
            some = check in WITH_EVERY_PART and name in covering
            if check not in REPEATING or some or name in full:
                yield pytest.param(name, check, id=f"{name}-{check.__name__}")


@pytest.mark.parametrize(("name", "check"), list(contract()))
def test_contract(name, check):
    check(METHODS[name])


def test_every_part_and_family_is_in_a_method_that_is_run_again():
    assert set().union(*(parts_of(METHODS[name]) for name in cover())) == set().union(
        *map(parts_of, METHODS.values())
    )
    families = {tf.methods.CATALOGUE[name].family for name in first_of_families()}
    assert families == tf.methods.FAMILIES.keys()


@pytest.mark.parametrize("name", METHODS)
def test_every_rule_of_ours_tells_its_step(name):
    (row,) = run_trial(METHODS[name], rounds=1).history
    assert {"server_step", "lr"} <= row.keys()


def ctrl_c(after):
    def press(event):
        if event.round == after:
            signal.raise_signal(signal.SIGINT)

    return press


@pytest.fixture(params=KINDS, scope="module")
def kind(request):
    return METHODS[request.param]


@pytest.fixture(scope="module")
def whole(kind):
    return run_trial(kind, rounds=ROUNDS)


@pytest.mark.parametrize("round", range(ROUNDS - 1))
def test_what_an_interrupted_run_says(kind, whole, round, tmp_path):
    with pytest.raises(Interrupted) as stopped:
        run_trial(kind, rounds=ROUNDS, out=tmp_path, callbacks=[ctrl_c(round)])
    partial = stopped.value.run
    assert (partial.status, len(partial.history)) == ("interrupted", round + 1)
    assert timeless(partial.history) == timeless(whole.history[: round + 1])
    assert str(tmp_path) in str(stopped.value)
    same(run_trial(kind, rounds=ROUNDS, out=tmp_path), whole)


def test_ctrl_c_in_the_last_round_finishes(kind, whole, tmp_path):
    same(run_trial(kind, rounds=ROUNDS, out=tmp_path, callbacks=[ctrl_c(ROUNDS - 1)]), whole)


def test_a_finished_run_is_not_trained_again(kind, whole, tmp_path):
    def refuse(event):
        raise AssertionError("trained again")

    same(run_trial(kind, rounds=ROUNDS, out=tmp_path), whole)
    same(run_trial(kind, rounds=ROUNDS, out=tmp_path, callbacks=[refuse]), whole)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == ROUNDS


def test_batched_runs_repeat_and_resume(kind, tmp_path):
    """So many local steps that the batched loss is recorded as a graph on the way."""
    many = {"engine": "vmap", "rounds": 4, "epochs": 2}
    once = run_trial(kind, **many)
    same(once, run_trial(kind, **many))
    with pytest.raises(Interrupted):
        run_trial(kind, out=tmp_path, callbacks=[ctrl_c(2)], **many)
    same(run_trial(kind, out=tmp_path, **many), once)


@pytest.mark.parametrize("option", ["I", "II"])
def test_absent_clients_keep_their_memory_on_disk(option, tmp_path):
    method = tf.methods.get("scaffold", option=option)
    before = {}
    for t in range(4):
        out = tmp_path / str(t)
        with pytest.raises(Interrupted):
            run_trial(method, cohort=2, rounds=5, out=out, callbacks=[ctrl_c(t)])
        _, tensors, _ = tf.training.folder.RunFolder(out).load_checkpoint()
        ids, rows = tensors["memory_ids"].tolist(), tensors["memory.direction.control"]
        now = dict(zip(ids, rows, strict=True))
        present = set(tf.random.cohort(7, t, len(SIZES), 2).tolist())
        assert now.keys() == before.keys() | present
        for i, row in before.items():
            assert torch.equal(now[i], row) == (i not in present)
        before = now
