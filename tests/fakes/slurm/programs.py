"""Stand-ins for Slurm's commands, for apptainer and for a worker's interpreter: enough of each for one machine.

`install(folder)` makes a folder of programs, to be put in front of PATH, that keep their state in FAKE_SLURM. Jobs run
at once, as processes of this machine; srun starts its tasks here, whatever nodes are asked for. What every program was
called with is kept in calls.jsonl. FAKE_SLURM/behaviour.json may hold:
  sbatch: a message with which sbatch fails; mute: after taking the job, sbatch fails without saying its number
  limit: so many jobs may wait or run; forgotten: numbers of jobs that squeue, sacct and scontrol no longer know
  unknown: options that srun does not know, and tells nothing of in its help; it has pyxis without that
  steps: how often asking for a job's steps fails
  accounting: false makes sacct fail; silent: a node answers no roll call; nodes, tasks: what a job is given, in the place of what it asks for
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "srun", "apptainer")
WORKER = Path(__file__).parents[2] / "faults" / "fake_worker.py"


def install(folder: Path) -> Path:
    """The folder of programs; also `interpreter`, a python whose attnspec.worker is the fake worker."""
    folder.mkdir()
    for name in (*PROGRAMS, "interpreter"):
        file = folder / name
        file.write_text(f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__)} {name} "$@"\n')
        file.chmod(0o755)
    return folder


def state_folder() -> Path:
    return Path(os.environ["FAKE_SLURM"])


def behaviour() -> dict:
    with suppress(FileNotFoundError):
        return json.loads((state_folder() / "behaviour.json").read_text())
    return {}


@contextmanager
def jobs():
    """Number as text -> job, kept under a lock."""
    file = state_folder() / "jobs.json"
    with (state_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = json.loads(file.read_text()) if file.exists() else {}
        yield held
        file.write_text(json.dumps(held))


def options(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Long options up to the first other word, and the rest."""
    found = {}
    while argv and argv[0].startswith("--"):
        name, _, value = argv[0].removeprefix("--").partition("=")
        found[name], argv = value, argv[1:]
    return found, argv


def main(name: str, argv: list[str]) -> int:
    with (state_folder() / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps([name, *argv]) + "\n")
    return globals()[f"run_{name}"](argv)


def run_sbatch(argv: list[str]) -> int:
    asked, (script, *_) = options(argv)
    told = behaviour()
    if told.get("sbatch"):
        print(f"sbatch: error: {told['sbatch']}", file=sys.stderr)
        return 1
    with jobs() as held:
        if sum(job["state"] in ("PENDING", "RUNNING") for job in held.values()) >= told.get("limit", 99):
            print("sbatch: error: Job violates accounting/QOS policy (job submit limit, ...)", file=sys.stderr)
            return 1
        number = len(held) + 1
        job = {
            "name": asked["job-name"],
            "state": "PENDING",
            "nodes": str(told.get("nodes", asked["nodes"])),
            "tasks": str(told.get("tasks", asked["ntasks"])),
            "script": script,
            "output": asked["output"].replace("%%", "%"),
            "restarts": 0,
        }
        held[str(number)] = job
    begin(number)
    if told.get("mute"):
        print("sbatch: error: Socket timed out on send/recv operation", file=sys.stderr)
        return 1
    print(number)
    return 0


