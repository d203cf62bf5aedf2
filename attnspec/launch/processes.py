"""One worker as a process: started in a session of its own, heard through threads, ended with everything it started.

Every process that a worker starts inherits a token in its environment, so that ranks which a launcher puts into
sessions of their own are found and ended as well (on Linux; elsewhere the process group alone).
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from attnspec.errors import EnvironmentMissingError, WireError
from attnspec.launch import srun_log, torchrun_log
from attnspec.launch.supervision import Ended, Said
from attnspec.wire import Event, loads

TOKEN = "ATTNSPEC_WORKER_TOKEN"
GRACE_S = 5.0
ENDING_S = 40.0
LAST_LINES = 12
LOG_BYTES = 2**15


class WorkerProcess:
    """A running worker. `hear` is called from threads, with every event and once, at last, with Ended.

    argv, env: as a launcher's `command` gives them; env is added to the host's own. log: takes standard error, and what
    comes over standard output that is no event. ending: a command that ends what may outlive the process, such as a
    container; it runs before Ended is told. Raises EnvironmentMissingError when argv cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        hear: Callable[[Said | Ended], None],
        *,
        ending: Sequence[str] | None = None,
    ) -> None:
        self._hear = hear
        self._token = secrets.token_hex(16)
        self._log = log
        self._ending = ending
        self._oom_kills = _oom_kills()
        self._ended_by_us = self._reaped = False
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        with log.open("ab") as stderr:
            try:
                self._process = subprocess.Popen(
                    list(argv),
                    env={**os.environ, **env, TOKEN: self._token},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,
                )
            except OSError as error:
                raise EnvironmentMissingError(f"{argv[0]} cannot be started: {error.strerror}") from error
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name="worker-events", daemon=True)
        self._reader.start()
        self._waiter = threading.Thread(target=self._wait, name="worker-end", daemon=True)
        self._waiter.start()

    def end(self, *, force: bool = False) -> None:
        """End the worker: its control pipe closes and its group is asked to stop, then killed after a grace."""
        with self._lock:
            self._ended_by_us = True
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        if force:
            self._kill()
            return
        with self._lock, suppress(ProcessLookupError):
            if not self._reaped:
                os.killpg(self.pid, signal.SIGTERM)
        if self._timer is None:
            self._timer = threading.Timer(GRACE_S, self._kill)
            self._timer.daemon = True
            self._timer.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream, self._log.open("ab") as log:
            for line in stream:
                try:
                    event = loads(Event, line)
                except WireError:
                    with suppress(OSError):  # a full disk must not stop the events
                        log.write(line)
                        log.flush()
                else:
                    self._hear(Said(event=event))

    def _wait(self) -> None:
        # Wait without reaping, so that the group's number cannot be given to others before its rest is killed.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            ours = self._ended_by_us
        self._kill()
        self._clear()
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            returncode = self._process.wait()
            self._reaped = True
        self._reader.join(GRACE_S)
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        killed = not ours and returncode != 0 and _oom_kills() > self._oom_kills
        words, end = last_lines(self._log), log_end(self._log)
        killed = killed or srun_log.out_of_memory(end)
        failure = torchrun_log.first_failure(end) or srun_log.first_failure(end)
        if failure is not None:
            returncode, words = failure.returncode, f"{words}\nrank {failure.rank} was the first to end".strip()
        self._hear(Ended(returncode=returncode, last_lines=words, oom_killed=killed))

    def _clear(self) -> None:
        """Run the ending, which finds nothing to end after a worker that ended by itself."""
        if self._ending is None:
            return
        said = failure_of(self._ending).encode()
        with suppress(OSError), self._log.open("ab") as log:
            log.write(said)

    def _kill(self) -> None:
        with self._lock:
            if self._reaped:
                return  # the number may be another process's by now
            for pid in (*_holders(self._token), self.pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def failure_of(ending: Sequence[str]) -> str:
    """Run a launcher's ending; what it said where it failed or gave no answer in time, else nothing.

    It may well fail where all is well: the removal of a container that ended by itself may be in progress.
    """
    try:
        done = subprocess.run(
            list(ending),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=ENDING_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{ending[0]}: {error}\n"
    return "" if done.returncode == 0 else done.stdout


def log_end(log: Path) -> str:
    """The end of a log; nothing for one that cannot be read."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - LOG_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def last_lines(log: Path) -> str:
    """The last lines of a log, for a message."""
    words = srun_log.without_srun(torchrun_log.without_torchrun(log_end(log)))
    return "\n".join([line for line in words.splitlines() if line.strip()][-LAST_LINES:])


def _holders(token: str) -> list[int]:
    """Processes that inherited the token."""
    wanted = f"{TOKEN}={token}".encode()
    held = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                held.append(int(folder.name))
    return held


def _oom_kills() -> int:
    """How often the kernel has killed for memory, in our control group where that is told, else on this machine."""
    with suppress(OSError, ValueError, StopIteration):
        group = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        events = Path("/sys/fs/cgroup") / group.removeprefix("0::").lstrip("/") / "memory.events"
        return _counter(events)
    with suppress(OSError, ValueError, StopIteration):
        return _counter(Path("/proc/vmstat"))
    return 0


def _counter(file: Path) -> int:
    return int(next(line.split()[1] for line in file.read_text().splitlines() if line.split()[0] == "oom_kill"))
