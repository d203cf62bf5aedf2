"""The worker as a process: how it ends, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from worker_requests import Worker, case, request, workload

from attnspec.record.journal import read_journal
from attnspec.wire import EXIT_MISSING, Measure, dumps
from attnspec.worker.control import Stop, Stopped, descendants

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
LONG = Measure(min_iters=100_000, max_seconds=600.0, ci=0.0)


def endless(folder, **more):
    """A job that measures for ever."""
    asked = workload(folder, [case("reference", name="a"), case("reference", "bwd", name="b")])
    return request(folder, asked, measure=LONG, **more)


def gone(pid, within_s=10.0):
    """Whether a process ends soon; a zombie has ended."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def listened(command):
    """Run a worker to its end with its control pipe held open."""
    read, write = os.pipe()
    try:
        return subprocess.run(command, stdin=read, capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.close(read)
        os.close(write)


def three_rounds(event):
    return event.kind == "round" and event.case_id == "b" and event.data["round"] >= 2


def test_sigterm_ends_in_good_order_with_every_round_that_was_told(tmp_path):
    worker = Worker(tmp_path, endless(tmp_path))
    worker.wait_for(three_rounds)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM
    told = {(event.case_id, event.data["round"]) for event in worker.events if event.kind == "round"}
    journal = read_journal(tmp_path / "journal")
    kept = {(row["case_id"], row["round"]) for row in journal.timings.to_pylist()}
    assert told <= kept
    assert journal.damaged == ()
    assert worker.outcomes() == {}
    assert all(event.kind != "bye" for event in worker.events)


def test_a_closed_control_pipe_ends_the_worker_and_what_it_started(tmp_path):
    bad = case("faulty", name="bad", kernel_params={"fault": "children"})
    asked = request(tmp_path, workload(tmp_path, [bad]), plugins=(str(HERE / "faulty.py"),))
    worker = Worker(tmp_path, asked)
    worker.wait_for(lambda event: event.phase == "measure")
    end = time.monotonic() + 20
    while not (children := descendants(worker.process.pid)) and time.monotonic() < end:
        time.sleep(0.02)
    assert children
    worker.process.stdin.close()
    assert worker.process.wait(30) in (128 + signal.SIGTERM, -signal.SIGKILL)
    assert all(gone(pid) for pid in children)
    worker.reader.join(10)


def test_a_killed_worker_leaves_a_readable_journal(tmp_path):
    worker = Worker(tmp_path, endless(tmp_path))
    worker.wait_for(three_rounds)
    worker.process.kill()
    assert worker.wait() == -signal.SIGKILL
    told = {(event.case_id, event.data["round"]) for event in worker.events if event.kind == "round"}
    kept = {(row["case_id"], row["round"]) for row in read_journal(tmp_path / "journal").timings.to_pylist()}
    assert told <= kept


def test_sigint_ends_like_sigterm(tmp_path):
    worker = Worker(tmp_path, endless(tmp_path))
    worker.wait_for(three_rounds)
    os.killpg(worker.process.pid, signal.SIGINT)
    assert worker.wait() == 128 + signal.SIGINT


def test_a_missing_device_is_said_before_hello(tmp_path):
    asked = request(tmp_path, workload(tmp_path, [case("reference", name="a")]), device="cuda")
    worker = Worker(tmp_path, asked, CUDA_VISIBLE_DEVICES="")
    assert worker.wait() == EXIT_MISSING
    assert worker.events == []
    assert "the runner expects a CUDA device and torch finds none" in worker.log.read_text()


def test_what_libraries_print_is_no_event(tmp_path):
    plugin = tmp_path / "chatty.py"
    plugin.write_text(
        "import os\nfrom attnspec.kernels.reference import *\nfrom attnspec.kernels import reference\n"
        "PLUGIN_KIND = 'kernels'\n"
        "def lower(*args):\n    print('hello from a library')\n    os.write(1, b'straight to the descriptor\\n')\n"
        "    os.system('echo from a child')\n    return reference.lower(*args)\n"
    )
    asked = request(tmp_path, workload(tmp_path, [case("chatty", name="a")]), plugins=(str(plugin),))
    worker = Worker(tmp_path, asked)
    assert worker.wait() == 0
    assert worker.outcomes() == {"a": "ok"}
    log = worker.log.read_text()
    assert "hello from a library" in log
    assert "straight to the descriptor" in log
    assert "from a child" in log


def test_a_worker_without_torch_says_what_it_lacks(tmp_path):
    path = tmp_path / "request.json"
    path.write_text(dumps(request(tmp_path, workload(tmp_path, [case("reference", name="a")]))))
    blocked = "import sys; sys.modules['torch'] = None; sys.argv = ['worker', sys.argv[1]]; import runpy; "
    done = listened([sys.executable, "-c", f"{blocked}runpy.run_module('attnspec.worker', run_name='__main__')", path])
    assert done.returncode == EXIT_MISSING
    assert done.stdout == ""
    assert "lacks what a worker needs" in done.stderr
    assert "pip install 'torch>=2.11'" in done.stderr


def test_a_damaged_request_is_refused(tmp_path):
    path = tmp_path / "request.json"
    path.write_text('{"wire_version": 99}')
    done = listened([sys.executable, "-m", "attnspec.worker", path])
    assert done.returncode == 1
    assert "request has wire version 99, this worker speaks 1" in done.stderr


class TestStop:
    @pytest.fixture
    def stop(self):
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        made = Stop()
        made.install()
        yield made
        for number, handler in before.items():
            signal.signal(number, handler)

    def test_a_signal_waits_for_the_end_of_a_write(self, stop):
        done = []

        def write():
            with stop.deferred():
                signal.raise_signal(signal.SIGTERM)
                done.append("written")

        with pytest.raises(Stopped, match="SIGTERM"):
            write()
        assert done == ["written"]

    def test_only_the_first_signal_counts(self, stop):
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # ending already


STOPPED_WHILE_IT_TELLS = """
import os, signal, sys
from attnspec.errors import EnvironmentMissingError
from attnspec.worker import __main__ as worker
from attnspec.worker.control import leave

class Told:
    def write(self, words):
        os.kill(os.getpid(), signal.SIGTERM)
        return sys.__stderr__.write(words)
    def flush(self):
        sys.__stderr__.flush()

def lacks(*arguments):
    raise EnvironmentMissingError("no such device")

worker._run, sys.stderr = lacks, Told()
code = worker.main(["request.json"])
os.kill(os.getpid(), signal.SIGINT)
leave(code)
"""


def test_who_is_stopped_while_it_tells_why_it_cannot_work_tells_it_whole():
    """A launcher stops the other ranks when one fails, and these are about to fail as well."""
    done = subprocess.run([sys.executable, "-c", STOPPED_WHILE_IT_TELLS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (EXIT_MISSING, "no such device\n")


STRANDED = """
from attnspec.errors import StrandedError
from attnspec.worker import __main__ as worker

def strand(*arguments):
    raise StrandedError("rank 1 cannot send what other ranks wait for: no memory here")

worker._run = strand
raise SystemExit(worker.main(["request.json"]))
"""


def test_a_rank_that_cannot_send_ends_with_its_words():
    done = subprocess.run([sys.executable, "-c", STRANDED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "StrandedError: rank 1 cannot send what other ranks wait for: no memory here\n"


def test_code_of_ours_that_is_missing_is_not_told_as_a_missing_package(tmp_path):
    """Installing torch again would not bring it back."""
    script = "import sys; sys.modules['attnspec.worker.session'] = None; from attnspec.worker.__main__ import main; "
    asked = tmp_path / "request.json"
    asked.write_text(dumps(endless(tmp_path)))
    done = listened([sys.executable, "-c", f"{script}sys.exit(main([{str(asked)!r}]))"])
    assert done.returncode == EXIT_MISSING
    assert done.stderr.startswith("attnspec's own code is not complete there: import of attnspec.worker.session halted")
