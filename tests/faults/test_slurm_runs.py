"""Runs on Slurm's stand-ins: everything that becomes of jobs, on one machine, with the fake worker."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from fake_run import SMALL, SPEC, Host, plan_of, workers_of

from attnspec.errors import EnvironmentMissingError, LockedError
from attnspec.launch import slurm_judgement, slurm_run, slurm_submissions
from attnspec.launch.found import UNSEEN
from attnspec.launch.happenings import CaseEnded, Happening, Said
from attnspec.launch.place import Place
from attnspec.launch.run import Order, RunResult, run_plan
from attnspec.launch.run_lock import holder, mark_cancelled
from attnspec.launch.runner_profile import Runner, read_runner
from attnspec.launch.slurm_cluster import Cluster
from attnspec.launch.slurm_order import SubmissionFolder
from attnspec.launch.slurm_submissions import cancel_run, forbid_submissions, standings
from attnspec.plan import job_request
from attnspec.plan.requests import narrowed

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes" / "slurm"))
import programs

pytestmark = pytest.mark.slow

RUNNER = "launcher: slurm\ngpus_per_node: 1\ndevice: {type: cpu}\nslurm: {partition: main, time: '10'}\n"


class SlurmHost(Host):
    """A run folder on a cluster of stand-ins."""

    def __init__(self, folder: Path, spec: str = SMALL, runner: str = RUNNER) -> None:
        super().__init__(folder, spec)
        self.cluster = folder.parent / "cluster"
        self.cluster.mkdir()
        self.profile = folder.parent / "cluster.yaml"
        self.profile.write_text(runner)
        self.heard = lambda happening: None

    def runner(self) -> Runner:
        read = read_runner(self.profile)
        return read.model_copy(update={"env": dict(self.env)})

    def run(self, *, fresh: bool = False) -> RunResult:
        self.told, self.measured, self.resumed = [], [], []

        def heard(happening: Happening) -> None:
            if isinstance(happening, Said):
                self.told.append(happening.text)
            elif isinstance(happening, CaseEnded):
                (self.resumed if happening.resumed else self.measured).append(happening.case.case_id)
            self.heard(happening)

        place = Place(
            runner=self.runner(), python=str(self.cluster / "bin" / "interpreter"), found=UNSEEN, device="cpu"
        )
        order = Order(spec_text=self.spec, spec_sha256="0", argv=("attnspec", "run"), fresh=fresh)
        return run_plan(plan_of(self.spec), self.folder, place, order, heard)

    def calls(self, program: str) -> list[list[str]]:
        file = self.cluster / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == program]

    def behave_cluster(self, **behaviour: object) -> None:
        (self.cluster / "behaviour.json").write_text(json.dumps(behaviour))

    def submissions(self) -> list[dict]:
        files = (self.folder.path / "artifacts" / "slurm").glob("*/submission.json")
        return sorted((json.loads(file.read_text()) for file in files), key=lambda one: one["number"])

    def when(self, part: str, act, times: int = 1) -> None:
        """Do something when the run tells of it."""
        left = [times]

        def heard(happening: Happening) -> None:
            if isinstance(happening, Said) and part in happening.text and left[0]:
                left[0] -= 1
                act(happening.text.split()[2])

        self.heard = heard


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmHost:
    host = SlurmHost(tmp_path / "it's a run, 50%")
    bin_ = programs.install(host.cluster / "bin")
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(host.cluster))
    monkeypatch.setattr(slurm_run, "POLL_S", 0.3)
    monkeypatch.setattr(slurm_run, "LISTEN_S", 0.05)
    monkeypatch.setattr(slurm_run, "AGAIN_S", 0.3)
    return host


def test_a_narrowed_request_is_the_request_for_fewer_cases() -> None:
    plan = plan_of(SPEC)
    (job,) = plan.jobs
    cases = [case.case_id for case in job.cases]
    base = {"run_dir": "/r", "device": "cpu", "env": {"A": "1"}, "plugins": ("/p.py",), "code_sha256": "0"}
    full = job_request(plan, job, attempt=1, **base)
    for only, solo in ((cases, ()), (cases[:3], ()), (cases[4:], (cases[4],)), ((), ()), (cases[:1], (cases[0],))):
        more = {"solo": tuple(solo), "done": ("k",), "rounds_done": {"k": {"0": 2}}}
        expected = job_request(plan, job, attempt=7, only=frozenset(only), **base)
        anchor = next((case_id for case_id in only if case_id not in solo), None)
        expected = dataclasses.replace(expected, **more, anchor=anchor)
        assert narrowed(full, attempt=7, only=frozenset(only), **more) == expected


def test_a_job_is_submitted_once_and_not_again_for_what_is_ok(host: SlurmHost) -> None:
    assert host.run().exit_code == 0
    host.check_complete()
    (argv,) = host.calls("sbatch")
    assert {"--nodes=1", "--ntasks=1", "--partition=main", "--time=10", "--requeue", "--chdir=/"} <= set(argv)
    assert not any(word.startswith("--gres") for word in argv)
    (submission,) = host.submissions()
    assert (submission["slurm_id"], submission["ended"]) == (1, "done")
    assert "submitted as Slurm job 1" in host.told
    assert host.run().exit_code == 0
    assert len(host.calls("sbatch")) == 1
    assert (host.measured, len(host.resumed)) == ([], len(host.plan.cases))
    assert workers_of(host.folder.path) == []


def test_under_other_variables_jobs_are_submitted_again_and_their_workers_look(host: SlurmHost) -> None:
    assert host.run().exit_code == 0
    host.env["NCCL_ALGO"] = "Tree"
    assert host.run().exit_code == 0
    assert "conditions differ from the last run: variables.NCCL_ALGO: unset -> Tree" in host.told
    assert len(host.calls("sbatch")) == 2
    assert host.run().exit_code == 0
    assert len(host.calls("sbatch")) == 2


def test_a_host_that_dies_right_after_submitting_finds_its_job_by_name(
    host: SlurmHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DiedError(Exception):
        pass

    def submit(self: Cluster, argv: list[str]) -> int:
        ask(self, argv)
        raise DiedError

    ask = Cluster.submit
    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "submit", submit)
        with pytest.raises(DiedError):
            host.run()
    assert "slurm_id" not in host.submissions()[0]
    host.behave_cluster(accounting=False)  # so that states come from scontrol
    assert host.run().exit_code == 0
    assert "taking up Slurm job 1, which an earlier run submitted" in host.told
    assert len(host.calls("sbatch")) == 1
    host.check_complete()


def test_a_flag_that_sbatch_refuses_is_told_with_where_it_stands(host: SlurmHost) -> None:
    host.profile.write_text(RUNNER.replace("time: '10'", "time: '10', extra: ['--exclusive', '--nosuch=1']"))
    host.behave_cluster(sbatch="unrecognized option '--nosuch'")
    with pytest.raises(EnvironmentMissingError) as caught:
        host.run()
    where = f"slurm.extra in {host.profile} gives --nosuch=1"
    assert str(caught.value) == f"sbatch failed: unrecognized option '--nosuch'; {where}"


def test_what_sbatch_says_is_told_and_the_submission_never_starts(host: SlurmHost) -> None:
    host.behave_cluster(sbatch="Batch job submission failed: Invalid account or account/partition combination")
    with pytest.raises(EnvironmentMissingError, match=r"sbatch failed: Batch job submission failed: Invalid account"):
        host.run()
    host.behave_cluster()
    assert host.run().exit_code == 0
    assert [one["ended"] for one in host.submissions()] == ["never submitted", "done"]
    (first,) = host.folder.path.glob("artifacts/slurm/*-1")
    assert str((first / "claim-0").readlink()) == "void"


def test_a_lost_node_costs_a_submission_and_no_round_twice(host: SlurmHost) -> None:
    host.env["FAKE_ROUND_S"] = "0.1"
    host.when("runs on", lambda job: (programs.time.sleep(0.6), programs.end(job, "NODE_FAIL")))
    assert host.run().exit_code == 0
    assert "Slurm job 1 ended (NODE_FAIL); submitting what is left" in host.told
    assert [one["ended"] for one in host.submissions()] == ["resubmit", "done"]
    host.check_complete()


def test_a_requeued_job_goes_on_under_its_own_number(host: SlurmHost) -> None:
    host.env["FAKE_ROUND_S"] = "0.1"
    host.when("runs on", lambda job: (programs.time.sleep(0.6), programs.end(job, "REQUEUED")))
    assert host.run().exit_code == 0
    assert host.told.count("Slurm job 1 runs on n[1-2]") == 2
    assert len(host.submissions()) == 1
    host.check_complete()


def test_jobs_in_which_attnspec_cannot_start_are_nobodys_outcome(host: SlurmHost) -> None:
    host.profile.write_text(f"{RUNNER}options: {{host_python: /nowhere/python}}\n")
    with pytest.raises(EnvironmentMissingError, match=r"(?s)slurm.log ends: .*/nowhere/python.*options.host_python"):
        host.run()
    assert {row["status"] for row in host.rows()} == {"skipped"}


def test_ranks_that_srun_does_not_start_are_nobodys_outcome(host: SlurmHost) -> None:
    host.behave_cluster(unknown=["input"])
    told = r"(?s)Slurm job 1 of runner cluster cannot run:\nthe worker could not be started: srun: unrecognized option "
    with pytest.raises(EnvironmentMissingError, match=told + r"'--input=all'\nthe runner's python .* on every node"):
        host.run()
    assert {row["status"] for row in host.rows()} == {"skipped"}
    assert len(host.submissions()) == 1
    (standing,) = standings(host.folder.path).values()
    assert (standing.state, standing.live) == ("could not run", False)
    assert standing.reason == "the worker could not be started: srun: unrecognized option '--input=all'"


def test_an_interpreter_that_no_node_has_is_nobodys_outcome(host: SlurmHost) -> None:
    (host.cluster / "bin" / "interpreter").unlink()
    with pytest.raises(EnvironmentMissingError, match=r"(?s)execve\(\): .*/interpreter: No such file.* on every node"):
        host.run()
    assert {row["status"] for row in host.rows()} == {"skipped"}


def test_a_rank_that_crashes_before_it_greets_crashed(host: SlurmHost) -> None:
    (host.cluster / "bin" / "interpreter").write_text("#!/bin/sh\nkill -SEGV $$\n")
    assert host.run().exit_code == 1
    assert {(row["status"], row["reason_code"]) for row in host.rows()} == {("crashed", "signal")}
    assert "the worker was ended by SIGSEGV while starting up" in host.rows()[0]["reason"]


def test_a_job_that_is_lost_again_and_again_is_given_up(host: SlurmHost) -> None:
    host.behave(reference={"do": "hang", "phase": "setup"})
    host.when("runs on", lambda job: programs.end(job, "TIMEOUT"), times=9)
    assert host.run().exit_code == 1
    assert len(host.submissions()) == 3
    assert {(row["status"], row["reason_code"]) for row in host.rows()} == {("timeout", "setup")}
    reason = host.rows()[0]["reason"]
    assert reason.startswith("Slurm job 3 ended: time limit; so did 2 before it, without a result; ")
    assert reason.endswith("slurm.log ends: interrupted")


def test_a_job_cancelled_in_slurm_is_not_submitted_again(host: SlurmHost) -> None:
    host.env["FAKE_ROUND_S"] = "0.3"
    host.when("runs on", lambda job: programs.end(job, "CANCELLED"))
    assert host.run().exit_code == 1
    assert "Slurm job 1 was cancelled in Slurm; run the same again to go on" in host.told
    assert [one.state for one in standings(host.folder.path).values()] == ["cancelled in Slurm"]
    assert {row["status"] for row in host.rows()} == {"skipped"}
    assert workers_of(host.folder.path) == []


def test_a_job_that_attnspec_cancel_ended_is_said_to_be_cancelled_by_it(host: SlurmHost) -> None:
    """As when it is called on another machine, where it cannot signal the host: that sees its job end."""
    host.env["FAKE_ROUND_S"] = "0.3"

    def cancel(job: str) -> None:
        works = holder(host.folder.path)
        assert works is not None
        assert forbid_submissions(host.folder.path)
        mark_cancelled(host.folder.path, works)
        assert cancel_run(host.folder.path) == [1]

    host.when("runs on", cancel)
    result = host.run()
    assert (result.exit_code, result.signal, result.stopped) == (1, None, "cancelled")
    assert "Slurm job 1 was cancelled by `attnspec cancel`; run the same again to go on" in host.told
    assert host.run().stopped == ""
    host.check_complete()


def test_starting_anew_takes_up_nothing_that_is_over(host: SlurmHost) -> None:
    assert host.run().exit_code == 0
    (folder,) = host.folder.path.glob("artifacts/slurm/*-1")
    written = json.loads((folder / "submission.json").read_text())
    del written["ended"]  # as if its host had died before it saw the end
    (folder / "submission.json").write_text(json.dumps(written))
    while not Cluster().states([1])[1].over:  # its verdict comes a little before its end
        programs.time.sleep(0.1)
    assert host.run(fresh=True).exit_code == 0
    assert [one["ended"] for one in host.submissions()] == ["left behind", "done"]
    assert host.resumed == []
    host.check_complete()


def test_cancel_ends_what_nobody_watches_and_a_second_cancel_finds_nothing(
    host: SlurmHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.env["FAKE_ROUND_S"] = "1"

    class GoneError(Exception):
        pass

    def leave(job: str) -> None:
        raise GoneError

    host.when("runs on", leave)
    with pytest.raises(GoneError):
        host.run()
    (standing,) = standings(host.folder.path).values()
    assert (standing.slurm_id, standing.state, standing.live) == (1, "RUNNING", True)
    with pytest.raises(LockedError, match="Slurm job 1 works in this run folder"):
        slurm_submissions.refuse_beside_slurm(host.folder.path)
    assert forbid_submissions(host.folder.path)
    assert cancel_run(host.folder.path) == [1]
    assert workers_of(host.folder.path) == []
    assert cancel_run(host.folder.path) == []
    (standing,) = standings(host.folder.path).values()
    assert (standing.state, standing.live) == ("cancelled", False)
    slurm_submissions.refuse_beside_slurm(host.folder.path)


@pytest.mark.parametrize(
    ("given", "told"), [({"tasks": 3}, "Slurm gave 1 nodes and 3 tasks; the job needs 1 nodes and 1 tasks")]
)
def test_a_wrong_allocation_is_told_with_the_numbers(host: SlurmHost, given: dict, told: str) -> None:
    host.behave_cluster(**given)
    with pytest.raises(EnvironmentMissingError, match=told):
        host.run()
    assert not (host.cluster / "ranks.jsonl").exists()


def test_another_device_than_expected_ends_the_job(host: SlurmHost) -> None:
    host.profile.write_text(RUNNER.replace("{type: cpu}", "{type: cuda, model: H100}"))
    told = "runner cluster expects a CUDA device named H100; found fake device"
    with pytest.raises(EnvironmentMissingError, match=told):
        host.run()


def test_a_crash_hits_only_the_culprit(host: SlurmHost) -> None:
    host.behave(sdpa={"do": "signal SIGSEGV"})
    assert host.run().exit_code == 1
    assert host.statuses() == {"reference": "ok", "sdpa": "crashed"}
    ((code, reason),) = {(row["reason_code"], row["reason"]) for row in host.rows("sdpa")}
    assert code == "signal"
    assert "the worker was ended by SIGSEGV while in measure of case" in reason
    assert len(host.submissions()) == 1


def test_a_crash_on_nodes_that_do_not_answer_is_blamed_on_no_case(host: SlurmHost) -> None:
    host.behave(sdpa={"do": "signal SIGKILL", "attempts": 1})
    host.behave_cluster(silent=True)
    host.when("ended (FAILED: nodes of the allocation do not answer", lambda job: host.behave_cluster())
    assert host.run().exit_code == 0
    host.check_complete()
    first, second = host.calls("sbatch")
    assert "--begin=now+300" in second
    assert not any(word.startswith("--begin") for word in first)


def test_jobs_wait_for_each_other_as_the_profile_says(host: SlurmHost, tmp_path: Path) -> None:
    spec = SMALL.replace("sdpa]", '{sdpa: {env: {NAME: "1"}}}]')
    (tmp_path / "two").mkdir()
    two = SlurmHost(tmp_path / "two" / "run", spec)
    two.cluster = host.cluster
    assert two.run().exit_code == 0
    two.check_complete()
    first, second = two.calls("sbatch")
    assert {"--dependency=afterany:1", "--kill-on-invalid-dep=yes"} <= set(second)
    assert not any(word.startswith("--dependency") for word in first)
    assert {one["ended"] for one in two.submissions()} == {"done"}


def test_a_job_that_slurm_forgets_while_it_runs_is_submitted_again(
    host: SlurmHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without accounting, and after a host that slept through the job's end, nobody tells how it ended."""
    monkeypatch.setattr(slurm_judgement, "FORGOTTEN_S", 1.0)
    host.env["FAKE_ROUND_S"] = "0.1"

    def forget(job: str) -> None:
        programs.time.sleep(0.6)
        programs.end(job, "NODE_FAIL")
        host.behave_cluster(forgotten=[int(job)])

    host.when("runs on", forget)
    assert host.run().exit_code == 0
    assert any("Slurm no longer knows it, and it left no verdict" in line for line in host.told)
    assert len(host.submissions()) == 2
    host.check_complete()


