"""Environment variables that change what is measured: libraries read them, so they belong to the conditions of a case.

Left out are those that only say where something lies, what is logged or which of several alike devices is taken, and
whatever a name calls a secret. Of a variable that names a file its content counts, as SHA-256: a path is one machine's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

_KINDS = (
    *("ATEN_", "CUBLAS_", "CUBLASLT_", "CUDA_", "CUDNN_", "CUTE_DSL_", "FLASH_ATTENTION_", "FLASH_ATTN_", "GLOO_"),
    *("GOMP_", "KMP_", "MAGI_", "MKL_", "NCCL_", "NVIDIA_TF32_OVERRIDE", "NVSHMEM_", "NVTE_", "OMP_", "OPENBLAS_"),
    *("PYTORCH_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_", "UCX_"),
)
_LEFT_OUT = (
    re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSPHRASE|CREDENTIALS?)(_|$)"),
    re.compile(r"(^|_)(LOGS?|LOGGING|LOGDEST|LOGERR|LOGINFO|LOGLEVEL|LOGWARN|VERBOSE)(_|$)|^(NCCL|NVTE)_DEBUG(_|$)"),
    re.compile(r"^(CUDA_VISIBLE_DEVICES|NCCL_HOSTID|NCCL_COMM_ID)$"),
)
_PATH = re.compile(r"(^|[\s=:,;])(~|\.\.?)?/[A-Za-z_]")


def measured_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of an environment, by name.

    >>> measured_variables({"NCCL_ALGO": "Tree", "HOME": "/root", "NCCL_DEBUG": "INFO", "TRITON_CACHE_DIR": "/root/t"})
    {'NCCL_ALGO': 'Tree'}
    """
    told = {name: _told(environ[name]) for name in sorted(environ) if _counts(name)}
    return {name: value for name, value in told.items() if value is not None}


def _counts(name: str) -> bool:
    return name.startswith(_KINDS) and not any(pattern.search(name) for pattern in _LEFT_OUT)


def _told(value: str) -> str | None:
    """None for a path that leads to no file."""
    if not _PATH.search(value):
        return value
    path = Path(value)
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return f"file with sha256 {hashlib.file_digest(stream, 'sha256').hexdigest()}"
