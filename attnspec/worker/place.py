"""Which rank a worker is, from the environment that torchrun or srun gives it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from attnspec.errors import EnvironmentMissingError


def place_among(world_size: int, environ: Mapping[str, str]) -> tuple[int, int]:
    """The rank among all and among those of this machine.

    Slurm's variables count only where the launcher says so: a worker may also run as one process of somebody's Slurm
    job. Raises EnvironmentMissingError where not as many tasks were started as the job has ranks.

    >>> place_among(4, {"RANK": "3", "LOCAL_RANK": "1"}), place_among(1, {"SLURM_PROCID": "2"})
    ((3, 1), (0, 0))
    >>> slurm = {"ATTNSPEC_RANKS": "slurm", "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}
    >>> place_among(4, slurm)
    (3, 1)
    """
    if environ.get("ATTNSPEC_RANKS") != "slurm":
        return int(environ.get("RANK", "0")), int(environ.get("LOCAL_RANK", "0"))
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    absent = [name for name in names if not environ.get(name, "").isdigit()]
    if absent:
        raise EnvironmentMissingError(
            f"srun's variables {', '.join(absent)} do not reach the worker; a container must hand them on"
        )
    rank, num_tasks, local_rank = (int(environ[name]) for name in names)
    if num_tasks != world_size:
        raise EnvironmentMissingError(f"srun started {num_tasks} tasks; the job has {world_size} ranks")
    return rank, local_rank