def test_a_submission_whose_answer_was_lost_is_found_by_its_name(host: SlurmHost) -> None:
    host.behave_cluster(mute=True)
    assert host.run().exit_code == 0
    assert "submitted as Slurm job 1" in host.told
    assert len(host.calls("sbatch")) == 1
    host.check_complete()


def test_what_slurm_refuses_while_a_run_is_under_way_is_submitted_later(host: SlurmHost) -> None:
    def refuse(job: str) -> None:
        host.behave_cluster(sbatch="Slurm temporarily unable to accept job")
        programs.end(job, "NODE_FAIL")

    host.env["FAKE_ROUND_S"] = "0.1"
    host.when("runs on", refuse)
    told = host.heard

    def heard(happening: Happening) -> None:
        if isinstance(happening, Said) and "it is tried again" in happening.text:
            host.behave_cluster()
        told(happening)

    host.heard = heard
    assert host.run().exit_code == 0
    assert [one["ended"] for one in host.submissions()] == ["resubmit", "never submitted", "done"]
    host.check_complete()


def test_a_limit_of_jobs_makes_the_others_wait(host: SlurmHost, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    two = SlurmHost(tmp_path / "two" / "run", SMALL.replace("sdpa]", '{sdpa: {env: {NAME: "1"}}}]'))
    two.cluster = host.cluster
    two.env["FAKE_ROUND_S"] = "0.1"
    host.behave_cluster(limit=1)
    assert two.run().exit_code == 0
    two.check_complete()
    assert any("job submit limit" in line and "when others of this run have ended" in line for line in two.told)
    assert [one["ended"] for one in two.submissions()] == ["done", "done"]


def test_a_busy_controller_costs_the_supervisor_nothing(host: SlurmHost) -> None:
    host.behave_cluster(steps=2)
    assert host.run().exit_code == 0
    assert len(host.submissions()) == 1
    host.check_complete()


def test_another_slurm_runner_does_not_work_beside_jobs_of_the_first(
    host: SlurmHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    class GoneError(Exception):
        pass

    def leave(job: str) -> None:
        raise GoneError

    host.env["FAKE_ROUND_S"] = "1"
    host.when("runs on", leave)
    with pytest.raises(GoneError):
        host.run()
    host.profile = host.profile.rename(host.profile.with_name("other.yaml"))
    with pytest.raises(LockedError, match="Slurm job 1 works in this run folder"):
        host.run()
    assert cancel_run(host.folder.path) == [1]


def test_a_run_that_is_cancelled_while_it_submits_submits_nothing(
    host: SlurmHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SubmissionFolder.write_order

    def cancelled_meanwhile(self: SubmissionFolder, *given: object) -> None:
        write(self, *given)
        assert forbid_submissions(host.folder.path)
        assert cancel_run(host.folder.path) == []

    monkeypatch.setattr(SubmissionFolder, "write_order", cancelled_meanwhile)
    with pytest.raises(EnvironmentMissingError, match="cancelled from elsewhere"):
        host.run()
    assert [one["ended"] for one in host.submissions()] == ["never submitted"]
    assert host.calls("sbatch") == []


@pytest.mark.parametrize("filter_", ["SQUEUE_PARTITION", "SQUEUE_FORMAT", "SACCT_FORMAT"])
def test_what_a_user_filters_hides_no_job(filter_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\n[ -z "${{{filter_}+x}}" ] && echo "7|RUNNING|None"\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(filter_, "other")
    assert Cluster().states([7])[7].state == "RUNNING"
