"""Spec files: encodings, places that cannot be read, overrides, lengths beside the spec."""

from __future__ import annotations

import os

import pytest

from attnspec.errors import SpecError
from attnspec.spec import load_spec, read_spec

TEXT = """\
attnspec: 1
name: small
shape: {num_heads_q: 8, num_heads_kv: 2, head_dim: 64}
sweeps:
  - level: kernel
    masks: [full, sliding_window_causal: {window: 1K}]
    seqlen: [1K, 2K]
    kernels: [reference]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return path


def problems(path, overrides=()) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_spec(path, overrides)
    assert caught.value.exit_code == 2
    return [str(problem).replace(f"{path}", "F") for problem in caught.value.problems]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["no mark", "byte-order mark"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_any_line_end_and_a_byte_order_mark_are_fine(file, mark, ends):
    expected = load_spec(file)
    file.write_bytes(mark + TEXT.replace("\n", ends).encode())
    assert load_spec(file) == expected
    assert read_spec(file).document.places[("sweeps", 0, "seqlen")].line == 7


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "F: is empty; a spec starts with `attnspec: 1`"),
        (b"\xef\xbb\xbf", "F: is empty; a spec starts with `attnspec: 1`"),
        (b"# only a comment\n---\n", "F: is empty; a spec starts with `attnspec: 1`"),
        (b"null\n", "F: is empty; a spec starts with `attnspec: 1`"),
        (TEXT.encode("utf-16"), "F:1: is UTF-16; save it as UTF-8"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "F:1: is UTF-16; save it as UTF-8"),
        (TEXT.encode("utf-32"), "F:1: is UTF-32; save it as UTF-8"),
        (TEXT.encode("utf-16-le"), "F:1: character U+0000 is not allowed in YAML"),
        ("attnspec: 1\nname: caf\xe9\n".encode("latin-1"), "F:2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        (b"\xef\xbb\xbfname: \xc3\xa9\xff\n", "F:1: byte 0xff is not UTF-8; save the file as UTF-8"),
        (b"attnspec: 1\nname: a\x00b\n", "F:2: character U+0000 is not allowed in YAML"),
        (b"- a\n", "F:1: got a list; allowed: a mapping with attnspec, name, "),
        (b"just text\n", "F:1: got 'just text'; allowed: a mapping with attnspec, name, "),
        (b"\x89PNG\r\n\x1a\n", "F:1: byte 0x89 is not UTF-8; save the file as UTF-8"),
    ],
)
def test_what_is_no_spec_is_named(file, raw, problem):
    file.write_bytes(raw)
    found = problems(file)
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_columns_count_characters_from_one(file):
    file.write_bytes(b"attnspec: 1\nname: \xc3\xa9\xff\n")
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (2, 8)


def test_places_that_cannot_be_read_are_named(tmp_path, file):
    assert problems(tmp_path) == ["F: cannot be read: Is a directory"]
    assert problems(tmp_path / "none.yaml") == ["F: cannot be read: No such file or directory"]
    assert problems(file / "below.yaml") == ["F: cannot be read: Not a directory"]
    assert problems("a\0b") == ["F: cannot be read: embedded null byte"]
    assert problems("x" * 5000) == ["F: cannot be read: File name too long"]
    if os.geteuid() != 0:
        file.chmod(0)
        assert problems(file) == ["F: cannot be read: Permission denied"]


def test_an_endless_file_ends():
    assert problems("/dev/zero") == ["F: is over 16 MiB; that is no spec"]


def test_written_form_is_shown_where_it_differs(file):
    file.write_text(TEXT.replace("name: small", "name: small\nseed: 1e3").replace("head_dim: 64", "head_dim: 0x0"))
    assert problems(file) == [
        "F:3: seed: got 1000.0; allowed: an integer (written 1e3)",
        "F:4: shape.head_dim: got 0; allowed: at least 1 (written 0x0)",
    ]


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("shape.head_dim=128", lambda spec: spec.shape.head_dim, 128),
        ("sweeps[0].seqlen=[4K, 8K]", lambda spec: spec.sweeps[0].seqlen, (4096, 8192)),
        ("sweeps.0.seqlen.1=8K", lambda spec: spec.sweeps[0].seqlen, (1024, 8192)),
        ("sweeps[0].masks[1].sliding_window_causal.window=7", lambda spec: spec.sweeps[0].masks[1].params["window"], 7),
        ("sweeps[0].masks[0]=causal", lambda spec: spec.sweeps[0].masks[0].name, "causal"),
        ("measure.min_iters=3", lambda spec: spec.measure.min_iters, 3),
        ("measure={min_iters: 4}", lambda spec: spec.measure.min_iters, 4),
        ("seed=10", lambda spec: spec.seed, 10),
        ("data.max_doc_fraction=1/2", lambda spec: str(spec.data.max_doc_fraction), "1/2"),
        ("description=a=b", lambda spec: spec.description, "a=b"),
        ("description='8'", lambda spec: spec.description, "8"),
    ],
)
def test_overrides_are_read_as_the_file_is(file, override, read, value):
    assert read(load_spec(file)) != value
    assert read(load_spec(file, [override])) == value


def test_the_last_override_wins_and_mends_the_file(file):
    file.write_text(TEXT.replace("head_dim: 64", "head_dim: &a yes").replace("name: small", "name: *a"))
    assert len(problems(file)) == 2 + 1
    file.write_text(TEXT.replace("head_dim: 64", "head_dim: yes"))
    assert load_spec(file, ["shape.head_dim=8", "shape.head_dim=16"]).shape.head_dim == 16


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("shape.head_dim", "--set shape.head_dim: allowed: path=value, such as shape.head_dim=64 or sweeps[0].seqlen=[1K, 2K]"),
        ("=5", "--set =5: allowed: path=value, such as shape.head_dim=64 or sweeps[0].seqlen=[1K, 2K]"),
        ("shape..x=5", "--set shape..x=5: allowed: path=value, such as shape.head_dim=64 or sweeps[0].seqlen=[1K, 2K]"),
        ("[0]=5", "--set [0]=5: allowed: path=value, such as shape.head_dim=64 or sweeps[0].seqlen=[1K, 2K]"),
        ("shape.head_dim=yes", "--set shape.head_dim=yes: shape.head_dim: got 'yes'; allowed: an integer"),
        ("shape.head_dim=", "--set shape.head_dim=: shape.head_dim: got null; allowed: an integer"),
        ("shape.head_dm=64", "--set shape.head_dm=64: shape.head_dm: unknown key 'head_dm' (did you mean 'head_dim'?); allowed: batch, num_heads_q, num_heads_kv, head_dim, dtype"),
        ("sweeps[3].seqlen=1K", "--set sweeps[3].seqlen=1K: sweeps has 1 items; allowed: an index from 0 to 0, got 3"),
        ("sweeps.x=1", "--set sweeps.x=1: sweeps is a list; allowed: an index from 0 to 0, got 'x'"),
        ("name.x=1", "--set name.x=1: name is 'small'; allowed: a list or a mapping"),
        ("shape.0=1", "--set shape.0=1: shape is a mapping; got 0; allowed: num_heads_q, num_heads_kv, head_dim"),
        ("seed=[1", "--set seed=[1: is not YAML: while parsing a flow sequence: expected ',' or ']', but got '<stream end>'"),
        ("seed=*a", "--set seed=*a: got an alias (*name); allowed: the value itself"),
        ("sweeps[0].seqlen=[1K, 1K]", "--set sweeps[0].seqlen=[1K, 1K]: sweeps[0].seqlen[1]: '1K' is given twice"),
        ("sweeps[0].kernels=[sdap]", "--set sweeps[0].kernels=[sdap]: sweeps[0].kernels[0]: unknown kernel: got 'sdap' (did you mean 'sdpa'?); allowed: "),
    ],
)  # fmt: skip
def test_a_wrong_override_is_named(file, override, problem):
    found = problems(file, [override])
    assert len(found) == 1
    assert found[0].startswith(problem) if problem.endswith("allowed: ") else found[0] == problem


def test_lengths_lie_beside_the_spec(file, monkeypatch, tmp_path):
    (tmp_path / "mine.csv").write_text("lo,hi,count\n1,10,5\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for written in ("mine.csv", "./mine.csv", f"{tmp_path}/mine.csv", "elsewhere/../mine.csv"):
        assert load_spec(file, [f"data.lengths={written}"]).data.lengths == f"{tmp_path.resolve()}/mine.csv"


def test_lengths_that_are_not_there_are_named(file, tmp_path):
    assert problems(file, ["data.lengths=pge"])[0].startswith(
        "--set data.lengths=pge: data.lengths: got 'pge' (did you mean 'page'?); allowed: page, "
    )
    file.write_text(TEXT + "data: {lengths: other.csv}\n")
    assert problems(file) == [f"F:9: data.lengths: no such file: {tmp_path.resolve()}/other.csv"]
    file.write_text(TEXT + "data: {lengths: other.txt}\n")
    assert problems(file)[0].startswith("F:9: data.lengths: got a file ending in '.txt'; allowed: page, ")


def test_a_later_problem_names_its_line(file):
    held = read_spec(file, ["seed=3"])
    assert str(held.problem("is no good", "sweeps", 0, "masks", 1)) == f"{file}:6: sweeps[0].masks[1]: is no good"
    assert str(held.problem("is no good", "seed")) == "--set seed=3: seed: is no good"
    assert str(held.problem("is no good", "runner")) == f"{file}:1: runner: is no good"
