"""What Slurm says and what follows from it: answers of its commands, logs of srun, judgements, claims, places."""

from __future__ import annotations

import os

import pytest

from attnspec.errors import EnvironmentMissingError, InputError, SpecError
from attnspec.launch.runner_profile import read_runner
from attnspec.launch.slurm_cluster import (
    Cluster,
    JobState,
    Node,
    SlurmError,
    parse_accounting,
    parse_nodes,
    parse_queue,
    parse_scontrol,
)
from attnspec.launch.slurm_job import why_not_started
from attnspec.launch.slurm_judgement import FORGOTTEN_S, Next, judge
from attnspec.launch.slurm_order import (
    JobVerdict,
    Submission,
    SubmissionFolder,
    starts_without_result,
    submission_folders,
)
from attnspec.launch.slurm_place import allocation_of, check_cluster, shortage
from attnspec.launch.slurm_submissions import ENDED, standings
from attnspec.launch.srun_log import first_failure, not_started, out_of_memory, without_srun
from attnspec.launch.supervision import Ended
from attnspec.launch.torchrun_log import RankFailure
from attnspec.launchers.slurm import RankContainer, Step, lay_out, not_started_fix
from attnspec.wire import Event
from attnspec.worker.place import place_among

OVER = ("BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", "COMPLETED")
GOING = (
    "PENDING",
    "RUNNING",
    "COMPLETING",
    "CONFIGURING",
    "REQUEUED",
    "SUSPENDED",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
)


@pytest.mark.parametrize("state", OVER)
@pytest.mark.parametrize("verdict", [None, "interrupted", "time_limit", "failed"])
def test_a_job_that_ended_without_being_done_is_submitted_again(state, verdict):
    held = None if verdict is None else JobVerdict(verdict=verdict)
    judgement = judge(JobState(state=state), held)
    assert judgement.next is Next.RESUBMIT
    assert judgement.time_limit == (state in ("TIMEOUT", "DEADLINE") or verdict == "time_limit")


@pytest.mark.parametrize("state", GOING)
def test_a_job_that_may_still_have_processes_is_waited_for(state):
    """Else a case could run twice at once."""
    for verdict in (None, JobVerdict(verdict="interrupted"), JobVerdict(verdict="failed")):
        assert judge(JobState(state=state, reason="why"), verdict).next is Next.WAIT


@pytest.mark.parametrize(
    ("verdict", "following"), [("done", Next.DONE), ("missing", Next.MISSING), ("journal", Next.JOURNAL)]
)
@pytest.mark.parametrize("state", [*OVER, *GOING, "CANCELLED", None])
def test_a_final_verdict_holds_whatever_slurm_says(state, verdict, following):
    held = None if state is None else JobState(state=state)
    judgement = judge(held, JobVerdict(verdict=verdict, text="words"))
    assert (judgement.next, judgement.reason) == (following, "words")


def test_a_cancelled_job_is_not_submitted_again():
    assert judge(JobState(state="CANCELLED"), JobVerdict(verdict="interrupted")).next is Next.STOPPED


def test_a_job_that_slurm_does_not_know_is_given_time():
    assert judge(None, None, unknown_s=FORGOTTEN_S - 1).next is Next.WAIT
    assert judge(None, None, unknown_s=FORGOTTEN_S).next is Next.RESUBMIT


def test_answers_with_noise_are_read():
    assert parse_queue("garbage\n7|PENDING|QOSMaxJobsPerUserLimit\n\n8_1|RUNNING|None\n") == {
        7: JobState(state="PENDING", reason="QOSMaxJobsPerUserLimit")
    }
    assert parse_accounting("7|CANCELLED by 1000\n7.batch|FAILED\n9|RUNNING\n8|OUT_OF_ME+\n")[7].state == "CANCELLED"
    assert parse_accounting("7|PREEMPTED\n7|RUNNING\n") == {7: JobState(state="RUNNING")}
    assert parse_scontrol("slurm_load_jobs error: Invalid job id specified") == {}


