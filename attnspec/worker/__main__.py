"""python -m attnspec.worker REQUEST.json: execute one job; see attnspec.wire for what it reads and says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from attnspec.errors import AttnspecError, EnvironmentMissingError, JournalError
from attnspec.wire import EXIT_JOURNAL, EXIT_MISSING, JobRequest, loads
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
        return _run(Path(arguments[0]), EventStream.take_stdout(), stop)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 128 + stopped.number
    except EnvironmentMissingError as error:
        print(error, file=sys.stderr)
        return EXIT_MISSING
    except JournalError as error:
        print(error, file=sys.stderr)
        return EXIT_JOURNAL
    except (AttnspecError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _run(path: Path, events: EventStream, stop: Stop) -> int:
    watch_control_pipe()
    request = loads(JobRequest, path.read_bytes())
    try:
        from attnspec.worker.session import run_session
    except ImportError as error:
        raise EnvironmentMissingError(
            f"the worker's interpreter {sys.executable} lacks what a worker needs: {error}; "
            "pip install 'attnspec[torch]' there"
        ) from error
    rank, local_rank = place_among(request.world_size, os.environ)
    run_session(request, events, stop, rank=rank, local_rank=local_rank)
    return 0


if __name__ == "__main__":
    restart_with_torchs_cudnn()
    leave(main(sys.argv[1:]))
