"""Files of document lengths: what is read, and what is refused with file, line or row, and what is allowed."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from attnspec.errors import InputError
from attnspec.sample import read_lengths
from attnspec.sample.lengths import NOMINAL_DOCUMENTS, share_out


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def bins(lengths):
    return list(zip(lengths.lo.tolist(), lengths.hi.tolist(), lengths.counts.tolist(), strict=True))


def csv_of(amounts, header="share"):
    return "lo,hi," + header + "\n" + "".join(f"{10 * i},{10 * i + 10},{a}\n" for i, a in enumerate(amounts))


def json_of(amounts):
    return json.dumps({f"[{10 * i},{10 * i + 10})": a for i, a in enumerate(amounts)})


def largest_remainder(shares):
    return share_out([Fraction(str(share)) for share in shares], NOMINAL_DOCUMENTS)


ACCEPTED = [
    [33.3, 33.3, 33.3],
    [0.2, 0.3, 0.5],
    [float(np.float32(share)) for share in (0.2, 0.3, 0.5)],
    [1],
    [100],
    [0.0, 1.0],
    [0.5, 0.4951],
    [50, 50.5],
    [1e-3, 0.999],
]
REFUSED = [
    ([50, 30], "sum to 80; allowed: 1 or 100, within 0.5 percent"),
    ([0.16, 0.05, 0.04, 0.06, 0.08, 0.21, 0.4, 0.2, 0.05, 0.04, 0.01, 0.01], "sum to 1.31"),
    ([0.5, 0.4949], "sum to 0.9949"),
    ([50, 50.51], "sum to 100.51"),
    ([0, 0], "sum to 0"),
    ([0.005, 0.004], "sum to 0.009"),
]


@pytest.mark.parametrize("shares", ACCEPTED)
@pytest.mark.parametrize("form", ["csv", "json"])
def test_shares_that_sum_to_one_or_a_hundred_are_read_exactly(write, shares, form):
    lengths = read_lengths(write(f"d.{form}", csv_of(shares) if form == "csv" else json_of(shares)))
    assert lengths.nominal and lengths.num_documents == NOMINAL_DOCUMENTS
    expected = [
        (max(10 * place, 1), 10 * place + 10, count) for place, count in enumerate(largest_remainder(shares)) if count
    ]
    assert bins(lengths) == expected


@pytest.mark.parametrize(("shares", "message"), REFUSED)
@pytest.mark.parametrize("form", ["csv", "json"])
def test_other_sums_are_refused_with_the_sum(write, shares, message, form):
    path = write(f"d.{form}", csv_of(shares) if form == "csv" else json_of(shares))
    with pytest.raises(InputError) as caught:
        read_lengths(path)
    assert str(caught.value).startswith(f"{path}: the shares {message}")


def test_largest_remainder():
    assert share_out([Fraction("33.3")] * 3, 10) == [4, 3, 3]
    assert share_out([Fraction(1, 8), Fraction(7, 8)], 8) == [1, 7]
    assert share_out([Fraction(0), Fraction(1), Fraction(0)], 5) == [0, 5, 0]
    assert sum(share_out([Fraction(1, 7)] * 7, 10**9)) == 10**9


@pytest.mark.parametrize("form", ["csv", "json"])
def test_percent_signs_divide_by_a_hundred(write, form):
    texts = ["12.5%", "87.5 %"]
    signed = read_lengths(write(f"d.{form}", csv_of(texts) if form == "csv" else json_of(texts)))
    assert signed.counts.tolist() == [NOMINAL_DOCUMENTS // 8, NOMINAL_DOCUMENTS // 8 * 7]
    mixed = write(f"m.{form}", csv_of(["12.5%", "0.875"]) if form == "csv" else json_of(["12.5%", 0.875]))
    with pytest.raises(
        InputError, match=r"m\..*: some shares have a percent sign and some have none; allowed: one way"
    ):
        read_lengths(mixed)


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        (["120", "-20"], ":3: the share is -20; allowed: 0 or more"),
        (["nan", "100"], ":2: got 'nan' as a share; allowed: a decimal number, or one with a percent sign"),
        (["inf", "1"], ":2: got 'inf' as a share"),
        (["", "1"], ":2: got '' as a share"),
        (["0.5", "half"], ":3: got 'half' as a share"),
        (["1_0", "90"], ":2: got '1_0' as a share"),
        (["1e99999999", "1"], ":2: got '1e99999999' as a share"),
        (["0x1", "1"], ":2: got '0x1' as a share"),
        (["1/2", "1/2"], ":2: got '1/2' as a share"),
    ],
)
def test_bad_shares_in_csv(write, amounts, message):
    path = write("d.csv", csv_of(amounts))
    with pytest.raises(InputError) as caught:
        read_lengths(path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"[0,10)": NaN, "[10,20)": 1}', ": entry 1 '[0,10)': got 'NaN' as a share; allowed: a decimal number"),
        ('{"[0,10)": -0.2, "[10,20)": 1.2}', ": entry 1 '[0,10)': the share is -0.2; allowed: 0 or more"),
        ('{"[0,10)": true}', ": entry 1 '[0,10)': got true as a share; allowed: a number"),
        ('{"[0,10)": null}', ": entry 1 '[0,10)': got null as a share"),
        ('{"[0,10)": [1]}', ": entry 1 '[0,10)': got a list as a share"),
        ('{"[0,10)": {}}', ": entry 1 '[0,10)': got an empty object as a share"),
        ('{"0-10": 1}', ": entry 1 '0-10': got the range '0-10'; allowed: two whole numbers in brackets"),
        ('{"[0,10)": 0.5, "[0,10)": 0.5}', ": entry 2 '[0,10)': bin [0, 10) overlaps [0, 10) of"),
        ('{"[0,10)": 0.5, "[9,20)": 0.5}', ": entry 2 '[9,20)': bin [9, 20) overlaps [0, 10) of"),
        ('{"[10,10)": 1}', ": entry 1 '[10,10)': bin [10, 10) holds no length; allowed: 0 <= lo < hi"),
        ('{"[-5,10)": 1}', ": entry 1 '[-5,10)': bin [-5, 10) holds no length; allowed: 0 <= lo < hi"),
        ("{}", ": got an empty object; allowed: an object from ranges to shares"),
        ("[1, 2]", ": got a list; allowed: an object"),
        ("3", ": got a number; allowed: an object"),
        ("null", ": got null; allowed: an object"),
        ('{"[0,10)": 1', ":1: not JSON:"),
        ("", ":1: not JSON:"),
        ('{"[0,10)": 1e999999999}', ": got '1e999999999'; allowed: a decimal number"),
        ('{"[0,10)": ' + "1" * 9999 + "}", f": got '{'1' * 57}...'; allowed: a decimal number"),
        ("[" * 100_000, ": nested too deeply; allowed: an object"),
    ],
)
def test_bad_json(write, text, message):
    path = write("d.json", text)
    with pytest.raises(InputError) as caught:
        read_lengths(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_columns_of_the_published_file(write):
    text = 'range,number,percentage(%),cumulative-percentage(%)\n"[0, 10]",30,0.2,0.2\n"[11, 50]",70,99.8,100\n'
    lengths = read_lengths(write("d.csv", text))
    assert bins(lengths) == [(1, 11, 30), (11, 51, 70)]
    assert not lengths.nominal


@pytest.mark.parametrize(
    "text",
    [
        "lo,hi,count\n1,11,30\n11,51,70\n",
        "hi,lo,count,comment\n51,11,70,x\n11,1,30,y\n",
        "min,max,documents\n1,10,30\n11,50,70\n",
        "start;end;number\n1;11;30\n11;51;70\n",
        "left\tright\tcounts\n1\t11\t30\n11\t51\t70\n",
        "\ufefflo,hi,count\r\n1,11,30\r\n\r\n11,51,70\r\n",
        ' Range , Count \n"(0, 10]", 30 \n"(10, 50]", 70.0\n',
        'bin,count,share\n"[1,11)",30,0.5\n"[11,51)",70,0.9\n',
        "lo,hi,count\n1,11,30\n11,51,70\n51,60,0\n",
    ],
)
def test_variants_of_csv_are_one_distribution(write, text):
    lengths = read_lengths(write("d.csv", text))
    assert bins(lengths) == [(1, 11, 30), (11, 51, 70)]
    assert lengths.sha256 == read_lengths(write("same.csv", "lo,hi,count\n1,11,30\n11,51,70\n")).sha256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": empty file; allowed: a column range"),
        (" \n\n", ": empty file; allowed: a column range"),
        ("lo,hi,count\n", ": no document holds a token; allowed: at least one document"),
        ("lo,hi,count\n1,5,0\n", ": no document holds a token; allowed: at least one document"),
        ("lo,hi,count\n0,1,3\n", ": no document holds a token (3 of length 0); allowed: at least one document"),
        ("1,5,3\n5,9,4\n", ":1: got the columns '1', '5', '3'; allowed: a column range"),
        ("\nlo,hi\n1,5\n", ":2: got the columns 'lo', 'hi'; allowed: a column range"),
        ("lo,hi,range,count\n1,5,x,3\n", ":1: got the columns 'lo', 'hi', 'range', 'count'; allowed"),
        ("lo,hi,number,count\n1,5,3,3\n", ":1: columns 'number' and 'count' mean the same"),
        ("lo,hi,count\n1,5\n", ":2: 2 fields; allowed: 3, as in the header"),
        ("lo,hi,count\n1,5,3,4\n", ":2: 4 fields; allowed: 3, as in the header"),
        ("lo,hi,count\n1,5,-3\n", ":2: -3 documents; allowed: 0, 1, 2 and so on"),
        ("lo,hi,count\n1,5,2.5\n", ":2: got '2.5' as a count; allowed: a whole number without separators"),
        ('lo,hi,count\n1,5,"30,254"\n', ":2: got '30,254' as a count; allowed: a whole number without separators"),
        ("lo,hi,count\n1,024,5\n", ":2: got '024'; allowed: no leading zeros (a comma separates two values"),
        ("lo,hi,count\n1,5,07\n", ":2: got '07'; allowed: no leading zeros"),
        ('range,count\n"[1,024]",5\n', ":2: got '024'; allowed: no leading zeros (a comma separates two values"),
        ("length\n5\n024\n", ":3: got '024'; allowed: no leading zeros"),
        ("lo,hi,count\n1,5,nan\n", ":2: got 'nan' as a count"),
        ("lo,hi,count\n\n5,5,3\n", ":3: bin [5, 5) holds no length; allowed: 0 <= lo < hi"),
        ("lo,hi,count\n9,5,3\n", ":2: bin [9, 5) holds no length; allowed: 0 <= lo < hi"),
        ("lo,hi,count\n-1,5,3\n", ":2: bin [-1, 5) holds no length; allowed: 0 <= lo < hi"),
        ("lo,hi,count\n1.5,5,3\n", ":2: got '1.5' as a bin's lo; allowed: a whole number"),
        ("lo,hi,count\n1,inf,3\n", ":2: got 'inf' as a bin's hi; allowed: a whole number"),
        ("min,max,count\n1,10,3\n10,20,3\n", ":3: bin [10, 21) overlaps [1, 11) of "),
        ("lo,hi,count\n20,30,3\n1,21,3\n", ":2: bin [20, 30) overlaps [1, 21) of "),
        ("lo,hi,count\n1,2000000000000,3\n", ":2: bin [1, 2000000000000) passes 2**40 tokens, the longest length"),
        ("lo,hi,count\n1,2,20000000000\n", ": over 2**34 documents; scale the counts down, or give shares"),
        ("lo,hi,count\n1,1000000000000,17000000000\n", ": over 2**62 tokens; scale the counts down, or give shares"),
        ('range,count\n"0-10",3\n', ":2: got the range '0-10'; allowed: two whole numbers in brackets"),
        ('range,count\n"[10, ]",3\n', ":2: got the range '[10, ]'; allowed: two whole numbers in brackets"),
        ('lo,hi,count\n1,5,"3\n', ":2: not CSV: "),
        ("length\n5\n-2\n", ":3: got the length -2; allowed: 0 to 2**40"),
        ("length\n5\nx\n", ":3: got 'x' as a length; allowed: a whole number"),
    ],
)
def test_bad_csv(write, text, message):
    path = write("d.csv", text)
    with pytest.raises(InputError) as caught:
        read_lengths(path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize("name", ["d.csv", "d.json"])
def test_other_encodings_are_refused(write, name):
    path = write(name, "lo,hi,count\n1,5,3\n".encode("utf-16"))
    with pytest.raises(InputError, match=r"byte 0 is not UTF-8 text; allowed: a (CSV|JSON) file in UTF-8"):
        read_lengths(path)


def test_a_bin_from_zero_holds_lengths_from_one(write):
    assert bins(read_lengths(write("d.csv", "lo,hi,count\n0,4,5\n"))) == [(1, 4, 5)]


def test_empty_documents_are_left_out_and_counted(write):
    lengths = read_lengths(write("d.csv", "length,count\n0,7\n3,5\n"))
    assert bins(lengths) == [(3, 4, 5)]
    assert lengths.num_empty == 7


LENGTHS = [3, 1, 0, 3, 8, 3]


@pytest.fixture
def column(tmp_path):
    def column(kind, **columns):
        table, path = pa.table(columns), tmp_path / f"d.{kind}"
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=2)
        elif kind == "feather":
            feather.write_feather(table, path)
        else:
            new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
            with new(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
        return path

    return column


KINDS = ["parquet", "feather", "arrow", "arrows"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [pa.int64(), pa.int32(), pa.uint16(), pa.uint64()])
def test_columns_of_every_kind_are_one_distribution(column, write, kind, dtype):
    lengths = read_lengths(column(kind, tokens=pa.array(LENGTHS, dtype), text=["x"] * 6))
    assert bins(lengths) == [(1, 2, 1), (3, 4, 3), (8, 9, 1)]
    assert lengths.num_empty == 1
    as_list = read_lengths(write("d.csv", "length\n" + "".join(f"{length}\n" for length in LENGTHS)))
    as_bins = read_lengths(write("e.csv", "lo,hi,count\n8,9,1\n1,2,1\n3,4,3\n"))
    assert lengths.sha256 == as_list.sha256 == as_bins.sha256


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"length": pa.array([3, None, 5])}, ": column 'length', row 1: null; allowed: whole numbers of 0 or more"),
        ({"length": pa.array([3, 5, -1])}, ": column 'length', row 2: got -1; allowed: 0 to 2**40 tokens"),
        ({"n": pa.array([3, 2**63], pa.uint64())}, ": column 'n', row 1: got 9223372036854775808; allowed: 0 to"),
        ({"length": pa.array([], pa.int64())}, ": column 'length' has no rows; allowed: at least one document"),
        ({"length": pa.array([0, 0])}, ": no document holds a token (2 of length 0)"),
        ({"a": pa.array([1]), "b": pa.array([2])}, ": got 'a' (int64), 'b' (int64); allowed: an integer column named"),
        ({"length": pa.array([1.5])}, ": got 'length' (double); allowed: an integer column named 'length'"),
        ({"length": pa.array([1.5]), "a": pa.array([1])}, ": got 'length' (double), 'a' (int64); allowed: an integer"),
        ({"text": pa.array(["x"])}, ": got 'text' (string); allowed: an integer column named 'length'"),
        ({"flag": pa.array([True])}, ": got 'flag' (bool); allowed: an integer column named 'length'"),
    ],
)
def test_bad_columns(column, kind, columns, message):
    path = column(kind, **columns)
    with pytest.raises(InputError) as caught:
        read_lengths(path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize("kind", KINDS)
def test_cut_and_foreign_column_files(column, kind):
    path = column(kind, length=pa.array(list(range(1000))))
    content = path.read_bytes()
    for damaged in (b"", b"not a table", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(InputError) as caught:
            read_lengths(path)
        assert str(caught.value).startswith(f"{path}: not a readable Parquet, Arrow or Feather file: ")


def test_names_that_are_nothing(tmp_path):
    with pytest.raises(InputError) as caught:
        read_lengths("pag")
    assert str(caught.value).startswith(
        "unknown lengths 'pag' (did you mean 'page'?); allowed: page, pile, prolong512k"
    )
    with pytest.raises(InputError, match=r"unknown lengths '.*d\.xlsx'; allowed: .*\.csv, \.tsv, \.json, \.parquet"):
        read_lengths(tmp_path / "d.xlsx")
    with pytest.raises(InputError, match=r"none\.csv: no such file; allowed: page, pile"):
        read_lengths(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"folder\.csv: no such file"):
        read_lengths(tmp_path / "folder.csv")
