"""The compiler's folder: the user's cache, entries that cannot be loaded, the line before it."""

import os
import stat

import pytest

from tunefree.models.compiled import kept


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path)
    monkeypatch.delenv(kept.VARIABLE, raising=False)
    yield tmp_path / "compiled"
    os.environ.pop(kept.VARIABLE, None)


def test_the_first_call_uses_the_users_cache(folder, caplog, monkeypatch):
    caplog.set_level("INFO", "tunefree")
    clock = iter([0.0, 41.4, 50.0, 53.0])
    monkeypatch.setattr(kept.time, "perf_counter", lambda: next(clock))
    seen = []
    fast = kept.watch_first_call(lambda x: seen.append(os.environ[kept.VARIABLE]) or 2 * x)
    assert [fast(1), fast(2)] == [2, 4]
    assert seen[0] == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    kept.watch_first_call(abs)(1)
    first, second = caplog.messages
    assert "up to a few minutes the first time" in first
    assert second == "Compiling the clients' step (41 s the last time)."


def test_a_folder_of_the_user_is_left_alone(folder, monkeypatch, tmp_path):
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "own"))
    kept.watch_first_call(abs)(1)
    assert os.environ[kept.VARIABLE] == str(tmp_path / "own")
    assert not folder.exists()


def test_a_time_that_cannot_be_read_is_ignored(folder, caplog):
    caplog.set_level("INFO", "tunefree")
    folder.mkdir()
    (folder / kept.SECONDS).write_bytes(b"\xff soon")
    assert kept.watch_first_call(abs)(-1) == 1
    assert "first time" in caplog.text


def test_without_a_cache_the_compiler_has_its_own_folder(folder):
    folder.parent.rmdir()
    folder.parent.write_text("no folder")
    assert kept.watch_first_call(abs)(-1) == 1
    assert kept.VARIABLE not in os.environ


def test_an_entry_that_cannot_be_loaded_is_compiled_again(folder):
    folder.mkdir()
    entries, other = [folder / "b.so", folder / "c.so"], folder.parent / "c.so"
    for path in (*entries, other):
        path.write_text("cut off")

    def load(x):
        for entry in entries:
            if entry.exists():
                try:
                    raise ImportError(f"{entry}: file too short; see {folder}/../c.so")
                except ImportError as error:
                    raise RuntimeError("the backend failed") from error
        return x

    assert kept.watch_first_call(load)(3) == 3
    assert other.exists()  # outside of the folder


def test_other_errors_are_raised(folder):
    with pytest.raises(ZeroDivisionError):
        kept.watch_first_call(lambda: 1 / 0)()
    with pytest.raises(ImportError):
        kept.watch_first_call(lambda: __import__("a_module_that_is_not_there"))()
