"""YAML 1.2 text: every trap is an error with its line, or the right value."""

from __future__ import annotations

import re

import pytest

from attnspec.spec.scalars import resolve_plain
from attnspec.spec.yaml_text import MAX_DEPTH, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, word) for word in ("yes", "no", "on", "off", "Yes", "NO", "On", "OFF", "y", "n", "tRUE")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        *((word, None) for word in ("null", "Null", "NULL", "~", "")),
        ("nULL", "nULL"),
        ("0", 0),
        ("10", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("+7", 7),
        ("-0", 0),
        ("1_000", "1_000"),
        ("1,024", "1,024"),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("1e3", 1000.0),
        ("1E+3", 1000.0),
        (".5", 0.5),
        ("0.5", 0.5),
        ("0e3", 0.0),
        ("024K", "024K"),
        ("5.", 5.0),
        ("-1.5e-3", -0.0015),
        ("1.2.3", "1.2.3"),
        ("2026-11-29", "2026-11-29"),
        ("8K", "8K"),
        ("٣", "٣"),
        ("0o8", "0o8"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("1/4", "1/4"),
        ("2%", "2%"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_plain_scalars_follow_the_core_schema(text, value):
    got = resolve_plain(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("text", ["010", "08", "0777", "00", "-05", "+024", "024.5", "00e1"])
def test_numbers_with_leading_zeros_are_refused(text):
    with pytest.raises(ValueError, match=rf"got '{re.escape(text)}'; allowed: no leading zeros .* text goes in quotes"):
        resolve_plain(text)


def test_a_thousands_separator_is_no_list_of_two():
    value, problems = read("seqlen: [1,024]\ncp_size: [1, 24]\nname: '024'\n")
    assert value == {"seqlen": [1, "024"], "cp_size": [1, 24], "name": "024"}
    (problem,) = problems
    assert problem == (
        "f.yaml:1: seqlen[1]: got '024'; allowed: no leading zeros (a comma separates two values; write 1024 or 1K, not "
        "1,024); text goes in quotes"
    )


@pytest.mark.parametrize("text", [".inf", "-.INF", "+.Inf", ".nan", ".NaN", "1e999", "-1e999", "9" * 401])
def test_numbers_that_are_no_use_are_refused(text):
    with pytest.raises(ValueError, match="finite number|401 characters"):
        resolve_plain(text)


def read(text: str) -> tuple[object, list[str]]:
    document = parse_yaml(text, "f.yaml")
    return document.value, [str(problem) for problem in document.problems]


def test_quotes_make_text_and_blocks_keep_lines():
    value, problems = read("a: \"8\"\nb: '010'\nc: |\n  x\n  y\nd: >\n  x\n  y\ne:\n")
    assert value == {"a": "8", "b": "010", "c": "x\ny\n", "d": "x y\n", "e": None}
    assert problems == []


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("a: 1\nb: 2\na: 3\na: 4\n", ["3: a: is given twice (first in line 1)", "4: a: is given twice (first in line 1)"]),
        ("x:\n  - {k: 1, k: {k: 2, k: 3}}\n", ["2: x[0].k: is given twice (first in line 2)", "2: x[0].k.k: is given twice"]),
        ("a: &x 1\nb: *x\n", ["1: a: got an anchor (&x); allowed: the value alone", "2: b: got an alias (*name); allowed: the value itself"]),
        ("a: !!python/object/apply:os.system [ls]\n", ["1: a: got the tag tag:yaml.org,2002:python/object/apply:os.system; allowed: the value alone"]),
        ("a: !!int '8'\n", ["1: a: got the tag tag:yaml.org,2002:int; allowed: the value alone"]),
        ("a: ! 8\n", ["1: a: got the tag !; allowed: the value alone"]),
        ("!foo {a: 1}\n", ["1: got the tag !foo; allowed: the value alone"]),
        ("a: 1\n---\nb: 2\n", ["2: a second document starts here; allowed: one document a file"]),
        ("%YAML 1.1\n---\na: yes\n", ["1: got YAML 1.1; allowed: YAML 1.2"]),
        ("a:\n\t- 1\n", ["2: got a tab; allowed: spaces"]),
        ("a: 1\nb: [1, 2\nc: 3\n", ["3: is not YAML: while parsing a flow sequence: expected ',' or ']', but got ':'"]),
        ("a: b: c\n", ["1: is not YAML: mapping values are not allowed here"]),
        ("a: @x\n", ["1: is not YAML: while scanning for the next token: found character '@' that cannot start any token"]),
        ("a: *nowhere\n", ["1: a: got an alias (*name); allowed: the value itself"]),
        ("1: x\ntrue: y\n~: z\n", [
            '1: got 1 as a key; allowed: text; write it in quotes: "1"',
            '2: got true as a key; allowed: text; write it in quotes: "true"',
            '3: got null as a key; allowed: text; write it in quotes: "~"',
        ]),
        ("? [a]\n: 1\n", ["1: got a list as a key; allowed: text"]),
        ("? {a: 1}\n: 1\n", ["1: got a mapping as a key; allowed: text"]),
        ("a: &x b\n*x : 1\n", ["1: a: got an anchor (&x); allowed: the value alone", "2: got an alias as a key; allowed: text"]),
        ("a: .nan\nb: [1, 1e400]\n", ["1: a: got .nan; allowed: a finite number", "2: b[1]: got 1e400, over the largest number; allowed: a finite number"]),
        ('a: "x\\0y"\n', ["1: a: holds a control character or half a surrogate pair; allowed: text"]),
        ("a: 1\nb: \x07\n", ["2: character U+0007 is not allowed in YAML"]),
        ("a: " + "[" * 65 + "]" * 65, [f"1: is nested over {MAX_DEPTH} levels deep"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_form_is_said_with_its_line(text, problems):
    assert read(text)[1] == [f"f.yaml:{problem}" for problem in problems]


def test_all_problems_of_form_come_at_once_and_the_rest_is_read():
    value, problems = read("a: *x\nb: 1\nb: 2\nc: !!str 3\nd: 4\n")
    assert value == {"a": None, "b": 1, "c": None, "d": 4}
    assert len(problems) == 3


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_nesting_of_any_depth_ends_quickly(opening):
    assert "nested over" in read(opening * 100_000)[1][0] or "as a key" in read(opening * 100_000)[1][0]


def test_aliases_that_mean_terabytes_are_not_expanded():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert all("anchor" in problem or "alias" in problem for problem in read("\n".join(lines))[1])


def test_places_are_those_of_keys_and_items():
    document = parse_yaml("a:\n  b:\n    - 1\n    -   x: 10\n", "f")
    found = {loc: (place.line, place.column, place.text) for loc, place in document.places.items()}
    assert found == {
        (): (1, 1, None),
        ("a",): (1, 1, None),
        ("a", "b"): (2, 3, None),
        ("a", "b", 0): (3, 7, "1"),
        ("a", "b", 1): (4, 9, None),
        ("a", "b", 1, "x"): (4, 9, "10"),
    }


def test_a_part_that_is_not_there_has_the_place_around_it():
    document = parse_yaml("a:\n  b: 1\n", "f")
    place = document.place(("a", "c", 0))
    assert place is not None
    assert place.line == 1
