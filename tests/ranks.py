"""Several gloo ranks in processes of their own, kept for many calls: `with RankPool(4) as pool: pool.run(function, ...)`.

Processes are forked from a server that has imported torch already, so a pool of four is there in a second or two.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

TIMEOUT_S = 120
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed", "attnspec.exchange.groups", "attnspec.kernels.sdpa"])


class RankError(AssertionError):
    """A call failed on some ranks."""


class RankPool:
    def __init__(self, size: int) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        self._pipes, self._processes = [], []
        for rank in range(size):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_serve, args=(theirs, rank, size, self._folder.name), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def start(self, function, *args, **kwargs):
        """Call function(ranks, *args, **kwargs) on every rank; it must be importable."""
        for pipe in self._pipes:
            pipe.send((function, args, kwargs))

    def results(self, timeout_s=TIMEOUT_S):
        """What each rank returned, or its exception as (name, text)."""
        found = []
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if not pipe.poll(timeout_s):
                found.append(("silent", f"no answer in {timeout_s} s"))
                timeout_s = 1
                continue
            try:
                found.append(pipe.recv())
            except EOFError:
                process.join(1)
                found.append(("died", process.exitcode))
        return found

    def run(self, function, *args, **kwargs):
        """Results of all ranks; raises when any failed."""
        self.start(function, *args, **kwargs)
        found = self.results()
        failed = [f"rank {rank}: {value}" for rank, (kind, value) in enumerate(found) if kind != "returned"]
        if failed:
            raise RankError("\n".join(failed))
        return [value for _, value in found]


def _serve(pipe, rank, size, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = _loopback()
    import torch
    import torch.distributed as dist

    from attnspec.errors import StrandedError
    from attnspec.exchange.groups import Ranks

    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), size)
    ranks = Ranks.join(rank=rank, size=size, device=torch.device("cpu"), timeout_s=TIMEOUT_S, store=store)
    while (task := pipe.recv()) is not None:
        function, args, kwargs = task
        try:
            pipe.send(("returned", function(ranks, *args, **kwargs)))
        except Exception:  # noqa: BLE001  (whatever a test's function raises is what the test is to see)
            pipe.send(("raised", traceback.format_exc()))
        except StrandedError:  # as the worker does it: nothing waits for what cannot come
            os._exit(1)
    ranks.leave()


def _loopback():
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