def test_nodes_of_the_default_partition_and_of_a_named_one():
    answer = (
        "gpu|n1|gpu:h100:8(S:0-1)|96|gpu\ncpu|n1|gpu:h100:8|96|cpu*\ncpu|n2|(null)|32|cpu*\ngpu|n3|gpu:4,nic:2|8|gpu\n"
    )
    assert [node.name for node in parse_nodes(answer, None)] == ["n1", "n2"]
    assert parse_nodes(answer, "gpu")[1] == Node(name="n3", num_gpus=4, num_cpus=8)
    assert parse_nodes(answer, "nowhere") == []


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("srun: error: n2: task 1: Exited with exit code 3", RankFailure(rank=1, returncode=3)),
        ("srun: error: n2: tasks 8-15: Exited with exit code 4", RankFailure(rank=8, returncode=4)),
        ("srun: error: n1: tasks 0,2: Killed", RankFailure(rank=0, returncode=-9)),
        ("srun: error: n1: task 0: Segmentation fault (core dumped)", RankFailure(rank=0, returncode=-11)),
        ("srun: error: n1: task 0: Terminated", RankFailure(rank=0, returncode=-15)),
        ("srun: error: Unable to create step for job 7: Invalid", None),
        ("task 1: Exited with exit code 3", None),
    ],
)
def test_the_first_rank_that_fails_is_found_in_srun_s_words(line, failure):
    assert (
        first_failure(f"a library's line\n{line}\nsrun: error: n9: task 99: Aborted\n" if failure else line) == failure
    )


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (  # Slurm 22.05
            "srun: unrecognized option '--container-image=a'\nTry \"srun --help\" for more information\n",
            "srun: unrecognized option '--container-image=a'",
        ),
        (
            "srun: error: Couldn't load specified plugin name for mpi/pmix\nsrun: error: Invalid MPI type 'pmix'\n",
            "srun: error: Couldn't load specified plugin name for mpi/pmix\nsrun: error: Invalid MPI type 'pmix'",
        ),
        (
            (
                "slurmstepd-n1: error: execve(): /no/python: No such file or directory\n"
                "srun: error: n1: task 0: Exited with exit code 2\n"
            ),
            (
                "slurmstepd-n1: error: execve(): /no/python: No such file or directory\n"
                "srun: error: n1: task 0: Exited with exit code 2"
            ),
        ),
        (  # pyxis, as its sources say it
            (
                "slurmstepd: error: pyxis: failed to import docker image: docker://i\n"
                "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"
                "srun: error: n1: task 0: Exited with exit code 1\n"
            ),
            (
                "slurmstepd: error: pyxis: failed to import docker image: docker://i\n"
                "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"
                "srun: error: n1: task 0: Exited with exit code 1"
            ),
        ),
        ("srun: error: n1: task 0: Segmentation fault (core dumped)\n", ""),
        (  # after the task
            (
                "slurmstepd: error: spank: required plugin spank_pyxis.so: exit() failed with rc=-1\n"
                "srun: error: n1: task 0: Segmentation fault (core dumped)\n"
            ),
            "",
        ),
        ("Traceback\nsrun: error: n1: tasks 0-3: Exited with exit code 1\n", ""),
        ("srun: Job step aborted\nslurmstepd: error: *** STEP 7.0 ON n1 CANCELLED ***\n", ""),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.\n", ""),
        ("Fatal Python error: Segmentation fault\n", ""),
        ("", ""),
    ],
)
def test_a_command_that_ran_nowhere_is_told_from_one_that_crashed(log, words):
    assert not_started(log) == words


@pytest.mark.parametrize(
    ("program", "words", "fix"),
    [
        (
            "pyxis",
            "srun: unrecognized option '--container-image=a'",
            "srun has no pyxis: have it installed on the nodes and where jobs are submitted, or set slurm.container",
        ),
        ("pyxis", "slurmstepd: error: pyxis: failed to import docker image", "pyxis must be able to start p in i on"),
        ("apptainer", "slurmstepd: error: execve(): apptainer: No such file", "apptainer must be able to start p in i"),
        (None, "slurmstepd: error: execve(): p: No such file", "the runner's python p must be there on every node"),
    ],
)
def test_what_can_be_done_where_no_rank_starts(program, words, fix):
    held = RankContainer(program=program, image="i", image_id=None, run_dir="/r", package="/p") if program else None
    assert fix in not_started_fix(Step(layout=lay_out(1, 1), python="p", code_path="/c", container=held), words)


def test_srun_s_own_lines_are_no_last_words():
    log = "Traceback\nsrun: error: n1: task 0: Killed\nslurmstepd-n1: error: Detected 1 oom_kill event in StepId=7.0\nboom"
    assert without_srun(log) == "Traceback\nboom"
    assert out_of_memory(log)
    assert not out_of_memory("the model is out of memory: oom-kill")


def event(kind, **more):
    return Event(kind=kind, **more)


def test_starts_count_since_the_last_result():
    start = event("message", data={"start": 0})
    resumed = event("outcome", case_id="a", data={"resumed": True})
    assert starts_without_result([start, event("hello"), resumed, start]) == 2
    assert starts_without_result([start, start, event("round", case_id="a"), start]) == 1
    assert starts_without_result([start, event("outcome", case_id="a", status="wrong")]) == 0


