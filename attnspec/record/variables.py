"""Environment variables that change what is measured: libraries read them, so they belong to the conditions of a case.

Left out are those that only say where something lies, what is logged or which of several alike devices is taken, and
whatever looks like a secret: by the variable's name, or a URL with a user's name. Of a variable that names a file its
content counts, as SHA-256: a path is one machine's. A file that cannot be read is a path that leads to no file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

_KINDS = (
    *("ATEN_", "CUBLAS_", "CUBLASLT_", "CUDA_", "CUDNN_", "CUTE_DSL_", "DNNL_", "FLASH_ATTENTION_", "FLASH_ATTN_"),
    *("GLOO_", "GOMP_", "KMP_", "MAGI_", "MKL_", "NCCL_", "NVIDIA_TF32_OVERRIDE", "NVSHMEM_", "NVTE_", "OMP_"),
    *("ONEDNN_", "OPENBLAS_", "PYTORCH_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_", "UCX_", "XFORMERS_"),
)
_LEFT_OUT = (
    re.compile(r"APIKEY|PASSWD|PASSWORD|PASSPHRASE|SECRET|CREDENTIAL", re.IGNORECASE),
    re.compile(r"(^|_)(AUTH|PASS|PWD|(AUTH|ACCESS|PRIVATE)?(KEY|TOKEN))(_|$)", re.IGNORECASE),
    re.compile(r"(^|_)(LOGS?|LOGGING|LOGDEST|LOGERR|LOGINFO|LOGLEVEL|LOGWARN|VERBOSE)(_|$)|^(NCCL|NVTE)_DEBUG(_|$)"),
    re.compile(r"^(CUDA_VISIBLE_DEVICES|NCCL_HOSTID|NCCL_COMM_ID)$"),
)
_USER = re.compile(r"://\S*@|^[^\s/:@]+:\S+@")
_PATH = re.compile(r"(^|[\s=:,;])(~|\.\.?)?/[A-Za-z_]|file:/")
_ALONE = re.compile(r"(~|\.\.?)?/[^=:,;]*")
_FILE = re.compile(r"/|\.[A-Za-z]")


def measured_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of an environment, by name.

    >>> measured_variables({"NCCL_ALGO": "Tree", "HOME": "/root", "NCCL_DEBUG": "INFO", "TRITON_CACHE_DIR": "/root/t"})
    {'NCCL_ALGO': 'Tree'}
    """
    told = {name: _told(name, environ[name]) for name in sorted(environ) if _counts(name)}
    return {name: value for name, value in told.items() if value is not None}


def _counts(name: str) -> bool:
    return name.startswith(_KINDS) and not any(pattern.search(name) for pattern in _LEFT_OUT)


def _told(name: str, value: str) -> str | None:
    """None for a user's name in a URL, and for one path that leads to no file; of other text with paths its SHA-256."""
    if _USER.search(value):
        return None
    content = _content_sha256(value) if _FILE.search(value) or name.endswith("FILE") else None
    if content is not None:
        return f"file with sha256 {content}"
    if not _PATH.search(value):
        return value
    return None if _ALONE.fullmatch(value) else f"text with sha256 {hashlib.sha256(os.fsencode(value)).hexdigest()}"


def _content_sha256(value: str) -> str | None:
    """None where it names no file that can be read."""
    path = Path(value)
    try:
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None
