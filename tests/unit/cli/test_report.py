"""tunefree report, tunefree watch."""

import os
import re
import signal
import sys
import urllib.request

import pytest

from helpers import start_process
from unit.report.runs import folder, run

pytestmark = pytest.mark.usefixtures("place")
MAIN = "from tunefree.cli import main; main()"


def test_report(call, tmp_path):
    for seed in (0, 1):
        folder(tmp_path / "runs" / f"a{seed}", run(seed=seed))
    code, out, _ = call("report", "runs", "--out", "sub/page.html", "--title", "A <b>")
    assert (code, out) == (0, "Written: sub/page.html\n")
    assert "<title>A &lt;b&gt;</title>" in (tmp_path / "sub" / "page.html").read_text()


def test_report_of_several_folders_has_a_default_place(call, tmp_path):
    folder(tmp_path / "a", run())
    folder(tmp_path / "b", run("auto"))
    assert call("report", "a", "b")[:2] == (0, "Written: report.html\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["report"], "report needs at least one run folder, such as runs/digits-auto-1."),
        (["report", "nowhere"], "'nowhere' is no folder."),
        (["watch", "nowhere"], "watch takes folders with runs; 'nowhere' is not a folder."),
        (["watch"], "watch takes folders with runs; 'runs' is not a folder."),
    ],
)
def test_mistakes_are_said_in_a_sentence(call, words, sentence):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert sentence in err


def test_figures_need_matplotlib(call, tmp_path, monkeypatch):
    folder(tmp_path / "a", run())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = call("report", "a", "--figures", "figures")
    assert code == 2
    assert "pip install 'tunefree[plots]'" in err
    assert not (tmp_path / "figures").exists()


def test_watch_until_ctrl_c(tmp_path):
    folder(tmp_path / "runs" / "a", run())
    words = [sys.executable, "-c", MAIN, "watch", "runs"]
    quiet = os.environ | {"NO_COLOR": "1"}
    with start_process(words, cwd=tmp_path, env=quiet) as going:
        line = going.stdout.readline()
        address = re.fullmatch(
            r"Watching at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line
        )[1]
        with urllib.request.urlopen(address + "data.json", timeout=10) as answer:
            assert b'"label":"fedavg"' in answer.read()
        going.send_signal(signal.SIGINT)
        out, err = going.communicate(timeout=20)
    assert (going.returncode, out, err) == (0, "", "Stopped watching.\n")
