"""Which environment variables belong to the conditions of a case."""

from __future__ import annotations

import hashlib

import pytest

from attnspec.record.variables import measured_variables


@pytest.mark.parametrize(
    "name",
    [
        *("NCCL_ALGO", "NCCL_NVLS_ENABLE", "TORCH_NCCL_BLOCKING_WAIT", "CUDA_DEVICE_MAX_CONNECTIONS", "GLOO_SOCKET_IFNAME"),
        *("MAGI_ATTENTION_NATIVE_GRPCOLL", "NVTE_FUSED_ATTN", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TRITON_DEBUG"),
        *("CUDNN_DETERMINISTIC", "TORCHINDUCTOR_MAX_AUTOTUNE", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_DISTRIBUTED_DEBUG"),
        *("CUBLAS_WORKSPACE_CONFIG", "FLASH_ATTENTION_DETERMINISTIC", "NVIDIA_TF32_OVERRIDE", "CUBLASLT_WORKSPACE_SIZE"),
    ],
)  # fmt: skip
def test_what_libraries_read_counts(name):
    assert measured_variables({name: ":16:8", "HOME": "/root"}) == {name: ":16:8"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("PATH", "/bin"), ("HF_TOKEN", "x"), ("NCCL_API_KEY", "x"), ("TORCH_HUB_TOKEN", "x"), ("OMPI_X", "1")),
        *(("NCCL_DEBUG", "INFO"), ("TORCH_LOGS", "+dynamo"), ("CUDNN_LOGLEVEL_DBG", "3"), ("KMP_VERBOSE", "1")),
        *(("CUDA_HOME", "/usr/local/cuda"), ("TRITON_CACHE_DIR", "/tmp/x"), ("PYTORCH_KERNEL_CACHE_PATH", "~/cache")),
        *(("CUDA_VISIBLE_DEVICES", "2,3"), ("TORCHINDUCTOR_X", "dir=/home/me/x"), ("NCCL_TOPO_FILE", "/not/there.xml")),
    ],
)
def test_places_logs_secrets_and_chosen_devices_do_not(name, value):
    assert measured_variables({name: value}) == {}


def test_of_a_file_its_content_counts(tmp_path):
    file = tmp_path / "topo.xml"
    file.write_text("<system/>")
    told = measured_variables({"NCCL_TOPO_FILE": str(file)})
    assert told == {"NCCL_TOPO_FILE": f"file with sha256 {hashlib.sha256(b'<system/>').hexdigest()}"}
    assert measured_variables({"NCCL_IB_ADDR_RANGE": "10.0.0.0/8"}) == {"NCCL_IB_ADDR_RANGE": "10.0.0.0/8"}
