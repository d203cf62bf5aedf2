"""The documentation holds: generated tables are current and relative links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnspec.record import schema
from attnspec.report import results, strategy_results

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/**/*.md")])
GENERATED = re.compile(
    r"<!-- generated: attnspec\.(record\.schema|report\.results|report\.strategy_results)\.(\w+)\((.*?)\) -->\n(.*?)<!-- end -->",
    re.DOTALL,
)
MADE = [page for page in PAGES if GENERATED.search(page.read_text())]


@pytest.mark.parametrize("page", MADE, ids=lambda page: page.name)
def test_generated_tables_are_current(page):
    """Mend with: python tests/docs/test_pages.py"""
    text = page.read_text()
    assert text == regenerated(text)


def regenerated(text: str) -> str:
    def table(match: re.Match[str]) -> str:
        start, end = (where - match.start() for where in match.span(4))
        return match[0][:start] + made(match[1], match[2], match[3]) + match[0][end:]

    return GENERATED.sub(table, text)


def made(module: str, function: str, arguments: str) -> str:
    """What a mark asks for: the columns of a row class, or a table of a results module on a shipped folder."""
    if module == "record.schema":
        assert function == "markdown"
        return schema.markdown(getattr(schema, arguments))
    folder, *others = (argument.strip() for argument in arguments.split(","))
    made_by = strategy_results if module == "report.strategy_results" else results
    return getattr(made_by, function)(str(ROOT / folder), *others)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


if __name__ == "__main__":
    for page in MADE:
        page.write_text(regenerated(page.read_text()))