def test_a_submission_is_run_or_given_up_never_both(tmp_path):
    for first in ("run", "given up"):
        folder = SubmissionFolder(path=tmp_path / first)
        folder.path.mkdir()
        if first == "run":
            assert folder.claim("7.0") == 0
            assert not folder.give_up()
            assert folder.claim("7.1") == 1
            assert folder.claim("7.1") == 1  # a create that was sent twice
            assert folder.claimed(1)
            assert not folder.claimed(2)
            assert folder.started_as() == 7
        else:
            assert folder.give_up()
            assert folder.give_up()
            assert folder.claim("7.0") is None
            assert folder.started_as() is None


def test_events_are_read_in_whole_lines(tmp_path):
    folder = SubmissionFolder(path=tmp_path)
    assert folder.read_events() == ([], 0)
    folder.events.write_bytes(b'{"kind": "hello"}\n{"kind": "by')
    events, offset = folder.read_events()
    assert [one.kind for one in events] == ["hello"]
    with folder.events.open("ab") as stream:
        stream.write(b'e"}\n')
    events, offset = folder.read_events(offset)
    assert [one.kind for one in events] == ["bye"]
    assert folder.read_events(offset) == ([], offset)
    assert offset == folder.events.stat().st_size


def test_submissions_are_listed_by_number(tmp_path):
    for name in ("b-10", "a-9", "a-2", "notes"):
        (tmp_path / "artifacts" / "slurm" / name).mkdir(parents=True)
    assert [folder.path.name for folder in submission_folders(tmp_path)] == ["a-2", "a-9", "b-10"]


def test_a_submission_survives_the_way_through_its_file(tmp_path):
    folder = SubmissionFolder(path=tmp_path)
    assert folder.read_submission() is None
    for slurm_id in (None, 7):
        one = Submission(job_id="a", number=1, token="t", case_ids=("c",), submitted_ns=5, slurm_id=slurm_id)
        folder.write_submission(one)
        assert folder.read_submission() == one


def runner(tmp_path, text):
    file = tmp_path / "site.yaml"
    file.write_text(text)
    return read_runner(file)


def test_a_cluster_that_is_too_small_is_told_with_the_numbers(tmp_path):
    site = runner(tmp_path, "launcher: slurm\ngpus_per_node: 8\ndevice: {type: cuda}\n")
    nodes = [Node(name=f"n{number}", num_gpus=gpus, num_cpus=32) for number, gpus in enumerate((8, 8, 4))]
    assert shortage(site, {8: "cp_size 8", 16: "cp_size 16"}, "cuda", nodes) is None
    assert shortage(site, {8: "cp_size 8", 64: "cp_size 64"}, "cuda", nodes) == (
        "cp_size 64 needs 8 nodes with 8 GPUs and 8 cores; of the 3 nodes that Slurm has there 2 fit "
        "(nodes have 4 GPUs and 32 cores, 8 GPUs and 32 cores)"
    )
    small = runner(tmp_path, "launcher: slurm\ngpus_per_node: 8\ndevice: {type: cuda}\nnodes: 1\n")
    assert shortage(small, {16: "cp_size 16"}, "cuda", nodes) == (
        "cp_size 16 needs 2 nodes with 8 GPUs and 8 cores; runner site allows 1"
    )


@pytest.mark.parametrize(
    ("sizes", "gpus", "option"),
    [((2, 4, 16), 4, "--only 'cp_size=2|4'"), ((2, 16), 4, "--only cp_size=2"), ((8, 16), 4, None), ((2,), 0, None)],
)
def test_what_fits_is_offered_where_something_does(tmp_path, sizes, gpus, option):
    class Small(Cluster):
        def nodes(self, partition):
            return [Node(name="n1", num_gpus=gpus, num_cpus=32)]

    site = runner(tmp_path, "launcher: slurm\ngpus_per_node: 8\ndevice: {type: cuda}\n")
    with pytest.raises(EnvironmentMissingError) as caught:
        check_cluster(site, {size: f"cp_size {size}" for size in sizes}, Small())
    lines = str(caught.value).splitlines()
    assert [line for line in lines if "--only" in line] == ([] if option is None else [f"  {option}   runs what fits"])
    assert lines[1] == "Instead:"


