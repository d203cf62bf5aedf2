"""The tables of the page on specs: complete, and right for parameters of every kind."""

from __future__ import annotations

import pytest

from attnspec import catalog
from attnspec.spec import reference
from attnspec.spec.models import Data, MeasureSection, ShapeSection, Spec
from attnspec.spec.schema import SETTINGS
from attnspec.spec.sweeps import DistributedSweep, KernelSweep

SECTIONS = {
    "Spec": Spec,
    "ShapeSection": ShapeSection,
    "Data": Data,
    "KernelSweep": KernelSweep,
    "DistributedSweep": DistributedSweep,
    "MeasureSection": MeasureSection,
}


def cells(text: str) -> list[list[str]]:
    """The rows of a table, without its head."""
    return [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]


def row(text: str, name: str) -> str:
    (found,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_has_a_row_with_type_default_and_meaning(section):
    rows = cells(reference.fields(section))
    assert [one[0] for one in rows] == [f"`{name}`" for name in SECTIONS[section].about()]
    for one in rows:
        assert len(one) == 5 and one[1] and one[2] and one[4].endswith("."), one


def test_rows_say_what_the_models_allow():
    assert row(reference.fields("Spec"), "seed").split(" | ")[1:4] == ["integer", "`42`", "0 to 2^63 - 1"]
    assert row(reference.fields("Data"), "num_packs").split(" | ")[1:4] == [
        "integer", "4 (kernel), 20 (distributed)", "1 to 2^31 - 1",
    ]  # fmt: skip
    assert row(reference.fields("Data"), "max_doc_fraction").split(" | ")[1:4] == [
        "share",
        "`1/4`",
        "over 0, at most 1",
    ]
    assert row(reference.fields("MeasureSection"), "max_seconds").split(" | ")[1:4] == [
        "number", "`2`", "over 0, at most 604800",
    ]  # fmt: skip
    assert row(reference.fields("DistributedSweep"), "seqlen_per_rank").split(" | ")[1:4] == [
        "token count, or a list of them", "required", "1 to 2^62",
    ]  # fmt: skip
    assert row(reference.fields("KernelSweep"), "passes").split(" | ")[1:4] == [
        "name, or a list of them", "`[fwd, bwd]`", "`fwd`, `bwd`, `fwd_bwd`",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["masks", "kernels", "strategies"])
def test_every_plugin_has_a_row_with_its_parameters_providers_and_backends(kind):
    text = getattr(reference, kind)()
    assert [one[0] for one in cells(text)] == [f"`{name}`" for name in catalog.names(kind)]
    for name in catalog.names(kind):
        module, told = catalog.load(kind, name), row(text, name)
        for provider in getattr(module, "PROVIDERS", ()):
            assert f"`{provider.name}`" in told
        for parameter, field in catalog.param_fields(module).items():
            assert field.about.doc in told
            if parameter == "backend":
                assert all(f"`{one}`" in told for one in field.choices)
            else:
                assert f"`{parameter}` (" in told


def test_parameters_of_every_kind(toys):
    assert row(reference.kernels(), "toy_kernel") == (
        "| `toy_kernel` | a kernel with parameters of every kind; computes nothing. | `FAST`, `SLOW`: Variant. "
        "| `here`, `there` "
        "| `block` (token count, 1 to 2^62, default `128`): Tokens of a block."
        "<br>`stages` (integer, `1`, `2`, `4`, default `2`): Stages of the pipeline."
        "<br>`ratio` (number, 0 to 1, default `0.5`): Some share."
        "<br>`tiles` (list, default `[64, 64]`): Tile sizes."
        "<br>`copy` (true or false, default `false`): Named like an attribute of pydantic's models."
        "<br>`label` (text, default none): Some text. |"
    )


def test_a_strategy_says_its_kernels_and_the_variables_that_they_need():
    text = reference.strategies()
    assert "| any |" in row(text, "ulysses")
    assert "| `cudnn` |" in row(text, "te_p2p")
    assert '| `ffa`<br>`ffa_fa4` with `env: {MAGI_ATTENTION_FA4_BACKEND: "1"}` |' in row(text, "magi_attn_a2av")


def test_settings_and_axes():
    assert [one[0] for one in cells(reference.settings())] == [f"`{name}`" for name in SETTINGS]
    levels = {name: level for name, level, _ in cells(reference.excludes())}
    assert levels == {
        "`masks`": "kernel and distributed",
        "`seqlen`": "kernel",
        "`passes`": "kernel and distributed",
        "`kernels`": "kernel",
        "`cp_size`": "distributed",
        "`seqlen_per_rank`": "distributed",
        "`strategies`": "distributed",
    }


def test_spellings_are_read_and_refused_as_in_a_spec():
    counts = dict(cells(reference.spellings("counts")))
    assert (counts["`1.5K`"], counts["`8k`"], counts["`08`"]) == ("1536", "refused", "refused")
    shares = dict(cells(reference.spellings("shares")))
    assert shares["`25%`"] == shares["`0.25`"] == "1/4"
    assert shares["`125%`"] == "refused"
