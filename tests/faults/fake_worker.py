"""A worker that measures nothing and misbehaves on demand: speaks the wire protocol, writes a real journal.

It starts in 50 ms, since it imports the standard library and attnspec.wire only: FAKE_PARTS is a pickle of journal
messages that fake_run.py made with the real schemas. FAKE_BEHAVIOUR: a JSON file, kernel -> behaviour, a mapping:
  phase: setup | verify | measure (default), where the fault strikes
  do: ok | exit CODE | signal NAME | hang | stubborn | oom | wrong | forget | full (leave as if the disk were full)
  company_only: only while measured interleaved with others
  attempts: only up to this attempt
Behaviour "start" strikes before the greeting. FAKE_ROUND_S: seconds of a round. FAKE_DRIVER: driver of the environment.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from attnspec.wire import EXIT_JOURNAL, CaseRequest, Event, JobRequest, dumps, loads

NUM_PACKS = 2
NUM_ROUNDS = 3
DRIVER = os.environ.get("FAKE_DRIVER", "1")
ENDED_NS = (0x1122334455667788).to_bytes(8, "little")
ATTEMPT = (0x5A6B7C1D).to_bytes(4, "little")
"""What stands in the messages for the time and the attempt."""


def say(kind: str, **fields: object) -> None:
    os.write(1, (dumps(Event(kind=kind, **fields)) + "\n").encode())


def end_with_the_host() -> None:
    """The control pipe closes when the host is gone."""
    while os.read(0, 4096):
        pass
    os._exit(1)


class Fake:
    def __init__(self, request: JobRequest) -> None:
        self.request = request
        self.behaviours = json.loads(Path(os.environ["FAKE_BEHAVIOUR"]).read_text())
        self.parts = pickle.loads(Path(os.environ["FAKE_PARTS"]).read_bytes())
        self.files: dict[str, int] = {}

    def append(self, stream: str, message: bytes) -> None:
        if stream not in self.files:
            name = f"{self.request.job_id}-rank0-{self.request.attempt}.{stream}.arrows"
            path = Path(self.request.run_dir) / "journal" / name
            self.files[stream] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(self.files[stream], self.parts["schema", stream])
        message = message.replace(ENDED_NS, time.time_ns().to_bytes(8, "little"))
        message = message.replace(ATTEMPT, self.request.attempt.to_bytes(4, "little"))
        os.write(self.files[stream], message)
        os.fsync(self.files[stream])

    def strike(self, kernel: str, phase: str, *, company: bool) -> str:
        held = self.behaviours.get(kernel, {})
        if held.get("phase", "measure") != phase or (held.get("company_only") and not company):
            return "ok"
        if self.request.attempt > held.get("attempts", 10**9):
            return "ok"
        what, _, detail = held.get("do", "ok").partition(" ")
        if what == "exit":
            print(f"fake worker: leaving with {detail}", file=sys.stderr, flush=True)
            os._exit(int(detail))
        if what == "signal":
            os.kill(os.getpid(), getattr(signal, detail))
            time.sleep(60)
        if what == "full":
            print("fake worker: no space left for the journal", file=sys.stderr, flush=True)
            os._exit(EXIT_JOURNAL)
        if what == "hang":
            time.sleep(3600)
        if what == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
            subprocess.Popen([sys.executable, "-S", "-c", child], start_new_session=True)
            time.sleep(3600)
        return what

    def run(self) -> None:
        self.strike("start", "measure", company=False)
        say("hello", data={"driver": DRIVER, "device": "fake device"})
        print("a library that prints to standard output", flush=True)
        self.append("notes", self.parts["note", DRIVER])
        alone = set(self.request.solo)
        for workload in self.request.workloads:
            self.group([case for case in workload.cases if case.case_id not in alone])
        for workload in self.request.workloads:
            for case in workload.cases:
                if case.case_id in alone:
                    self.group([case])
        say("bye")

    def group(self, cases: list[CaseRequest]) -> None:
        company = len(cases) > 1
        todo = []
        for case in cases:
            key = self.parts["key", case.case_id, DRIVER]
            if key in self.request.done:
                say("outcome", case_id=case.case_id, status="ok", data={"result_key": key, "resumed": True})
                continue
            for phase in ("setup", "verify"):
                say("phase", case_id=case.case_id, phase=phase, data={"result_key": key})
                if self.ended(case, key, self.strike(case.implementation.kernel, phase, company=company)):
                    break
            else:
                todo.append((case, key))
        for pack in range(NUM_PACKS):
            for number in range(NUM_ROUNDS):
                for case, key in list(todo):
                    if number < self.request.rounds_done.get(key, {}).get(str(pack), 0):
                        continue
                    say("phase", case_id=case.case_id, phase="measure", data={"result_key": key})
                    if self.ended(case, key, self.strike(case.implementation.kernel, "measure", company=company)):
                        todo.remove((case, key))
                        continue
                    time.sleep(float(os.environ.get("FAKE_ROUND_S", "0")))
                    self.append("timings", self.parts["round", case.case_id, DRIVER, pack, number])
                    say("round", case_id=case.case_id)
        for case, key in todo:
            self.append("outcomes", self.parts["outcome", case.case_id, DRIVER, "ok"])
            say("outcome", case_id=case.case_id, status="ok", data={"result_key": key})

    def ended(self, case: CaseRequest, key: str, what: str) -> bool:
        if what in ("oom", "wrong"):
            self.append("outcomes", self.parts["outcome", case.case_id, DRIVER, what])
            say("outcome", case_id=case.case_id, status=what, text=f"fake: {what}", data={"result_key": key})
        return what in ("oom", "wrong", "forget")


if __name__ == "__main__":
    threading.Thread(target=end_with_the_host, daemon=True).start()
    Fake(loads(JobRequest, Path(sys.argv[1]).read_text())).run()