def test_nothing_is_said_to_fit_where_sinfo_fails(tmp_path):
    class Silent(Cluster):
        def nodes(self, partition):
            raise SlurmError("sinfo gave no answer in 60 s")

    site = runner(tmp_path, "launcher: slurm\ngpus_per_node: 8\ndevice: {type: cuda}\n")
    with pytest.raises(
        EnvironmentMissingError, match="and sinfo gave no answer in 60 s\nInstead:\n  --runner"
    ) as caught:
        check_cluster(site, {2: "cp_size 2"}, Silent())
    assert "--only" not in str(caught.value)


class OneNode(Cluster):
    """A cluster of one node, with an srun that knows these options or does not answer."""

    def __init__(self, *known: str, trouble: str = "") -> None:
        self.known, self.trouble = known, trouble

    def nodes(self, partition):
        return [Node(name="n1", num_gpus=0, num_cpus=32)]

    def srun_takes(self, option):
        if self.trouble:
            raise SlurmError(self.trouble)
        return option in self.known


PYXIS = f"image: registry.example/a@sha256:{'0' * 64}\nslurm: {{container: pyxis}}\n"


@pytest.mark.parametrize(
    ("container", "cluster", "told"),
    [
        (PYXIS, OneNode("--container-image"), None),
        (PYXIS, OneNode(), "starts its containers through pyxis, and `srun --help` here tells of no --container-image"),
        (PYXIS, OneNode(trouble="srun is not on the path"), "whether it has pyxis cannot be told: srun is not on the"),
        (PYXIS.replace("pyxis", "apptainer"), OneNode(), None),
        ("", OneNode(), None),
    ],
    ids=["there", "missing", "unknown", "apptainer", "no container"],
)
def test_a_missing_pyxis_is_told_before_anything_is_submitted(tmp_path, container, cluster, told):
    site = runner(tmp_path, f"launcher: slurm\ngpus_per_node: 8\ndevice: {{type: cpu}}\n{container}")
    if told is None:
        assert check_cluster(site, {2: "cp_size 2"}, cluster) == "cpu"
        return
    with pytest.raises(EnvironmentMissingError) as caught:
        check_cluster(site, {2: "cp_size 2", 64: "cp_size 64"}, cluster)
    first, second, *rest = str(caught.value).splitlines()
    assert first.startswith("cp_size 64 needs 8 nodes")  # everything at once
    assert second.startswith("runner site ")
    assert told in second
    assert rest[0] == "Instead:"
    assert "--only" not in str(caught.value)  # fewer ranks need pyxis too
    if not cluster.trouble:
        assert "have it installed on the nodes" in second
        assert "set slurm.container of the runner to apptainer or podman" in second


@pytest.mark.parametrize(
    ("program", "code", "said", "told"),
    [
        (
            "podman",
            126,
            "Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted",
            "point CONTAINERS_CONF at a file",
        ),
        ("podman", 1, "Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted", ""),  # a worker that ran
        ("podman", 126, "Error: crun: executable file `p` not found", ""),
        ("apptainer", 126, "FATAL: setrlimit", ""),
        ("apptainer", 127, "sh: 1: exec: apptainer: not found", "apptainer must be installed on every node"),
        ("podman", 127, "sh: line 1: exec: podman: not found", "podman must be installed on every node"),
        ("apptainer", 127, "/opt/python: not found", ""),
    ],
)
def test_a_rank_whose_container_does_not_start_is_told_with_what_to_do(program, code, said, told):
    container = RankContainer(program=program, image="i", image_id=None, run_dir="/r", package="/c/attnspec")
    step = Step(layout=lay_out(2, 1), python="p", code_path="/c", container=container)
    log = f"{said}\nsrun: error: n1: task 0: Exited with exit code {code}\n"
    why = why_not_started(step, Ended(returncode=code, last_lines="\n".join([said] * 8)), log)
    assert why.startswith(f"{said}\n{told}" if told else "")
    assert bool(why) == bool(told)


