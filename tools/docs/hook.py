"""What MkDocs calls: generated pages, their navigation, equations, links out of docs/."""

import posixpath
import re

import pages
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

OUTSIDE = {  # files of the repository that have a page, too
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "measuring.md",
}
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the methods to the navigation, by family."""
    for entry in config.nav or []:
        if isinstance(entry, dict) and "Methods" in entry:
            entry["Methods"] += [
                {family: [{n: f"methods/{n}.md"} for n in names]}
                for family, names in pages.groups().items()
            ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that have no file."""
    made = pages.virtual()
    made |= {to: (pages.ROOT / path).read_text() for path, to in OUTSIDE.items()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Render equations, and turn links out of docs/ to where the site has the same."""
    lines = re.sub(r"(?:^\\\[.*\\\]\n?)+", _equations, markdown, flags=re.M)
    path = page.file.src_uri
    mirrored = next((k for k, to in OUTSIDE.items() if to == path), None)
    source = f"docs/{path}" if mirrored is None else mirrored

    def point(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        where = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = where.removeprefix("docs/") if where.startswith("docs/") else OUTSIDE.get(where)
        if inside is None:  # the site does not have it: its name is all there is to say
            return f"{words} (`{where}`)"
        return f"[{words}]({posixpath.relpath(inside, posixpath.dirname(path) or '.')}{anchor})"

    pieces = re.split(r"(^```.*?^```$)", lines, flags=re.M | re.S)
    return "".join(p if p.startswith("```") else LINK.sub(point, p) for p in pieces)


def _equations(found: re.Match[str]) -> str:
    latex = [line[2:-2] for line in found[0].strip().splitlines()]
    shown = "\n".join(convert(line, display="block") for line in latex)
    return f'<div class="equations">\n{shown}\n</div>\n'
