"""The page in a browser: it draws, answers, and asks for nothing from elsewhere.

Needs Chromium and playwright: `make test-browser`.
"""

import csv
import io
import json
import os
import re
import shutil
import threading
import zlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tunefree.report.page import write
from tunefree.report.watch import make_server
from unit.report.runs import HOSTILE, folder, row, run

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser

TUNED = [
    {"label": "fedavg", "accuracy": 0.8, "gradients": 100, "tuning_gradients": 900, "seconds": 2},
    {"label": "auto", "accuracy": 0.9, "gradients": 110, "seconds": 3, "bytes_up": 7},
]


@pytest.fixture(scope="module")
def browser():
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with playwright.sync_playwright() as play:
        one = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def look(browser):
    """Open an address; at the end, nothing was complained about and nothing asked for."""
    complaints, asked, contexts = [], [], []

    def look_at(path, width=1280, **more):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **more))
        page = contexts[-1].new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type != "log" else None)
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("request", lambda r: asked.append(r.url))
        page.on("dialog", lambda d: complaints.append(d.message))
        page.goto(path if str(path).startswith("http") else path.as_uri())
        page.wait_for_selector("#main section")
        return page

    yield look_at
    for context in contexts:
        context.close()
    assert complaints == []
    assert [a for a in asked if not a.startswith(("file:", "data:", "http://127.0.0.1:"))] == []


def made(method, seed, rounds=12, **more):
    rows = [
        row(t, lr=0.1 + seed, server_step=1.0 + t, zeta=1.0, client_worst=0.5)
        | {"test_accuracy": 0.5 + 0.01 * t + 0.05 * seed}
        for t in range(rounds)
    ]
    return run(method, seed, history=rows, **more)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    names = ("fedavg", "scaffold", "auto")
    groups = {name: [made(name, seed) for seed in range(3)] for name in names}
    return write(groups, tmp_path_factory.mktemp("page") / "page.html", tuning=TUNED)


CHARTS = """() => [...document.querySelectorAll('#curves > .charts canvas')].map(c => {
  const d = Chart.getChart(c);
  return {
    axis: d.options.scales.x.title.text, type: d.options.scales.x.type, y: d.options.scales.y.type,
    lines: d.data.datasets.filter(s => !s.band).map(s => ({
      label: s.label, shown: !s.hidden, last: s.data.at(-1), colour: s.borderColor})),
    bands: d.data.datasets.filter(s => s.band).length};
})"""


def test_everything_is_drawn(look, page_file):
    page = look(page_file)
    ids = page.eval_on_selector_all("#main section", "all => all.map(s => s.id)")
    every = {"results", "curves", "method", "measured", "data", "bytes", "tuning", "settings"}
    assert set(ids) == every
    blank = """() => [...document.querySelectorAll('canvas')].filter(c => {
      const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      return !d.some(v => v)}).length"""
    assert page.locator("canvas").count() == 3 + 2 + 1 + 1 + 2 + 1 + 1
    assert page.evaluate(blank) == 0
    assert page.locator("#headline tbody tr").count() == 3
    assert "61.00 ± " not in page.locator("#headline").inner_text()  # 0.61 is that of seed 0 alone
    assert "66.00 ± 5.00 %" in page.locator("#headline").inner_text()


RANGES = """() => [...document.querySelectorAll('#curves > .charts canvas')].map(c => {
  const { x, y } = Chart.getChart(c).scales;
  return [x.min, x.max, y.min, y.max];
})"""


def test_axes_start_where_the_data_does(look, page_file):
    page = look(page_file)
    accuracy, loss, _ = page.evaluate(RANGES)
    assert accuracy[:2] == [1, 12]
    assert 0.48 < accuracy[2] < 0.5  # seed 0 starts at 0.5
    assert 0.71 < accuracy[3] < 0.73  # seed 2 ends at 0.71
    assert 0 < loss[2] < 1.5 / 12
    page.locator("#curves .card", has_text="Test accuracy").get_by_text("zoom").click()
    zoomed = page.evaluate(RANGES)[0]
    assert zoomed[:2] == [1, 12]
    assert 0.54 < zoomed[2] < 0.56  # round 7, the first of the second half
    assert zoomed[3] == pytest.approx(accuracy[3], abs=0.01)