NO_CONFIGURATION = """\
sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
sinfo: error: fetch_config: DNS SRV lookup failed
sinfo: error: _establish_config_source: failed to fetch config
sinfo: fatal: Could not establish a configuration source
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (NO_CONFIGURATION, "sinfo failed: Could not establish a configuration source"),
        (
            "slurm_load_partitions: Unable to\n  contact it\n",
            "sinfo failed: slurm_load_partitions: Unable to; contact it",
        ),
        ("sinfo: error: again\nsinfo: error: again\n", "sinfo failed: again"),
        ("", "sinfo failed: exit code 7"),
    ],
)
def test_what_a_command_of_slurm_says_is_one_line(tmp_path, monkeypatch, said, told):
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\ncat >&2 <<'EOF'\n{said}EOF\nexit 7\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SlurmError) as caught:
        Cluster().nodes(None)
    assert str(caught.value) == told


def test_an_allocation_takes_what_the_profile_says(tmp_path):
    site = runner(
        tmp_path,
        "launcher: slurm\ngpus_per_node: 8\ndevice: {type: cuda}\n"
        "slurm: {partition: p, account: a, qos: q, time: '30', gpu_flag: gpus-per-node, extra: [--exclusive]}\n",
    )
    held = allocation_of(site, 4, "cuda", "name")
    assert (held.gpus_per_node, held.layout.num_nodes, held.layout.tasks_per_node) == (4, 1, 4)
    assert (held.partition, held.account, held.qos, held.time) == ("p", "a", "q", "30")
    assert (held.gpu_flag, held.extra) == ("gpus-per-node", ("--exclusive",))
    assert allocation_of(site, 16, "cpu", "name").gpus_per_node == 0


def test_wrong_options_are_refused(tmp_path):
    with pytest.raises(SpecError, match=r":3: options\.jobs_at_once.*0"):
        runner(tmp_path, "launcher: slurm\ndevice: {type: cpu}\noptions: {jobs_at_once: 0}\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("device: {type: auto}", "device.type is auto.*allowed: cpu, cuda"),
        ("device: {type: cuda}", "gpus_per_node is missing"),
    ],
)
def test_a_profile_that_leaves_open_what_slurm_must_know_is_refused(tmp_path, text, told):
    from attnspec.launch.slurm_cluster import Cluster
    from attnspec.launch.slurm_place import check_cluster

    with pytest.raises(InputError, match=told):
        check_cluster(runner(tmp_path, f"launcher: slurm\n{text}\n"), {}, Cluster())


def test_a_machine_without_slurm_is_told_what_else_can_be_done(tmp_path, monkeypatch):
    from attnspec.launch.slurm_cluster import Cluster
    from attnspec.launch.slurm_place import check_cluster

    monkeypatch.setenv("PATH", str(tmp_path))
    site = runner(tmp_path, "launcher: slurm\ndevice: {type: cpu}\n")
    told = r"runner site submits to Slurm, and sinfo is not on the path.*\nInstead:\n(.*\n)*.*--rehearse"
    with pytest.raises(EnvironmentMissingError, match=told):
        check_cluster(site, {2: "cp_size 2"}, Cluster())


def test_ranks_of_slurm_count_only_where_the_launcher_says_so():
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    assert place_among(2, {**slurm, "ATTNSPEC_RANKS": "slurm"}) == (1, 0)
    assert place_among(2, {**slurm, "RANK": "0", "LOCAL_RANK": "0"}) == (0, 0)
    with pytest.raises(EnvironmentMissingError, match="srun started 2 tasks; the job has 4 ranks"):
        place_among(4, {**slurm, "ATTNSPEC_RANKS": "slurm"})
    with pytest.raises(EnvironmentMissingError, match="SLURM_LOCALID do not reach the worker"):
        place_among(2, {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "ATTNSPEC_RANKS": "slurm"})


def test_this_process_is_no_rank_of_slurm():
    assert "ATTNSPEC_RANKS" not in os.environ


@pytest.mark.parametrize(
    ("ended", "verdict", "state", "reason"),
    [
        ("done", "done", "ended", ""),
        ("resubmit", "failed", "lost", "nodes do not answer"),
        ("stopped", "interrupted", "cancelled in Slurm", ""),
        ("missing", "missing", "could not run", "nodes do not answer"),
        ("journal", "journal", "could not write the run folder", "nodes do not answer"),
        ("cancelled", None, "cancelled", ""),
        ("never submitted", None, "never submitted", ""),
        ("left behind", None, "left behind", ""),
    ],
)
def test_how_a_submission_ended_is_told_in_words_for_people(tmp_path, ended, verdict, state, reason):
    folder = SubmissionFolder(path=tmp_path / "artifacts" / "slurm" / "a-1")
    folder.path.mkdir(parents=True)
    folder.write_submission(
        Submission(job_id="a", number=1, token="t", case_ids=("c",), submitted_ns=5, slurm_id=7, ended=ended)
    )
    if verdict is not None:
        folder.write_verdict(JobVerdict(verdict=verdict, text="nodes do not answer\nmore" if reason else ""))
    standing = standings(tmp_path)["a"]
    assert (standing.state, standing.reason, standing.live) == (state, reason, False)


def test_every_judgement_has_a_word_for_people():
    assert {one.value for one in Next} - {Next.WAIT.value} <= ENDED.keys()
