"""A federation in this process: the small problem of `tf.testing`, a node for each client."""

import torch

from tunefree.flower.node import Node
from tunefree.flower.serve import serve
from tunefree.flower.settings import Settings
from tunefree.testing._problem import SIZES, make_federation, make_net

CLIENTS = len(SIZES)


class LocalTransport:
    """Carries payloads to nodes in this process; `before` and `after` may change or drop them."""

    def __init__(self, home, method=None, fed=None, clients=CLIENTS, model=None):
        self.home, self.method, self.model = home, method, model
        self.fed = make_federation() if fed is None else fed
        self.there = {100 + i: i for i in range(clients)}  # nodes have numbers of their own
        self._nodes = {}
        self.log = []  # (client, request, answer)

    def nodes(self):
        return list(self.there)

    def node(self, i):
        if i not in self._nodes:
            config = {"partition-id": i, "memory": str(self.home / str(i))}
            load = lambda config: self.fed.client(config["partition-id"])  # noqa: E731
            self._nodes[i] = Node(
                self.model or make_net, load, config, method=self.method, device="cpu"
            )
        return self._nodes[i]

    def before(self, i, payload):
        """Return the payload as it reaches client i; None if it is lost."""
        return payload

    def after(self, i, payload, answer):
        """Return the answer as it reaches the server; None if it is late."""
        return answer

    def exchange(self, payloads, seconds):
        said = {}
        for number in reversed(list(payloads)):  # the order of answers must not matter
            i, payload = self.there[number], self.before(self.there[number], payloads[number])
            if payload is None:
                continue
            try:
                answer = self.node(i).reply(payload)
            except Exception as error:
                answer = str(error)
            self.log.append((i, payload, answer))
            answer = self.after(i, payload, answer)
            if answer is not None:
                said[number] = answer
        return said

    def pause(self):
        raise AssertionError("waits for clients")


def arguments(method, **given):
    """The arguments that `fit` and `Settings` share, as `tf.testing` chooses them."""
    out = {"rounds": 3, "cohort": 4, "batch": 4, "seed": 7, "dtype": torch.float64} | given
    if method.full:
        out["cohort"] = None
    if method.step.most is not None:
        out["batch"] = None
    return out if "steps" in out else {"epochs": 1} | out


def settings(method, *, fed=None, **given):
    fed = make_federation() if fed is None else fed
    own = {
        "minimum",
        "lost",
        "wait",
        "out",
        "largest",
        "callbacks",
        "aggregate",
        "secure",
        "claim_limit",
    }
    rest = {"deadline": 1.0, "wait": 0.0} | {k: given.pop(k) for k in list(given) if k in own}
    words = arguments(method, **given)
    return Settings(
        model=make_net(),
        clients=CLIENTS,
        method=method,
        test=fed.test,
        held=fed.held,
        **words,
        **rest,
    )


def train(method, transport, **given):
    return serve(settings(method, **given), transport)