def test_hidden_lines_do_not_widen_an_axis(look, tmp_path):
    low = run("low", history=[row(t) | {"test_accuracy": 0.1} for t in range(4)])
    high = run("high", history=[row(t) | {"test_accuracy": 0.9 + t / 100} for t in range(4)])
    page = look(write({"low": [low], "high": [high]}, tmp_path / "page.html"))
    assert page.evaluate(RANGES)[0][2] < 0.1
    page.locator("#legend button", has_text="low").click()
    assert page.evaluate(RANGES)[0][2] > 0.89


def test_no_line_lies_flat_on_zero(look, tmp_path):
    """A server step of hundredths beside one of ones: logarithmic until someone says otherwise."""
    groups = {
        name: [run(name, history=[row(t, server_step=s * (1 + t), lr=s2) for t in range(4)])]
        for name, s, s2 in (("auto", 0.002, 0.1), ("fedavg", 1.0, 0.2))
    }
    page = look(write(groups, tmp_path / "page.html"))
    kinds = """() => Object.fromEntries([...document.querySelectorAll('#method canvas')].map(c =>
      [c.getAttribute('aria-label'), Chart.getChart(c).options.scales.y.type]))"""
    step, lr = "Server step", "Local step size (mean over clients)"
    assert page.evaluate(kinds) == {step: "logarithmic", lr: "linear"}
    button = page.locator("#method .card", has_text=step).get_by_text("log y")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert page.evaluate(kinds)[step] == "linear"


FOUND = {
    "columns": {"against": "vs the best", "choose": "to choose", "tuning": "tuning"},
    "rows": {
        "fedavg": {
            "against": "−1.00 points (p = 0.010) *",
            "choose": "tuned: lr=0.3",
            "tuning": "900 gradients, 5 runs",
        },
        "auto": {"against": "best", "choose": "nothing", "tuning": ""},
    },
    "lines": ["* worse than auto beyond chance: fedavg."],
}


def test_verdicts_and_tuning_are_in_the_table(look, tmp_path):
    groups = {name: [made(name, s) for s in range(2)] for name in ("fedavg", "auto")}
    page = look(write(groups, tmp_path / "page.html", tuning=TUNED, comparison=FOUND))
    heads = page.locator("#headline th").all_inner_texts()
    assert heads[:5] == ["Method", "Final accuracy", "Vs the best", "To choose", "Tuning"]
    first, second = page.locator("#headline tbody tr").all()
    cells = [cell.strip() for cell in first.locator("td").all_inner_texts()]
    assert cells[0].split() == ["fedavg", "tuned"]
    assert cells[2:5] == list(FOUND["rows"]["fedavg"].values())
    assert "tuned" not in second.inner_text()
    assert page.locator("#headline .worse").count() == 1
    assert FOUND["lines"][0] in page.locator("#results").inner_text()
    names = page.locator("#legend button").all_inner_texts()
    assert names == ["fedavg (tuned)", "auto"]


def test_points_and_legend_are_clear_of_the_axes(look, page_file):
    page = look(page_file)
    gaps = page.evaluate("""() => {
      const d = Chart.getChart(document.querySelector('#tuning canvas')), a = d.chartArea;
      const points = d.data.datasets.flatMap((_, i) => d.getDatasetMeta(i).data);
      const legend = d.legend.legendHitBoxes.map(b => b.top + b.height);
      return [
        Math.min(...points.map(p => p.x - a.left)), Math.min(...points.map(p => a.right - p.x)),
        Math.min(...points.map(p => p.y - a.top)), Math.min(...points.map(p => a.bottom - p.y)),
        a.top - Math.max(...legend),
      ];
    }""")
    assert min(gaps[:4]) > 8  # a point's radius is 6
    assert gaps[4] > 10


def test_a_pane_that_scrolls_says_so(look, page_file):
    page = look(page_file, 390)
    pane = page.locator("#headline .pane")
    assert "more-right" in pane.get_attribute("class")
    page.evaluate("() => { document.querySelector('#headline .wide').scrollLeft = 1e6; }")
    page.wait_for_function(
        "() => !document.querySelector('#headline .pane').classList.contains('more-right')"
    )
    assert page.locator("#settings .pane.more-below").count() == 0
    page.get_by_text("only what differs").click()
    page.wait_for_selector("#settings .pane.more-below")
    wide = look(page_file, 1600).locator("#headline .pane")
    assert wide.get_attribute("class") == "pane"


