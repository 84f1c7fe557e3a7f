"""What tests with a real SuperLink and SuperNodes share; minutes, run by `make test-federation`."""

CLIENTS, MINUTES = 3, 60.0


def finished(process, seconds):
    assert process.wait(seconds) == 0
