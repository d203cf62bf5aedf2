"""python -m attnspec.worker REQUEST.json: execute one job; see attnspec.wire for what it reads and says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from attnspec.errors import AttnspecError, EnvironmentMissingError, JournalError, StrandedError
from attnspec.wire import EXIT_JOURNAL, EXIT_MISSING, WORKER_FIX, JobRequest, loads
from attnspec.worker.control import EventStream, Stop, Stopped, leave, watch_control_pipe
from attnspec.worker.one_cudnn import restart_with_torchs_cudnn
from attnspec.worker.place import place_among

EXIT_FAILED = 1


def main(arguments: list[str]) -> int:
    """Run a job and return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m attnspec.worker REQUEST.json", file=sys.stderr)
        return EXIT_FAILED
    stop = Stop()
    stop.install()
    try:
        code, words = _code_and_words(Path(arguments[0]), stop)
        stop.over()
    except Stopped as stopped:
        code, words = 128 + stopped.number, str(stopped)
    if words:
        print(words, file=sys.stderr)
    return code


def _code_and_words(path: Path, stop: Stop) -> tuple[int, str]:
    """How the job ended. The words are for when no signal can cut them off: a rank that fails has its peers stopped."""
    try:
        _run(path, EventStream.take_stdout(), stop)
    except EnvironmentMissingError as error:
        return EXIT_MISSING, str(error)
    except JournalError as error:
        return EXIT_JOURNAL, str(error)
    except (AttnspecError, StrandedError, OSError) as error:
        return EXIT_FAILED, f"{type(error).__name__}: {error}"
    return 0, ""


def _run(path: Path, events: EventStream, stop: Stop) -> None:
    watch_control_pipe()
    request = loads(JobRequest, path.read_bytes())
    try:
        from attnspec.worker.session import run_session
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "attnspec":
            raise EnvironmentMissingError(f"attnspec's own code is not complete there: {error}") from error
        raise EnvironmentMissingError(
            f"the worker's interpreter {sys.executable} lacks what a worker needs: {error}; {WORKER_FIX} there"
        ) from error
    rank, local_rank = place_among(request.world_size, os.environ)
    run_session(request, events, stop, rank=rank, local_rank=local_rank)


if __name__ == "__main__":
    restart_with_torchs_cudnn()
    leave(main(sys.argv[1:]))
