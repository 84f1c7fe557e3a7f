"""`tunefree flower`: the folder it writes, and what it says where Flower is missing."""

import importlib.util
import tomllib

import pytest
from examples.federation.__main__ import demo
from examples.federation.demo import load_task

from tunefree import cli
from tunefree.flower.node import Node
from tunefree.flower.payload import Payload


def command(*words):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(w) for w in words])
    return ended.value.code


@pytest.fixture
def app(tmp_path):
    assert command("flower", "new", tmp_path / "My App") == 0
    return tmp_path / "My App"


def test_the_folder(app):
    made = {str(p.relative_to(app)) for p in app.rglob("*") if p.is_file()}
    code = {f"federation/{n}.py" for n in ("__init__", "task", "server", "client")}
    assert made == {"pyproject.toml", "README.md", *code}
    for name in code:
        compile((app / name).read_text(), name, "exec")
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "federation.server:app",
        "clientapp": "federation.client:app",
    }
    server = (app / "federation/server.py").read_text()
    assert all(f'config["{key}"]' in server for key in project["tool"]["flwr"]["app"]["config"])
    readme = (app / "README.md").read_text()
    assert "NAME" not in readme
    for words in ("--insecure", "--enable-supernode-auth", "flwr supernode register", "flwr run ."):
        assert words in readme


def test_its_nodes_share_out_the_digits(app):
    task = load_task(app / "federation/task.py")
    nodes = [
        Node(task.model, task.load, {"partition-id": i, "num-partitions": 3}) for i in range(3)
    ]
    said = [node.reply(Payload({"kind": "hello"})).header for node in nodes]
    assert [header["client"] for header in said] == [0, 1, 2]
    assert sum(header["samples"] for header in said) == task.digits(3).samples


def test_a_used_folder_is_not_written_over(app, capsys):
    (app / "README.md").write_text("mine")
    assert command("flower", "new", app) == 2
    assert "must be an empty or a new folder" in capsys.readouterr().err
    assert (app / "README.md").read_text() == "mine"


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="Flower is installed")
def test_without_flower(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([], app=demo)
    assert ended.value.code == 2
    assert "pip install 'tunefree[flower]'" in capsys.readouterr().err
