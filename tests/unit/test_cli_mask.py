"""`attnspec mask` and `attnspec flops`: the JSON that others rely on, the text, the picture, and what is refused."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from attnspec.cli.flops import command as flops_command
from attnspec.cli.main import exit_code
from attnspec.cli.mask import command as mask_command
from attnspec.errors import InputError


def run(command, *arguments):
    result = CliRunner().invoke(command, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def printed(command, *arguments):
    return json.loads(run(command, *arguments, "--json").stdout)


def test_mask_prints_the_documented_object():
    assert printed(mask_command, "varlen_block_causal", "--docs", "3,4", "--param", "block=2") == {
        "mask": "varlen_block_causal",
        "params": {"block": 2},
        "seqlen": 7,
        "docs": [3, 4],
        "slices": [
            [0, 2, 0, 2, "full"],
            [2, 3, 0, 3, "full"],
            [3, 5, 3, 5, "full"],
            [5, 7, 3, 7, "full"],
        ],
        "area": 19,
        "density": 19 / 49,
    }


def test_mask_takes_counts_with_suffixes_and_defaults_to_one_document():
    made = printed(mask_command, "sliding_window_causal", "--seqlen", "32K", "--param", "window=1K")
    assert (made["seqlen"], made["docs"], made["params"]) == (32768, [32768], {"window": 1024})
    assert made["area"] == 33030656
    made = printed(mask_command, "varlen_full", "--docs", "1K,0K, 1.5K", "--seqlen", "2560")
    assert made["docs"] == [1024, 0, 1536]
    assert made["area"] == 1024**2 + 1536**2


def test_mask_takes_rectangles_and_rows_as_json():
    made = printed(mask_command, "causal", "--seqlen", "2", "--param", "seqlen_k=5")
    assert (made["seqlen"], made["params"], made["area"], made["density"]) == (2, {"seqlen_k": 5}, 9, 0.9)
    rows = [[0, 3, 0, 3, "causal"], [3, 6, 1, 6, "bi_causal"]]
    made = printed(mask_command, "slices", "--seqlen", "6", "--param", f"slices={json.dumps(rows)}")
    assert (made["slices"], made["area"]) == (rows, 15)


def test_mask_shows_slices_facts_and_a_picture():
    lines = run(mask_command, "sliding_window_causal", "--seqlen", "6", "--param", "window=3").stdout.splitlines()
    assert lines == [
        "sliding_window_causal(window=3)",
        "queries    6",
        "documents  1",
        "slices     2",
        "area       15",
        "density    41.6667%",
        "",
        " q_start     q_end   k_start     k_end  type",
        "       0         3         0         3  causal",
        "       3         6         1         6  bi_causal",
        "",
        "██··········",
        "████········",
        "██████······",
        "··██████····",
        "····██████··",
        "······██████",
    ]


def test_mask_cuts_long_tables_and_keeps_the_picture_small():
    lines = run(mask_command, "varlen_causal", "--docs", ",".join(["4K"] * 256)).stdout.splitlines()
    assert "queries    1048576 (1M)" in lines
    assert "... and 236 more; --json lists all" in lines
    assert len(lines) < 60
    picture = lines[-24:]
    assert {len(line) for line in picture} == {48}
    # No block is empty along the diagonal, however little of it is allowed.
    assert all(line[2 * place] != "·" for place, line in enumerate(picture))


@pytest.mark.parametrize(
    "arguments",
    [
        ("varlen_block_causal", "--docs", "3,5,0,8", "--param", "block=2"),
        ("causal", "--seqlen", "6", "--param", "seqlen_k=60"),
        ("slices", "--seqlen", "8", "--param", "slices=[]"),
        ("varlen_causal", "--docs", ",".join(["640K"] * 100)),
    ],
)
def test_mask_draws_a_picture(tmp_path, arguments):
    file = tmp_path / "mask.png"
    run(mask_command, *arguments, "--png", str(file))
    picture = imread(file)
    assert min(picture.shape[:2]) > 500
    tinted = (picture[:, :, :3].max(axis=2) - picture[:, :, :3].min(axis=2)) > 0.15
    assert tinted.any() == (arguments[0] != "slices")


def test_the_picture_has_the_tint_of_the_share_and_the_colour_of_the_type():
    from attnspec.drawing.mask_picture import mask_picture
    from attnspec.slices import AttnSlices

    slices = AttnSlices.from_rows([(0, 4, 0, 2, 0), (0, 4, 2, 4, 1)], seqlen_q=4, seqlen_k=4)
    figure = mask_picture(slices, np.array([4]), title="two", area=11)
    drawn = np.asarray(figure.axes[0].images[0].get_array())
    blue, green, white = (0, 114 / 255, 178 / 255), (0, 158 / 255, 115 / 255), (1, 1, 1)
    want = [[blue, blue, white, white]] * 2 + [[blue, blue, green, white], [blue, blue, green, green]]
    assert np.allclose(drawn, want)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("varlen_casual", "--seqlen", "8"), "unknown mask 'varlen_casual' (did you mean 'varlen_causal'?); allowed: "),
        (("causal",), "give --seqlen, --docs or both"),
        (("causal", "--seqlen", "8k"), "--seqlen: got '8k': unknown suffix 'k'; write 8K; allowed: "),
        (("causal", "--seqlen", "0"), "--seqlen: got '0'; allowed: a positive integer"),
        (("varlen_causal", "--docs", "3,-4"), "--docs: got '-4'; allowed: an integer of 0 or more, or one"),
        (("causal", "--seqlen", "024"), "--seqlen: got '024'; allowed: no leading zeros (a comma separates two values"),
        (("varlen_causal", "--docs", "1,024"), "--docs: got '024'; allowed: no leading zeros (a comma separates two"),
        (("varlen_causal", "--docs", "1,000"), "--docs: got '000'; allowed: no leading zeros (a comma separates two"),
        (("varlen_causal", "--docs", "3,,4"), "--docs: got ''; allowed: an integer of 0 or more, or one"),
        (("varlen_causal", "--docs", "3,4.5"), "--docs: got '4.5', which is 4.5 tokens; allowed: "),
        (("varlen_causal", "--docs", "3,4", "--seqlen", "8"), "document lengths sum to 7, but seqlen is 8"),
        (("varlen_causal", "--docs", "0"), "seqlen is 0; allowed: 1 or more"),
        (
            ("sliding_window", "--seqlen", "8", "--param", "window"),
            "--param: got 'window'; allowed: name=value, such as",
        ),
        (("sliding_window", "--seqlen", "8", "--param", "=3"), "--param: got '=3'; allowed: name=value, such as"),
        (
            ("sliding_window", "--seqlen", "8", "--param", "window=3", "--param", "window=4"),
            "--param: window is given twice",
        ),
        (
            ("sliding_window", "--seqlen", "8", "--param", "window=0"),
            "--param of sliding_window: window: got 0; allowed: at least 1",
        ),
        (("sliding_window", "--seqlen", "8"), "--param of sliding_window: window: is missing (Keys that a query sees"),
        (
            ("slices", "--seqlen", "8", "--param", "slices=" + "[" * 100_000),
            "--param slices: is nested too deeply",
        ),
        (
            ("slices", "--seqlen", "6", "--param", 'slices=[[0,3,0,3,"full"],[0,3,2,3,"full"]]'),
            "slices 0 [0, 3, 0, 3, full] and 1 [0, 3, 2, 3, full] overlap: both allow q=0, k=2",
        ),
        (
            ("full", "--seqlen", "4096M"),
            f"the mask allows {2**64} cells, more than int64 holds ({2**63 - 1}); use a smaller",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message):
    with pytest.raises(InputError) as caught:
        run(mask_command, *arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_refusal_comes_without_a_note_before_it(capsys):
    assert exit_code(["mask", "causal", "--docs", "1,3", "--seqlen", "8"]) == 2
    assert capsys.readouterr().err == "attnspec: document lengths sum to 4, but seqlen is 8\n"


def test_the_command_line_exits_2_with_that_line(capsys):
    assert exit_code(["mask", "causal", "--seqlen", "8k"]) == 2
    assert capsys.readouterr().err.splitlines()[0].startswith("attnspec: --seqlen: got '8k': unknown suffix 'k'")
    assert exit_code(["flops", "--mask", "full", "--seqlen", "8", "--heads-q", "x", "--head-dim", "64"]) == 2


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"^--png: .*mask\.png cannot be written: No such file or directory$"):
        run(mask_command, "full", "--seqlen", "4", "--png", str(tmp_path / "missing" / "mask.png"))


def test_flops_prints_the_documented_object_with_exact_integers():
    sizes = ("--heads-q", "2", "--head-dim", "64")
    assert printed(flops_command, "--mask", "varlen_full", "--docs", "4,12", *sizes) == {
        "area": 160,
        "fwd": 81920,
        "bwd": 204800,
        "fwd_bwd": 286720,
    }
    made = printed(flops_command, "--mask", "causal", "--seqlen", "16M", "--heads-q", "64", "--head-dim", "128")
    area = 2**24 * (2**24 + 1) // 2
    assert made == {"area": area, "fwd": 4 * area * 8192, "bwd": 10 * area * 8192, "fwd_bwd": 14 * area * 8192}
    assert made["fwd_bwd"] > 2**63
    made = printed(
        flops_command, "--mask", "full", "--seqlen", "1K", "--batch", "2", "--heads-q", "16", "--head-dim", "64"
    )
    assert (made["fwd"], made["bwd"]) == (8589934592, 21474836480)


def test_flops_prints_text():
    arguments = ("--mask", "causal", "--seqlen", "8", "--heads-q", "1", "--head-dim", "64")
    assert run(flops_command, *arguments).stdout.splitlines() == [
        "causal",
        "area        36 cells",
        "fwd       9216 FLOPs = 9.216e-09 TFLOPs",
        "bwd      23040 FLOPs = 2.304e-08 TFLOPs",
        "fwd_bwd  32256 FLOPs = 3.2256e-08 TFLOPs",
    ]


@pytest.mark.parametrize("option", ["--heads-q", "--head-dim", "--batch"])
def test_flops_refuses_sizes_with_leading_zeros(option):
    sizes = {"--heads-q": "1", "--head-dim": "64", "--batch": "1"} | {option: "010"}
    words = ("--mask", "causal", "--seqlen", "8", *(word for pair in sizes.items() for word in pair))
    result = CliRunner().invoke(flops_command, words)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': got '010'; allowed: no leading zeros" in result.stderr


@pytest.mark.parametrize("option", ["--heads-q", "--head-dim", "--batch"])
@pytest.mark.parametrize("size", ["0", "-1", "2147483648", "9" * 400])
def test_flops_refuses_sizes_that_no_tensor_has(option, size):
    sizes = {"--heads-q": "1", "--head-dim": "64", "--batch": "1"} | {option: size}
    words = ("--mask", "causal", "--seqlen", "8", *(word for pair in sizes.items() for word in pair))
    result = CliRunner().invoke(flops_command, words)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': {size} is not in the range 1<=x<=2147483647" in result.stderr


def test_a_mask_over_one_sequence_says_that_it_ignores_documents():
    result = run(mask_command, "causal", "--docs", "4,12", "--json")
    held = json.loads(result.stdout)
    assert (held["docs"], held["area"], held["params"]) == ([4, 12], 136, {})
    assert "note: mask causal is over the whole sequence, whatever the documents; masks of documents: " in result.stderr
