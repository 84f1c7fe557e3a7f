"""Inputs that once came out of a reader as something else than one of our errors."""

import json

import pytest
import torch

import tunefree as tf
from tunefree.core.errors import ArgumentError, CheckpointError, DataError
from tunefree.flower import serve
from tunefree.flower.secagg_client import SecAggTerms, training_shapes
from tunefree.privacy import ProtocolClient, ProtocolError, ProtocolTerms, Secure
from tunefree.privacy.messages import KEYS, SEALED
from tunefree.training.folder import RunFolder

DEEP = "[" * 20_000
HUGE = float("inf"), 10**400
STATE = {"client": 0, "stage": "masked", "own": "", "binding": ""}
STATE |= dict.fromkeys(("seal", "mask", "seed"), "00" * 32)
STATE |= {"roster": {"0": "00" * KEYS, "1": "00" * KEYS}, "inbox": {"1": "00" * SEALED}}


@pytest.mark.parametrize(
    "odd",
    [
        {"client": float("inf")},
        {"client": -1},
        {"client": 2**32},
        {"own": "00"},
        {"roster": {"0": "00" * KEYS}},  # the inbox has somebody who is not in it
        {"roster": STATE["roster"] | {"-1": "00" * KEYS}},
        {"roster": STATE["roster"] | {"1": "00"}},
        {"inbox": {"1": "00"}},
    ],
)
def test_the_state_of_a_member(odd):
    with pytest.raises(ProtocolError, match="not the state of a member"):
        ProtocolClient.resume(ProtocolTerms(bytes(16), 2, 3), json.dumps(STATE | odd).encode())


def test_a_deep_state_of_a_member():
    with pytest.raises(ProtocolError, match="not the state of a member"):
        ProtocolClient.resume(ProtocolTerms(bytes(16), 2, 3), DEEP.encode())


@pytest.mark.parametrize("bound", [*HUGE, 5e-324, 1e-300])
def test_bounds_in_the_terms_of_a_session(bound):
    x, method = torch.zeros(2), tf.methods.get("fedavg", lr=0.1)
    shapes = training_shapes(method, x, False)
    deal = json.loads(SecAggTerms.create(Secure(), 5, shapes).to_text())
    deal["bounds"]["delta"] = bound
    with pytest.raises(DataError, match="terms of a session are damaged"):
        SecAggTerms.from_text(json.dumps(deal), method, x, False)


@pytest.mark.parametrize("name", ["people", "bits", "threshold"])
def test_numbers_in_the_terms_of_a_session(name):
    x, method = torch.zeros(2), tf.methods.get("fedavg", lr=0.1)
    shapes = training_shapes(method, x, False)
    deal = json.loads(SecAggTerms.create(Secure(), 5, shapes).to_text())
    for text in (json.dumps(deal | {name: float("inf")}), DEEP):
        with pytest.raises(DataError, match="terms of a session are damaged"):
            SecAggTerms.from_text(text, method, x, False)


def test_a_bound_whose_step_is_no_number():
    with pytest.raises(ArgumentError, match=r"Secure\(bound=\.\.\.\) must be a finite number >="):
        Secure(bound=5e-324)


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        *(f'{{"run": "0", "sizes": [5, {n}], "columns": 0}}' for n in ("Infinity", 10**30, 0, -1)),
    ],
)
def test_what_a_server_knows_of_its_nodes(text, tmp_path):
    (tmp_path / "nodes.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"nodes\.json is damaged"):
        serve._read_known(RunFolder(tmp_path), 2)
