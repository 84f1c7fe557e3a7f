"""The built site in a browser: its search works from a folder, and a phone is wide enough.

Needs Chromium, playwright and MkDocs: `make test-browser`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(words, cwd=ROOT, env=quiet, check=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def browser():
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with playwright.sync_playwright() as play:
        one = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def look(browser, site):
    asked, contexts = [], []

    def look_at(page, width):
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}))
        opened = contexts[-1].new_page()
        opened.on("request", lambda r: asked.append(r.url))
        opened.goto((site / page).as_uri())
        return opened

    yield look_at
    for context in contexts:
        context.close()
    assert [a for a in asked if not a.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize("width", [390, 1200])
def test_the_search_finds_a_name_in_code(look, width):
    page = look("index.html", width)
    page.locator("label.md-header__button[for=__search]").click() if width < 500 else None
    page.locator("input.md-search__input").click()
    page.keyboard.type("class_weight")
    first = page.locator(".md-search-result__item a").first
    first.wait_for(timeout=20_000)
    found = page.locator(".md-search-result__link").evaluate_all("all => all.map(a => a.href)")
    assert any("how-to/imbalance.html" in href for href in found)


PAGES = ["index", "tutorial", "catalogue", "how-to/from-flower", "how-to/imbalance", "methods/auto"]


@pytest.mark.parametrize("name", PAGES)
def test_tables_and_code_fit_a_phone(look, name):
    page = look(f"{name}.html", 390)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    wide = """all => all.filter(e => e.scrollWidth > e.clientWidth + 1).length"""
    assert page.locator("article pre > code").evaluate_all(wide) == 0  # code wraps
    columns = """all => all.filter(t => t.rows[0].cells.length < 4
      && t.getBoundingClientRect().right > 391).length"""
    assert page.locator("article table").evaluate_all(columns) == 0
