"""The examples of the documentation run, and the three tools give one answer to every question."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ["DuckDB", "Polars", "pandas"]


def questions() -> dict[str, dict[str, str]]:
    """question -> tool -> Python."""
    page = (ROOT / "docs/analysis.md").read_text()
    found: dict[str, dict[str, str]] = {}
    for question, text in re.findall(r"^## ([^\n]+\?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE):
        found[question] = dict(re.findall(r"^### (\w+)\n.*?```python\n(.*?)```", text, re.DOTALL | re.MULTILINE))
    return found


def table(answer) -> tuple[list[str], list[tuple]]:
    """Column names and rows of any of the three tools' tables."""
    if hasattr(answer, "fetchall"):
        return answer.columns, answer.fetchall()
    if hasattr(answer, "itertuples"):
        return list(answer.columns), list(answer.itertuples(index=False, name=None))
    return answer.columns, answer.rows()


def numbers(row: tuple) -> list[float]:
    """What is no text; no runner-up, say, gives null or NaN, as the tool spells it."""
    return [math.nan if value is None else value for value in row if not isinstance(value, str)]


def texts(row: tuple) -> list[str]:
    return [value for value in row if isinstance(value, str)]


def test_there_are_three_questions_with_three_answers_each():
    assert [list(tools) for tools in questions().values()] == [TOOLS] * 3


@pytest.mark.parametrize("question", questions())
def test_duckdb_polars_and_pandas_agree(question, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    answers = []
    for tool, code in questions()[question].items():
        scope: dict = {}
        exec(compile(code, f"docs/analysis.md {tool}", "exec"), scope)
        answers.append(table(scope["answer"]))
    (columns, first), *others = answers
    assert len(first) > 5
    for names, rows in others:
        assert names == columns
        assert [texts(row) for row in rows] == [texts(row) for row in first]
        for row, expected in zip(rows, first, strict=True):
            assert numbers(row) == pytest.approx(numbers(expected), nan_ok=True)
    assert columns[-1] in capsys.readouterr().out


def test_answers_make_sense(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = {}
    for question, tools in questions().items():
        scope: dict = {}
        exec(compile(tools["DuckDB"], question, "exec"), scope)
        found[question] = table(scope["answer"])[1]
    fastest, unsteady, earned = found.values()
    leads = [row[5] for row in fastest if row[5] is not None]
    assert any(lead > 1 for lead in leads)
    assert not any(lead < 1 for lead in leads)
    assert all(spread > 0.08 and -1 <= follows <= 1 for *_, spread, follows in unsteady)
    assert all(calls > 0 for *_, calls in earned)
