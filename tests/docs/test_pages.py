"""The documentation holds: generated tables are current and relative links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnspec.drawing.look import labelled, mask_title
from attnspec.record import schema
from attnspec.report import results, strategy_results
from attnspec.report.run import open_run

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


def test_winners_at_4k_that_would_not_win_in_cycles_are_told():
    """By the tables: where the fastest case is not the one of the fewest cycles, and by how much."""
    held: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for label, row in labelled(open_run(ROOT / "data/measured/h200_kernel").cells.to_pylist()):
        if row["status"] == "ok" and row["seqlen"] == 4096:
            place = held.setdefault((mask_title(row["mask"], "{}"), row["pass"]), [])
            place.append((row["tflops"], row["tflops"] / row["sm_clock_mhz"], label))
    told = (ROOT / "docs/results-h200.md").read_text().partition("\n## Every implementation")[0]
    text = " ".join(told.rpartition("<!-- end -->")[2].split())
    behind = {}
    for place, found in held.items():
        (_, per_cycle, winner), (_, most, ahead) = max(found), max(found, key=lambda one: one[1])
        if winner != ahead:
            behind[place] = most / per_cycle - 1
            assert winner in text and ahead in text and place[0] in text
    assert len(behind) == 6 and behind.pop(("full", "fwd")) == pytest.approx(0.075, abs=5e-4)
    assert max(behind.values()) <= 0.0105


if __name__ == "__main__":
    for page in MADE:
        page.write_text(regenerated(page.read_text()))