def saved(page, choice, kind):
    with page.expect_download() as download:
        choice.select_option(kind)
    found = download.value
    return found.suggested_filename, Path(found.path()).read_bytes()


def test_figures_are_saved(look, page_file):
    page = look(page_file)
    choices = page.locator("select.save", has=page.locator("option", has_text="SVG")).all()
    assert len(choices) == 3 + 2 + 1 + 1 + 1 + 1 + 1  # the two charts of clients are one figure
    name, data = saved(page, choices[0], "SVG")
    assert name == "test-accuracy.svg"
    root = ElementTree.fromstring(data)
    space = "{http://www.w3.org/2000/svg}"
    words = [text.text for text in root.iter(f"{space}text")]
    assert words[:4] == ["Test accuracy", "fedavg", "scaffold", "auto"]
    assert {"Rounds", "12", "60 %"} <= set(words)
    drawn = [p.get("d") for p in root.iter(f"{space}path") if p.get("stroke") == "#0072b2"]
    assert [len(set(re.findall(r"[\d.]+ [\d.]+", d))) for d in drawn] == [12]  # points of a line
    filled = [p.get("fill-opacity") for p in root.iter(f"{space}path")]
    assert filled.count("0.18") == 3  # the bands
    assert b"rgba" not in data
    name, data = saved(page, choices[0], "PNG")
    assert name == "test-accuracy.png"
    assert data.startswith(b"\x89PNG")
    width = int.from_bytes(data[16:20])
    assert width == 3 * int(root.get("width"))
    assert len(set(zlib.decompress(idat(data)))) > 10  # it is not blank
    page.locator("#curves canvas").first.hover()  # still alive
    assert page.evaluate(
        "() => Chart.getChart(document.querySelector('#curves canvas')).tooltip.opacity"
    )


