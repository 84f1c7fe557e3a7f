"""Fixtures for tests of the command line."""

import pytest

from tunefree import cli


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Change to an empty folder, on a narrow terminal without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.fixture
def call(capsys):
    """Run the command in this process: (exit code, standard output, standard error)."""

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(word) for word in words])
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return run
