import pytest

from tunefree.models import batched

RECORDED = "oracle/test_methods.py::test_minibatches"  # with graphs, as in longer runs


@pytest.fixture(autouse=True)
def no_recording(request, monkeypatch):
    """Record no graphs of steps, which have the same bits: it takes longer than these runs."""
    if RECORDED not in request.node.nodeid:
        monkeypatch.setattr(batched, "TRACE_AFTER", 10**9)
