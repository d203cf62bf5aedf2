"""The documentation holds: generated tables are current and relative links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnspec.record import schema
from attnspec.report import probes, results, strategy_results
from attnspec.spec import reference

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/**/*.md")])
GENERATED = re.compile(
    r"<!-- generated: attnspec\.(record\.schema|report\.\w+|spec\.reference)\.(\w+)\((.*?)\) -->\n(.*?)<!-- end -->",
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
    """What a mark asks for: columns of a row class, the language of specs, or a results module on a shipped folder."""
    if module == "record.schema":
        assert function == "markdown"
        return schema.markdown(getattr(schema, arguments))
    if module == "spec.reference":
        return getattr(reference, function)(*filter(None, [arguments]))
    folder, *others = (argument.strip() for argument in arguments.split(","))
    made_by = {"report.probes": probes, "report.results": results, "report.strategy_results": strategy_results}[module]
    return getattr(made_by, function)(str(ROOT / folder), *others)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


PUBLISHED = "https://sandai-org.github.io/MagiAttention/docs/main/blog/cp_benchmark.html"


@pytest.mark.parametrize("name", ["README.md", "docs/report.md", "docs/results-h200.md"])
def test_the_published_page_is_named_and_linked_before_it_is_spoken_of(name):
    text = re.sub("^#.*", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    first = text.casefold().index("published page")
    told = text[first : first + 300]
    assert PUBLISHED in told and "Long-Context Attention Benchmark" in told
    assert "long-context page" not in text


def test_readme_prepares_for_what_it_tells_to_run():
    text = (ROOT / "README.md").read_text()
    hint, first, path = (text.index(one) for one in ("PIP_EXTRA_INDEX_URL", "nox -s bench", ".nox/bench/bin"))
    assert hint < first < path < text.index("`attnspec ")


def test_one_time_is_told_of_the_quick_suite():
    suite = (
        ("README.md", "Run the tests,"),
        ("CONTRIBUTING.md", "nox -s tests "),
        ("noxfile.py", "The quick test suite,"),
    )
    for name, before in suite:
        line = (ROOT / name).read_text().partition(before)[2].partition("\n")[0]
        assert "under two minutes on two" in line, name


def test_a_page_of_results_calls_no_other_page_the_page():
    assert not re.search(r"\bthe page\b", (ROOT / "docs/results-h200.md").read_text(), re.IGNORECASE)


if __name__ == "__main__":
    for page in MADE:
        page.write_text(regenerated(page.read_text()))
