"""The template of an app."""

from pathlib import Path

from tunefree.flower.apps import write_app


def test_the_template_is_utf8_on_every_system(tmp_path, monkeypatch):
    read, asked = Path.read_text, []

    def read_text(path, encoding=None, errors=None):
        asked.append(encoding)
        return read(path, encoding, errors)

    monkeypatch.setattr(Path, "read_text", read_text)
    app = write_app(tmp_path / "my app")
    assert set(asked) == {"utf-8"}
    assert 'name = "my-app"' in read(app / "pyproject.toml", "utf-8")