def begin(number: int) -> None:
    subprocess.Popen(
        [sys.executable, "-S", __file__, "job", str(number)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def run_job(argv: list[str]) -> int:
    """What slurmd does: the batch script, and the state that follows from its end."""
    (number,) = argv
    with jobs() as held:
        job = held[number]
        if job["state"] != "PENDING":
            return 0
        env = {
            **os.environ,
            "SLURM_JOB_ID": number,
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_NUM_NODES": job["nodes"],
            "SLURM_NTASKS": job["tasks"],
            "SLURM_RESTART_COUNT": str(job["restarts"]),
        }
        with Path(job["output"]).open("a") as log:
            batch = subprocess.Popen(
                ["/bin/sh", job["script"]], env=env, stdout=log, stderr=log, start_new_session=True
            )
        job |= {"state": "RUNNING", "pid": batch.pid}
    code = batch.wait()
    with suppress(ProcessLookupError):
        os.killpg(batch.pid, signal.SIGKILL)
    with jobs() as held:
        if held[number]["state"] == "REQUEUED":
            held[number] |= {"state": "PENDING", "restarts": job["restarts"] + 1}
            begin(int(number))
        elif held[number]["state"] == "RUNNING":
            held[number]["state"] = "COMPLETED" if code == 0 else "FAILED"
    return 0


def known(held: dict) -> list[tuple[str, dict]]:
    """The jobs that Slurm still knows."""
    return [(number, job) for number, job in held.items() if int(number) not in behaviour().get("forgotten", [])]


def run_squeue(argv: list[str]) -> int:
    asked, _ = options(argv)
    if "steps" in asked:
        failures = state_folder() / "steps"
        with failures.open("a") as file:
            file.write(".")
        if failures.stat().st_size <= behaviour().get("steps", 0):
            print("slurm_load_jobs error: Socket timed out on send/recv operation", file=sys.stderr)
            return 1
        return 0
    with jobs() as held:
        for number, job in known(held):
            live = job["state"] in ("PENDING", "RUNNING", "REQUEUED")
            if asked.get("name") in (None, job["name"]) and (live or "states" in asked):
                reason = "None" if job["state"] == "RUNNING" else "Resources"
                print(number if asked["format"] == "%A" else f"{number}|{job['state']}|{reason}")
    return 0


def run_sacct(argv: list[str]) -> int:
    asked, _ = options(argv)
    if behaviour().get("accounting") is False:
        print("Slurm accounting storage is disabled", file=sys.stderr)
        return 1
    with jobs() as held:
        for number, job in known(held):
            if asked.get("name") == job["name"]:
                print(number)
            elif number in asked.get("jobs", "").split(","):
                print(f"{number}|{job['state']}{' by 0' if job['state'] == 'CANCELLED' else ''}")
    return 0


def run_scontrol(argv: list[str]) -> int:
    if argv[:2] == ["show", "hostnames"]:
        print("localhost\nlocalhost")
        return 0
    number = argv[-1]
    with jobs() as held:
        if number not in dict(known(held)):
            print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
            return 1
        print(f"JobId={number} JobName={held[number]['name']} JobState={held[number]['state']} Reason=None")
    return 0


def run_scancel(argv: list[str]) -> int:
    _, (number,) = options(argv)
    end(number, "CANCELLED")
    return 0


def end(number: str, state: str) -> None:
    """End a job as the cluster would: TERM, then KILL, then the state."""
    with jobs() as held:
        job = held[number]
        if job["state"] not in ("PENDING", "RUNNING"):
            return
        pid = job.get("pid") if job["state"] == "RUNNING" else None
        job["state"] = state
    if pid is None:
        return
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
    until = time.monotonic() + 8
    while time.monotonic() < until and Path(f"/proc/{pid}").exists():
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def run_sinfo(argv: list[str]) -> int:
    for node in ("n1", "n2"):
        print(f"main|{node}|gpu:pretended:2|4|main*")
    return 0


def run_srun(argv: list[str]) -> int:
    asked, command = options(argv)
    unknown = set(behaviour().get("unknown", ()))
    if "help" in asked:
        print("\n".join(f"      --{name}=..." for name in ("ntasks", "container-image") if name not in unknown))
        return 0
    if command == ["true"] and behaviour().get("silent"):
        print("srun: error: Task launch failed on node n2: Communication connection failure", file=sys.stderr)
        return 1
    for name in asked.keys() & unknown:
        print(f"srun: unrecognized option '--{name}={asked[name]}'", file=sys.stderr)
        print('Try "srun --help" for more information', file=sys.stderr)
        return 255
    tasks = []
    for rank in range(int(asked["ntasks"])):
        env = {
            **os.environ,
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": asked["ntasks"],
            "SLURM_LOCALID": str(rank % int(asked["ntasks-per-node"])),
            "SLURM_NODEID": str(rank // int(asked["ntasks-per-node"])),
            "SLURM_STEP_ID": "0",
        }
        try:
            tasks.append(subprocess.Popen(command, env=env))
        except OSError as error:
            print(f"slurmstepd: error: execve(): {command[0]}: {error.strerror}", file=sys.stderr)
            print(f"srun: error: n{rank + 1}: task {rank}: Exited with exit code {error.errno}", file=sys.stderr)
            return error.errno
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: [task.send_signal(number) for task in tasks])
    codes = [task.wait() for task in tasks]
    for rank, code in enumerate(codes):
        if code > 0:
            print(f"srun: error: n{rank + 1}: task {rank}: Exited with exit code {code}", file=sys.stderr)
        elif code < 0:
            print(f"srun: error: n{rank + 1}: task {rank}: {signal.strsignal(-code)}", file=sys.stderr)
    return max(code if code >= 0 else 128 - code for code in codes)


def run_apptainer(argv: list[str]) -> int:
    """exec: a clean environment with what APPTAINERENV_ names; /opt/attnspec is where its mount comes from."""
    assert argv[0] == "exec", argv
    asked, (image, *command) = options([word for word in argv[1:] if not word.startswith("--mount=")])
    assert "cleanenv" in asked, argv
    mounts = [word for word in argv if word.startswith("--mount=")]
    env = {"PATH": os.environ["PATH"], "FAKE_IMAGE": image, "FAKE_MOUNTS": "\n".join(mounts)}
    kept = ("FAKE_SLURM",)
    env |= {name: os.environ[name] for name in kept}
    prefix = "APPTAINERENV_"
    env |= {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}
    env["PYTHONPATH"] = env["PYTHONPATH"].replace("/opt/attnspec", str(Path(__file__).parents[3]))
    os.execvpe(command[0], command, env)


def run_interpreter(argv: list[str]) -> int:  # noqa: RET503  (it ends as another program)
    """The interpreter of the ranks: rank 0 is the fake worker, the others wait for its end."""
    assert argv[:2] == ["-m", "attnspec.worker"], argv
    with (state_folder() / "ranks.jsonl").open("a") as ranks:
        told = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("SLURM_", "MASTER_", "FAKE_", "ATTNSPEC_"))
        }
        ranks.write(json.dumps(told) + "\n")
    if os.environ["SLURM_PROCID"] != "0":
        return 0
    os.execv(sys.executable, [sys.executable, "-S", str(WORKER), *argv[2:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
