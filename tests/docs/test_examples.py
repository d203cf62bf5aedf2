"""The examples of the documentation run, and the three tools give one answer."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = ["mask", "seqlen", "pass", "implementation", "tflops", "lead"]


def examples(page: str) -> dict[str, str]:
    """Python blocks of a page by the heading above them."""
    found = re.findall(r"^## ([^\n]+)\n(.*?)```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return {heading: code for heading, _, code in found}


def rows(answer) -> list[tuple]:
    if hasattr(answer, "fetchall"):
        return answer.fetchall()
    return (
        list(answer[COLUMNS].itertuples(index=False, name=None))
        if hasattr(answer, "itertuples")
        else answer.select(COLUMNS).rows()
    )


def number(found: list[tuple], column: int) -> list[float]:
    """A column of numbers; a kernel without a runner-up has no lead, which the tools spell differently."""
    return [math.nan if row[column] is None else row[column] for row in found]


def test_duckdb_polars_and_pandas_agree(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    answers = {}
    for tool, code in examples("docs/analysis.md").items():
        scope: dict = {}
        exec(compile(code, f"docs/analysis.md {tool}", "exec"), scope)
        answers[tool] = rows(scope["answer"])
    assert set(answers) == {"DuckDB", "Polars", "pandas"}
    first = answers["DuckDB"]
    assert len(first) > 5
    for other in answers.values():
        assert [row[:4] for row in other] == [row[:4] for row in first]
        for column in (4, 5):
            assert number(other, column) == pytest.approx(number(first, column), nan_ok=True)
    leads = number(first, 5)
    assert any(lead > 1 for lead in leads)
    assert not any(lead < 1 for lead in leads)
    assert "implementation" in capsys.readouterr().out
