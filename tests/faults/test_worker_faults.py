"""Workers that crash, hang, run out of memory or forget: what is recorded, what goes on, what is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_run import SMALL, Host, workers_of

from attnspec.errors import EnvironmentMissingError, JournalError
from attnspec.record.journal import read_journal


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "run")


def reasons(host: Host, kernel: str) -> set[tuple[str, str]]:
    return {(row["reason_code"], row["reason"]) for row in host.rows(kernel)}


def test_everything_ok_and_then_nothing_to_do(host: Host) -> None:
    assert host.run().exit_code == 0
    host.check_complete()
    assert host.run().exit_code == 0
    assert host.measured == []
    assert len(host.resumed) == len(host.plan.cases)
    host.check_complete()


def test_a_crash_alone_hits_only_the_culprit(host: Host) -> None:
    host.behave(sdpa={"do": "signal SIGSEGV"})
    assert host.run().exit_code == 1
    assert host.statuses() == {"reference": "ok", "sdpa": "crashed"}
    ((code, reason), *_) = reasons(host, "sdpa")
    assert code == "signal"
    assert "the worker was ended by SIGSEGV while in measure of case" in reason
    host.behave()
    assert host.run().exit_code == 0
    host.check_complete()
    assert len(host.resumed) == len(host.measured) == len(host.plan.cases) // 2


def test_a_crash_in_company_only_costs_a_second_try(host: Host) -> None:
    host.behave(sdpa={"do": "exit 5", "company_only": True})
    assert host.run().exit_code == 0
    host.check_complete()
    assert sum("it is tried once more, alone" in text for text in host.told) == 4


def test_exit_codes_and_last_words_are_recorded(host: Host) -> None:
    host.behave(sdpa={"do": "exit 7", "phase": "setup"})
    host.run()
    for code, reason in reasons(host, "sdpa"):
        assert code == "exit"
        assert "the worker ended with exit code 7 while in setup of case" in reason
        # Of two streams, so their order is not known.
        words = reason.partition("its last words: ")[2].splitlines()
        assert sorted(words) == ["a library that prints to standard output", "fake worker: leaving with 7"]


def test_a_hang_is_ended_at_its_limit_and_leaves_nothing_behind(host: Host) -> None:
    """Even one that ignores SIGTERM and has a child in a session of its own."""
    host.behave(sdpa={"do": "stubborn", "attempts": 1}, reference={"do": "hang", "attempts": 1})
    assert host.run(measure_timeout_s=0.3).exit_code == 0
    host.check_complete()
    assert any("passed its limit of 0.3 s" in text for text in host.told)
    assert workers_of(host.folder.path) == []


@pytest.mark.slow
def test_a_case_that_always_hangs_times_out(tmp_path: Path) -> None:
    host = Host(tmp_path / "run", SMALL)
    host.behave(sdpa={"do": "hang", "phase": "verify"})
    assert host.run(setup_timeout_s=0.7).exit_code == 1
    assert host.statuses() == {"reference": "ok", "sdpa": "timeout"}
    assert {code for code, _ in reasons(host, "sdpa")} == {"verify"}


def test_out_of_memory_is_isolated(host: Host) -> None:
    host.behave(sdpa={"do": "oom"})
    assert host.run().exit_code == 0
    assert host.statuses() == {"reference": "ok", "sdpa": "oom"}
    assert reasons(host, "sdpa") == {("device_memory", "fake: oom")}


def test_wrong_is_a_failure_and_is_measured_anew(host: Host) -> None:
    host.behave(sdpa={"do": "wrong", "attempts": 1})
    assert host.run().exit_code == 1
    assert host.statuses() == {"reference": "ok", "sdpa": "wrong"}
    assert host.run().exit_code == 0
    host.check_complete()


def test_a_worker_that_forgets_cases(host: Host) -> None:
    host.behave(sdpa={"do": "forget", "phase": "setup"})
    assert host.run().exit_code == 1
    assert reasons(host, "sdpa") == {("lost_worker", "the worker ended without a record of this case")}


def test_a_worker_that_cannot_start_does_not_loop(host: Host) -> None:
    host.behave(start={"do": "exit 9"})
    result = host.run()
    assert result.exit_code == 1
    assert host.statuses() == {"reference": "crashed", "sdpa": "crashed"}
    assert len(list((host.folder.path / "artifacts" / "jobs").iterdir())) == 2


def test_a_worker_that_lacks_something_is_an_environment_error(host: Host) -> None:
    host.behave(start={"do": "exit 3"})
    with pytest.raises(EnvironmentMissingError, match=r"the worker of runner fake cannot start:\nfake worker: leaving"):
        host.run()
    assert host.statuses() == {"reference": "skipped", "sdpa": "skipped"}


def test_a_worker_whose_disk_is_full_ends_the_run(host: Host) -> None:
    host.behave(sdpa={"do": "full"})
    with pytest.raises(JournalError, match="fake worker: no space left for the journal"):
        host.run()
    assert read_journal(host.folder.journal).timings.num_rows > 0


def test_another_driver_is_measured_anew_and_told(host: Host) -> None:
    host.run()
    host.env["FAKE_DRIVER"] = "2"
    assert host.run().exit_code == 0
    assert len(host.measured) == len(host.plan.cases)
    assert "conditions differ from the last attempt: driver: 1 -> 2" in host.told
    host.check_complete()
    host.env["FAKE_DRIVER"] = "1"
    host.run()
    assert host.measured == []  # records of other conditions stay in the journal


def test_fresh_measures_anew_and_deletes_nothing(host: Host) -> None:
    host.run()
    rounds = host.num_rounds()
    host.run(fresh=True)
    assert len(host.measured) == len(host.plan.cases)
    assert "starting anew; what was measured before is in journal-before-1" in host.told
    assert read_journal(host.folder.path / "journal-before-1").timings.num_rows == 2 * rounds
    host.check_complete()
