"""The journal gives back exactly its complete batches, wherever a file was cut, and whole rounds exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnspec.errors import JournalError
from attnspec.record.entries import Sample
from attnspec.record.journal import Journal, JournalWriter, read_journal
from attnspec.record.keys import result_key
from attnspec.record.rounds import rounds_done, whole_rounds
from attnspec.record.schema import to_table

QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
STREAMS = ("outcomes", "timings", "notes")


def sample_row(**values) -> dict:
    row = {"case_id": "c", "pack": 0, "rank": 0, "round": 0, "iteration": 0, "started_ns": 1, "elapsed_ns": 2}
    return {**row, "result_key": "k", **values}


def counts(journal: Journal) -> dict[str, int]:
    return {"outcomes": len(journal.outcomes), "timings": journal.timings.num_rows // 4, "notes": len(journal.notes)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    """A journal, and where each batch of each stream ends (the schema first)."""
    folder = tmp_path_factory.mktemp("journal")
    ends: dict[str, list[int]] = {stream: [] for stream in STREAMS}
    with JournalWriter(folder, "job-rank0", 3) as writer:
        for number in range(6):
            writer.append_outcome({"case_id": f"c{number}", "status": "ok", "kernel_names": ["a"] * number})
            writer.append_round(sample_row(round=number, iteration=iteration) for iteration in range(4))
            writer.append_note("environment", {"number": number, "text": "é" * number})
            for stream in STREAMS:
                ends[stream].append((folder / f"job-rank0-3.{stream}.arrows").stat().st_size)
    return folder, ends


@QUICK
@given(stream=st.sampled_from(STREAMS), data=st.data())
def test_a_cut_at_any_byte_gives_the_complete_batches(recorded, tmp_path: Path, stream: str, data) -> None:
    folder, ends = recorded
    near = [end + shift for end in ends[stream] for shift in (-1, 0, 1) if end + shift <= ends[stream][-1]]
    cut = data.draw(st.integers(0, ends[stream][-1]) | st.sampled_from(near))
    (tmp_path / "only-1.txt").write_text("not a journal")
    for other in tmp_path.glob("*.arrows"):
        other.unlink()
    name = f"job-rank0-3.{stream}.arrows"
    (tmp_path / name).write_bytes((folder / name).read_bytes()[:cut])
    journal = read_journal(tmp_path)
    assert counts(journal)[stream] == sum(end <= cut for end in ends[stream])
    if cut in ends[stream]:
        assert journal.damaged == ()
    elif cut > ends[stream][0]:
        assert journal.damaged == (name,)


@QUICK
@given(stream=st.sampled_from(STREAMS), data=st.data())
def test_a_tail_of_noise_or_zeros_keeps_what_was_complete(recorded, tmp_path: Path, stream: str, data) -> None:
    """A power cut may leave blocks of zeros, or old blocks, where the file was growing."""
    folder, ends = recorded
    keep = data.draw(st.integers(0, len(ends[stream]) - 1))
    tail = data.draw(st.binary(min_size=1, max_size=64) | st.just(b"\0" * 4096))
    name = f"job-rank0-3.{stream}.arrows"
    (tmp_path / name).write_bytes((folder / name).read_bytes()[: ends[stream][keep]] + tail)
    assert counts(read_journal(tmp_path))[stream] == keep + 1


rounds = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(1, 3), st.sampled_from([(0,), (1,), (0, 1), (1, 0)])),
    max_size=12,
)


@QUICK
@given(written=rounds)
def test_every_whole_round_counts_once(written: list[tuple[int, int, int, tuple[int, ...]]]) -> None:
    """Against a plain model: (pack, round) counts from its first attempt in which both ranks are there."""
    held = [
        Sample(**sample_row(pack=pack, round=number, rank=rank, iteration=iteration), attempt=attempt)
        for pack, number, attempt, ranks in written
        for rank in ranks
        for iteration in range(3)
    ]
    present: dict[tuple[int, int], dict[int, set[int]]] = {}
    for pack, number, attempt, ranks in written:
        present.setdefault((pack, number), {}).setdefault(attempt, set()).update(ranks)
    expected = {
        (pack, number, min(attempt for attempt, ranks in tries.items() if ranks == {0, 1}))
        for (pack, number), tries in present.items()
        if {0, 1} in tries.values()
    }
    whole = whole_rounds(to_table(Sample, held), {"c": 2}).to_pylist()
    assert {(row["pack"], row["round"], row["attempt"]) for row in whole} == expected
    assert len(whole) == 6 * len(expected)
    done = rounds_done(to_table(Sample, held), {"c": 2})
    for pack in (0, 1):
        numbers = {number for mine, number, _ in expected if mine == pack}
        count = next(number for number in range(6) if number not in numbers)
        assert done.get("k", {}).get(str(pack), 0) == count


def test_ranks_that_journaled_other_iterations_make_no_whole_round() -> None:
    held = [
        Sample(**sample_row(rank=rank, iteration=iteration), attempt=1)
        for rank, iteration in [(0, 0), (0, 1), (1, 0), (1, 2)]
    ]
    assert whole_rounds(to_table(Sample, held), {"c": 2}).num_rows == 0


def test_two_writers_of_one_name_and_attempt_are_refused(tmp_path: Path) -> None:
    """Streams of two processes in one file would be unreadable from the second schema on."""
    with JournalWriter(tmp_path, "job-rank0", 1) as first, JournalWriter(tmp_path, "job-rank0", 1) as second:
        first.append_note("n", {"writer": 1})
        with pytest.raises(JournalError, match="exists already: two writers share one name and attempt$"):
            second.append_note("n", {"writer": 2})
        first.append_note("n", {"writer": 1})
    with JournalWriter(tmp_path, "job-rank0", 2) as third:
        third.append_note("n", {"writer": 3})
    journal = read_journal(tmp_path)
    assert [note.data["writer"] for note in journal.notes] == [1, 1, 3]
    assert journal.damaged == ()


def test_a_result_key_covers_conditions_and_nothing_else() -> None:
    base = {
        "case_id": "c",
        "image_id": None,
        "provider_versions": {"torch": "2.11", "flash-attn": "2.8"},
        "driver": "1",
        "device_model": "d",
        "variables": {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1"},
    }
    key = result_key(**base)
    assert key == result_key(**{**base, "provider_versions": {"flash-attn": "2.8", "torch": "2.11"}})
    assert key == result_key(**{**base, "variables": dict(reversed(base["variables"].items()))})
    changes = {
        "case_id": "e",
        "image_id": "sha256:1",
        "provider_versions": {"torch": "2.12", "flash-attn": "2.8"},
        "driver": "2",
        "device_model": "f",
        "variables": {"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "1"},
    }
    others = {result_key(**{**base, name: value}) for name, value in changes.items()}
    assert len({key, *others}) == 7


def test_a_note_that_is_no_json_any_more_is_left_out(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, "job-rank0", 1) as writer:
        for number in range(3):
            writer.append_note("environment", {"number": number})
    (path,) = tmp_path.glob("*.notes.arrows")
    path.write_bytes(path.read_bytes().replace(b'"number": 1', bytes(11)))
    journal = read_journal(tmp_path)
    assert [note.data["number"] for note in journal.notes] == [0, 2]
    assert journal.damaged == (path.name,)
