"""`attnspec sample`: JSON as promised, a table, a picture, messages that name the option."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from attnspec.cli.sample import command
from attnspec.errors import InputError


def invoke(*arguments):
    return CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)


def test_json_has_exactly_the_promised_keys():
    content = json.loads(invoke("--seqlen", "4K", "--packs", 3, "--seed", 0, "--json").stdout)
    assert list(content) == ["seqlen", "seed", "data", "packs"]
    assert (content["seqlen"], content["seed"], content["data"]) == (4096, 0, "page")
    assert [sum(pack) for pack in content["packs"]] == [4096] * 3
    assert all(isinstance(length, int) and 1 <= length <= 1024 for pack in content["packs"] for length in pack)


def test_the_fraction_moves_the_cap():
    content = json.loads(
        invoke("--seqlen", 4096, "--packs", 3, "--seed", 0, "--max-doc-fraction", "1/2", "--json").stdout
    )
    assert 1024 < max(length for pack in content["packs"] for length in pack) <= 2048


def test_the_table(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("length,count\n0,7\n3,800\n8,100\n")
    text = invoke("--seqlen", 16, "--packs", 20, "--seed", 1, "--data", path).stdout
    lines = text.splitlines()
    assert lines[0] == f"data       {path}: 900 documents and 7 empty ones left out, 4 tokens on average"
    assert lines[1] == "sample     20 packs of 16 tokens, seed 1"
    assert lines[3] == "split      documents over 4 tokens"
    rows = {line[:24].strip(): line[24:].split() for line in lines[7:]}
    assert rows["3 to 4"][0] == "88.89%" and rows["5 to 8"][0] == "11.11%"
    assert rows["5 to 8"][1:3] == ["0", "0"]
    assert sum(float(row[2].rstrip("%")) for row in rows.values()) == pytest.approx(100, abs=0.05)


def test_shares_only_are_called_nominal():
    text = invoke("--seqlen", "8K", "--packs", 1, "--seed", 0, "--data", "prolong64k").stdout
    assert "10,000,000 documents (shares only, so a nominal number)" in text
    assert "sample     1 pack of 8K tokens" in text


def test_the_picture(tmp_path):
    path = tmp_path / "a.png"
    result = invoke("--seqlen", "8K", "--packs", 20, "--seed", 0, "--json", "--png", path)
    assert result.stderr == f"wrote {path}\n"
    assert len(json.loads(result.stdout)["packs"]) == 20
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == 1432 and int.from_bytes(content[20:24], "big") == 960


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seqlen", "64KB"], r"^--seqlen: got '64KB': unknown suffix 'KB'; allowed: a positive integer"),
        (["--seqlen", "024"], r"^--seqlen: got '024'; allowed: no leading zeros"),
        (["--max-doc-fraction", "2"], r"^--max-doc-fraction: got '2'; allowed: a share over 0 and at most 1"),
        (["--data", "pages"], r"^unknown lengths 'pages' \(did you mean 'page'\?\); allowed: page, pile"),
        (
            ["--seqlen", "1024M", "--packs", "99"],
            r"^page holds 13463214 documents with \d+ tokens, which fill 22 packs",
        ),
        (["--png", "/nowhere/a.png"], r"^--png: /nowhere/a\.png cannot be written: No such file or directory"),
    ],
)
def test_wrong_options_are_named(arguments, message):
    defaults = {"--seqlen": "4K", "--packs": "1", "--seed": "0"}
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    with pytest.raises(InputError, match=message):
        invoke(*(word for pair in (defaults | given).items() for word in pair))


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--seed", "true", "is not a valid integer"),
        ("--packs", "4K", "is not a valid integer"),
        ("--seed", "-1", "is not in the range"),
        ("--seed", str(2**63), "is not in the range"),  # nor is it in a spec's
        ("--seed", "007", "got '007'; allowed: no leading zeros"),
        ("--packs", "02", "got '02'; allowed: no leading zeros"),
        ("--packs", "0", "is not in the range"),
    ],
)
def test_seed_and_packs_must_be_numbers(option, value, what):
    arguments = {"--seqlen": "4K", "--packs": "1", "--seed": "0"} | {option: value}
    result = invoke(*(word for pair in arguments.items() for word in pair))
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr and what in result.stderr


@pytest.mark.parametrize("share", ["1/2", "0.5", "50%"])
def test_a_share_is_spelled_in_any_of_its_ways(share):
    shown = invoke("--seqlen", 4096, "--packs", 1, "--seed", 0, "--max-doc-fraction", share)
    assert shown.exit_code == 0 and "documents over 2K tokens" in shown.stdout
