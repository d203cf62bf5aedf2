"""The documentation holds: generated tables are current and relative links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnspec.record import schema

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/**/*.md")])
GENERATED = re.compile(r"<!-- generated: attnspec\.record\.schema\.markdown\((\w+)\) -->\n(.*?)<!-- end -->", re.DOTALL)


def test_column_tables_are_current():
    """Mend with: python tests/docs/test_pages.py"""
    text = (ROOT / "docs/numbers.md").read_text()
    assert text == regenerated(text)


def regenerated(text: str) -> str:
    def table(match: re.Match[str]) -> str:
        return (
            match[0].replace(match[2], "", 1).replace("-->\n", f"-->\n{schema.markdown(getattr(schema, match[1]))}", 1)
        )

    return GENERATED.sub(table, text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


if __name__ == "__main__":
    page = ROOT / "docs/numbers.md"
    page.write_text(regenerated(page.read_text()))