def idat(png):
    """The compressed pixels of a PNG."""
    at, out = 8, b""
    while at < len(png):
        size = int.from_bytes(png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            out += png[at + 8 : at + 8 + size]
        at += 12 + size
    return out


@pytest.mark.parametrize("number", range(3, 10))
def test_every_figure_is_saved(look, page_file, number):
    page = look(page_file)
    choice = page.locator("select.save", has=page.locator("option", has_text="SVG")).nth(number)
    for kind in ("SVG", "PNG"):
        _, data = saved(page, choice, kind)
        assert len(data) > 2_000
        if kind == "SVG":
            ElementTree.fromstring(data)


def test_tables_are_saved(look, page_file):
    page = look(page_file)
    choices = page.locator("select.save", has=page.locator("option", has_text="CSV")).all()
    assert len(choices) == 3
    name, data = saved(page, choices[0], "CSV")
    assert name == "results.csv"
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    assert [r["Method"] for r in rows] == ["fedavg", "scaffold", "auto"]
    assert float(rows[0]["test_accuracy"]) == pytest.approx(0.66)
    assert float(rows[0]["test_accuracy_sd"]) == pytest.approx(0.05)
    assert rows[0]["bytes_up"] == "1200"
    name, data = saved(page, choices[0], "LaTeX")
    lines = data.decode().splitlines()
    assert name == "results.tex"
    assert lines[1].startswith("\\begin{tabular}{lr")
    assert lines[2:5:2] == ["\\toprule", "\\midrule"]
    assert lines[5].startswith("fedavg & \\textbf{66.00 $\\pm$ 5.00 \\%} & ")
    assert lines[-2:] == ["\\bottomrule", "\\end{tabular}"]
    assert saved(page, choices[1], "CSV")[1].startswith(b"Method,Direction,Channel,In a run")
    assert saved(page, choices[2], "LaTeX")[1].count(b"&") > 3


def test_the_axis_is_switched_for_all(look, page_file):
    page = look(page_file)
    first = page.evaluate(CHARTS)
    assert {c["axis"] for c in first} == {"Rounds"}
    assert first[0]["lines"][0]["last"]["x"] == 12
    page.select_option("#axis", "bytes")
    second = page.evaluate(CHARTS)
    assert {c["axis"] for c in second} == {"Bytes sent, up and down"}
    assert second[0]["lines"][0]["last"]["x"] == 12 * 150
    page.select_option("#axis", "gradients")
    assert page.evaluate(CHARTS)[0]["lines"][0]["last"]["x"] == 120


def test_logarithmic_axes(look, page_file):
    page = look(page_file)
    page.click("#log-x")
    page.locator("#curves > .charts .card", has_text="Test loss").get_by_text("log y").click()
    kinds = [(c["type"], c["y"]) for c in page.evaluate(CHARTS)]
    assert kinds == [("logarithmic", y) for y in ("linear", "logarithmic", "linear")]


def test_a_click_on_a_name_hides_it(look, page_file):
    page = look(page_file)
    name = page.locator("#legend button", has_text="scaffold")
    name.click()
    assert name.get_attribute("aria-pressed") == "false"
    for chart in page.evaluate(CHARTS):
        assert {x["label"] for x in chart["lines"] if x["shown"]} == {"fedavg", "auto"}
    name.click()
    assert all(x["shown"] for c in page.evaluate(CHARTS) for x in c["lines"])


def test_bands(look, page_file):
    page = look(page_file)
    assert page.evaluate(CHARTS)[0]["bands"] == 6
    page.select_option("#band", "none")
    assert page.evaluate(CHARTS)[0]["bands"] == 0
    page.select_option("#band", "sd")
    edge = """() => Chart.getChart(document.querySelector('#curves canvas')).data.datasets
      .filter(s => s.band).slice(0, 2).map(s => s.data.at(-1).y)"""
    assert page.evaluate(edge) == pytest.approx([0.61, 0.71], abs=1e-5)


def test_the_pointer_reads_values(look, page_file):
    page = look(page_file)
    page.locator("#curves canvas").first.hover()
    read = """() => { const t = Chart.getChart(document.querySelector('#curves canvas')).tooltip;
      return [t.opacity, ...t.title, ...t.body.flatMap(b => b.lines)] }"""
    opacity, title, *lines = page.evaluate(read)
    assert opacity == 1
    assert title.startswith("Rounds: ")
    assert len(lines) == 3
    assert " to " in lines[0]


def test_rows_are_sorted(look, page_file):
    page = look(page_file)
    page.locator("#headline th", has_text="Method").click()
    page.locator("#headline th", has_text="Method").click()
    names = page.eval_on_selector_all(
        "#headline tbody tr td:first-child", "x => x.map(t => t.title)"
    )
    assert names == ["scaffold", "fedavg", "auto"]


def test_light_and_dark(look, page_file):
    back = "() => getComputedStyle(document.body).backgroundColor"
    page = look(page_file, color_scheme="dark")
    dark, colour = page.evaluate(back), page.evaluate(CHARTS)[0]["lines"][0]["colour"]
    page.click("#theme")
    assert page.evaluate(back) != dark
    assert page.evaluate(CHARTS)[0]["lines"][0]["colour"] != colour
    assert look(page_file, color_scheme="light").evaluate(back) == page.evaluate(back)


def test_settings_can_be_copied(look, page_file):
    page = look(page_file, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_text("Copy", exact=True).click()
    page.get_by_text("Copied").wait_for()
    lines = page.evaluate("() => navigator.clipboard.readText()").splitlines()
    assert lines[0] == "tunefree run --method fedavg --set lr=0.1 --rounds 3 --seed 0"
    assert len(lines) == 9
    page.get_by_text("Copy as JSON").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('{')")
    text = page.evaluate("() => navigator.clipboard.readText()")
    assert json.loads(text)["auto"]["method.name"] == "auto"


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out(look, page_file, width):
    page = look(page_file, width)
    assert page.evaluate("() => document.documentElement.scrollWidth") == width


def test_names_of_runs_are_text(look, tmp_path):
    hostile = run(HOSTILE, history=[row(0, **{HOSTILE: 1.0})], status=HOSTILE)
    hostile.settings["data"]["name"] = HOSTILE
    page = look(write({HOSTILE: [hostile]}, tmp_path / "page.html", title=HOSTILE))
    assert page.title() == page.locator("h1").inner_text() == HOSTILE
    assert page.locator("script").count() == 3
    assert HOSTILE in page.locator("#headline").inner_text()


ODD = {
    "none": {},
    "empty": {"a": [run(rounds=0, status="unfinished")]},
    "one round": {"a": [run(rounds=1)]},
    "diverged": {"a": [run(history=[row(0), row(1, test_loss=None)], status="diverged")]},
    "no test": {"a": [run(history=[{"round": t, "train_loss": 1.0} for t in range(3)])]},
    "different": {"a": [run(history=[row(0, mu=0.0)])], "b": [run(), run(seed=1, rounds=1)]},
    "many": {f"m{i}": [made(f"m{i}", s) for s in range(2)] for i in range(20)},
    "no labels": {"a": [run(data={"clients": 9, "picture": {"clients": [0], "sizes": [3]}})]},
}


def test_classes_and_clients_have_their_names(look, tmp_path):
    one = run()
    one.settings["data"]["classes"] = ["healthy", "severe"]
    one.settings["data"]["picture"]["clients"] = ["clinic a", "clinic b"]
    page = look(write({"a": [one]}, tmp_path / "page.html"))
    ticks = """() => {
      const { x, y } = Chart.getChart(document.querySelector('#data canvas')).scales;
      return [x.ticks.map(t => t.label), y.ticks.map(t => t.label)] }"""
    assert page.evaluate(ticks) == [["clinic a", "clinic b"], ["healthy", "severe"]]


def test_a_search_without_accuracy_has_no_chart(look, tmp_path):
    spent = [{"label": "a", "accuracy": None, "gradients": 9}, {"label": "b", "accuracy": 0.5}]
    page = look(write({"a": [run()]}, tmp_path / "page.html", tuning=spent))
    assert page.locator("#settings").count() == 1
    assert page.locator("#tuning").count() == 0


@pytest.mark.parametrize("kind", ODD)
def test_odd_runs(look, tmp_path, kind):
    page = look(write(ODD[kind], tmp_path / "page.html"))
    if page.locator("#log-x").count():
        page.click("#log-x")
        for button in page.get_by_text("log y").all():
            button.click()
    shown = page.evaluate(CHARTS)
    assert bool(shown) == (kind not in ("none", "empty"))
    if kind == "many":
        page.locator("#curves canvas").first.hover()
        read = "() => Chart.getChart(document.querySelector('#curves canvas')).tooltip.body.length"
        assert page.evaluate(read) == 8  # more do not fit
    looks = {(x["colour"], x["label"]) for c in shown[:1] for x in c["lines"]}
    assert len(looks) == (len(ODD[kind]) if shown else 0)


def test_a_run_that_is_going_is_followed(look, tmp_path):
    place = folder(tmp_path / "runs" / "one", made("fedavg", 0, rounds=2), checkpoint=False)
    with make_server([tmp_path / "runs"], "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        page = look(server.address)
        page.select_option("#axis", "bytes_up")
        with (place / "history.jsonl").open("a") as file:
            file.write(json.dumps(row(2)) + "\n")
        more = "() => Chart.getChart(document.querySelector('#curves canvas')).data.datasets[0]"
        page.wait_for_function(f"{more}.data.length === 3")
        assert page.evaluate(f"{more}.data.at(-1).x") == 300
        assert page.input_value("#axis") == "bytes_up"
        assert "running" in page.locator("#headline").inner_text()
        server.shutdown()


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 360, "light")],
)
def test_pictures_to_look_at(look, page_file, tmp_path, name, width, scheme):
    target = tmp_path / f"{name}.png"
    look(page_file, width, color_scheme=scheme).screenshot(path=target, full_page=True)
    assert target.stat().st_size > 20_000
    print(f"Screenshot: {target}")


def test_in_a_notebook(browser, tmp_path):
    """A result shows its table, and its page in a frame that draws by itself."""
    path = tmp_path / "cell.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{made('fedavg', 0)._repr_html_()}")
    page = browser.new_page()
    errors = []
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.goto(path.as_uri())
    page.frame_locator("iframe").locator("canvas").first.wait_for()
    assert page.locator("table").first.inner_text().startswith("method")
    assert errors == []
    page.close()
