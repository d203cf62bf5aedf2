"""What torchrun leaves in a log: the rank that failed first, and the ranks' own words."""

from attnspec.launch.torchrun_log import RankFailure, first_failure, without_torchrun

LOG = """\
the device is missing: no GPU of its own for rank 1
W1129 19:51:10.400000 15083 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 15133 closing signal SIGTERM
E1129 19:51:10.467000 15083 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 3) local_rank: 1
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "<frozen runpy>", line 88, in _run_code
  File "/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1032, in <module>
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
attnspec.worker FAILED
Failures:
[1]:
  time      : 2026-11-29_19:51:10
  rank      : 0 (local_rank: 0)
  exitcode  : 143 (pid: 15133)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_19:51:10
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 15135)
  error_file: <N/A>
============================================================
"""
OWN = 'Traceback (most recent call last):\n  File "/src/attnspec/worker/__main__.py", line 3\nValueError: no\n'


def test_the_root_cause_is_the_rank_that_failed_first():
    assert first_failure(LOG) == RankFailure(rank=1, returncode=3)
    assert first_failure(LOG.replace("exitcode  : 3 (", "exitcode  : -11 (")).returncode == -11
    assert first_failure(OWN) is None
    assert first_failure("") is None


def test_the_ranks_own_words_are_left():
    assert without_torchrun(LOG).strip() == "the device is missing: no GPU of its own for rank 1"
    assert without_torchrun(OWN) == OWN.rstrip("\n")
    assert without_torchrun(OWN + LOG).startswith(OWN)
