"""Clients that answer what a test wrote down, and note what they are asked."""

import torch

from helpers import tensor
from tunefree.clients import Plan
from tunefree.core.layout import Layout
from tunefree.rounds.pool import ClientPool, NoClientsError, RoundResult

PLAN = Plan(clients=4, cohort=2, rounds=5, steps=3.0, layout=Layout(("w",), ((2,),)))
START = tensor(1.0, -2.0)
IDS = torch.tensor([2, 0])


class Written(ClientPool):
    """Answers every `train` with the next of `results`, and every query with 10 (point)."""

    def __init__(self, *results):
        self.results = list(results)
        self.trained, self.asked, self.commits = [], [], 0

    def sample_cohort(self, t):
        return IDS

    def weight_of(self, ids):
        return len(ids) / PLAN.clients

    def query(self, request, ledger):
        self.asked.append(request)
        request.count_down(len(request.ids(PLAN.clients)), ledger)
        return [10 * point for point in request.at]

    def train(self, ids, down, t, ledger):
        self.trained.append((ids.tolist(), down, t))
        result = self.results.pop(0)
        if result is None:
            raise NoClientsError({"answered": 0.0})
        ledger.send_up("delta", 16 * len(ids))
        return result

    def commit(self):
        self.commits += 1


def result(*delta, loss=0.5, fraction=None, **measured):
    return RoundResult({"delta": tensor(*delta)}, loss, measured, fraction)
