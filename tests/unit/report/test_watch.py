"""The server: two addresses, one machine, nothing from disk by path."""

import http.client
import json
import os
import threading

import pytest

from tunefree.core.errors import ArgumentError
from tunefree.report import watch
from tunefree.report.watch import make_server

from .runs import folder, row, run


@pytest.fixture
def place(tmp_path):
    folder(tmp_path / "runs" / "a", run(rounds=2), checkpoint=False)
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path / "runs"


@pytest.fixture
def ask(place):
    with make_server([place], "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        def get(path, method="GET", **headers):
            line = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
            line.putrequest(method, path, skip_host="Host" in headers)
            for name, text in headers.items():
                line.putheader(name, text)
            line.endheaders()
            answer = line.getresponse()
            found = answer.status, dict(answer.getheaders()), answer.read().decode()
            line.close()
            return found

        yield get
        server.shutdown()


def test_the_page(ask):
    code, headers, text = ask("/")
    assert code == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert 'data-live="2"' in text
    rules = dict(r.split(" ", 1) for r in headers["Content-Security-Policy"].split("; "))
    assert (rules["default-src"], rules["connect-src"]) == ("'none'", "'self'")
    assert rules["frame-ancestors"] == "'none'"
    assert headers["Cache-Control"] == "no-store"


def test_the_data_follow_the_files(ask, place):
    (group,) = json.loads(ask("/data.json")[2])["groups"]
    assert (group["status"], group["curves"]["test_loss"]["at"]) == ({"running": 1}, [1, 2])
    with (place / "a" / "history.jsonl").open("a") as file:
        file.write(json.dumps(row(2)) + "\n")
    (group,) = json.loads(ask("/data.json?again")[2])["groups"]
    assert group["curves"]["test_loss"]["at"] == [1, 2, 3]
    folder(place / "b", run("scaffold"))
    groups = json.loads(ask("/data.json")[2])["groups"]
    assert [g["status"] for g in groups] == [{"running": 1}, {"finished": 1}]


def test_a_run_that_stops_writing_no_longer_runs(ask, place):
    assert json.loads(ask("/data.json")[2])["groups"][0]["status"] == {"running": 1}
    os.utime(place / "a" / "history.jsonl", (1e9, 1e9))
    assert json.loads(ask("/data.json")[2])["groups"][0]["status"] == {"unfinished": 1}


def test_nothing_is_worked_out_twice(place, monkeypatch):
    asked = []
    monkeypatch.setattr(watch, "build_payload", lambda *a, **k: asked.append(1) or {})
    monitor = watch.RunMonitor([place])
    assert monitor.payload() is monitor.payload()
    assert asked == [1]


def test_a_folder_that_is_half_written_is_passed_over(ask, place):
    folder(place / "b", run("scaffold"))
    (place / "b" / "settings.json").write_text("{")
    assert [g["label"] for g in json.loads(ask("/data.json")[2])["groups"]] == ["fedavg"]


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/runs/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/secret.txt",
        "/a/history.jsonl",
        "//etc/passwd",
        "/data.json/",
        "/index.html",
        "http://127.0.0.1/",
    ],
)
def test_no_other_path(ask, path):
    code, _, text = ask(path, Host="127.0.0.1")
    assert code == 404
    assert "secret" not in text.replace("secret.txt", "")
    assert "round" not in text


@pytest.mark.parametrize(
    "host", ["evil.org", "evil.org:80", "127.0.0.1.evil.org", "localhost.x", ""]
)
def test_other_names_are_refused(ask, host):
    for path in ("/", "/data.json"):
        code, _, text = ask(path, Host=host)
        assert code == 403
        assert "round" not in text


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1234", "127.0.0.1:80", "[::1]:80"])
def test_own_names_are_answered(ask, host):
    assert ask("/data.json", Host=host)[0] == 200


def test_only_reading(ask):
    assert ask("/", "POST")[0] == ask("/", "DELETE")[0] == 501
    code, headers, text = ask("/data.json", "HEAD")
    assert (code, text) == (200, "")
    assert int(headers["Content-Length"]) > 100


def test_it_listens_on_this_machine_alone(place):
    with make_server([place], "127.0.0.1", 0) as server:
        assert server.address == f"http://127.0.0.1:{server.server_address[1]}/"
        with pytest.raises(ArgumentError, match=r"watch cannot listen on '127\.0\.0\.1', port"):
            make_server([place], "127.0.0.1", server.server_address[1])
    with pytest.raises(ArgumentError, match="watch cannot listen"):
        make_server([place], "127.0.0.1", 99_999)
