"""The apps in one process, over Flower's own messages and a grid that is not there."""

import copy

import pytest
import torch

import tunefree as tf
from flower.local import CLIENTS, arguments, settings
from tunefree.flower import client_app, server_app
from tunefree.testing._problem import make_federation, make_net

flwr = pytest.importorskip("flwr.app", reason="needs tunefree[flower]")
NAMES = tf.methods.names()


@pytest.fixture(autouse=True)
def _identity():
    """What Flower sets in the processes that it starts."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


class Grid:
    """Calls the ClientApp for each message, as SuperNodes would."""

    def __init__(self, app, home):
        self.app, self.answers = app, {}
        self.contexts = {
            1000 + i: flwr.Context(
                run_id=1,
                node_id=1000 + i,
                node_config={"partition-id": i, "memory": str(home)},
                state=flwr.RecordDict(),
                run_config={},
            )
            for i in range(CLIENTS)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(f"m{len(self.answers)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            try:
                reply = self.app(message, self.contexts[message.metadata.dst_node_id])
            except Exception as error:
                reply = flwr.Message(flwr.Error(2, str(error)), reply_to=message)
            self.answers[ids[-1]] = reply
        return ids

    def pull_messages(self, ids):
        found = [self.answers[i] for i in ids]
        return found + found  # everybody answers twice; it counts once


@pytest.mark.parametrize("name", NAMES)
def test_every_method(name, tmp_path):
    method, fed, runs = tf.methods.get(name), make_federation(), []
    server = server_app(
        lambda config: settings(
            method, out=tmp_path / "run", rounds=config["rounds"], callbacks=[runs.append]
        )
    )
    client = client_app(
        make_net, lambda config: fed.client(config["partition-id"]), method=method, device="cpu"
    )
    grid = Grid(client, tmp_path / "nodes")
    context = copy.copy(grid.contexts[1000])
    context.run_config = {"rounds": 2}
    server(grid, context)
    alone = tf.fit(
        make_net(),
        make_federation(),
        tf.methods.get(name),
        engine=tf.Engine(backend="loop", chunk=1),
        device="cpu",
        **arguments(method, rounds=2),
    )
    assert torch.equal(tf.Run.load(tmp_path / "run").x, alone.x)
    assert len(runs) == 2
