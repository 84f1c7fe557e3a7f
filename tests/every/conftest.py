import pytest

from every import cases


@pytest.fixture(params=cases.METHODS)
def method(request):
    return cases.METHODS[request.param]


@pytest.fixture(params=cases.WORK)
def work(request):
    return cases.WORK[request.param]
