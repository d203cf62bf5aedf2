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
        *("ONEDNN_MAX_CPU_ISA", "DNNL_DEFAULT_FPMATH_MODE", "XFORMERS_DISABLED", "NVTE_MONKEY", "TORCH_COMPASS"),
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
        *(("CUDA_VISIBLE_DEVICES", "2,3"), ("NCCL_TOPO_FILE", "/not/there.xml")),
        *(("UCX_PASSWD", "x"), ("TORCH_APIKEY", "x"), ("TORCH_PASS", "x"), ("UCX_AUTH", "x"), ("TORCH_AUTH_KEY", "x")),
        *(("TORCH_CREDENTIAL", "x"), ("TORCH_X", "https://me:pw@host/x"), ("TORCH_X", "me:pw@host:80")),
        ("TORCH_X", "/" + 300 * "a"),
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


def test_a_relative_path_is_a_file_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("topo.xml", "topo", "1"):
        (tmp_path / name).write_text("<system/>")
    content = f"file with sha256 {hashlib.sha256(b'<system/>').hexdigest()}"
    told = {"NCCL_TOPO_FILE": content, "NCCL_GRAPH": content}
    assert measured_variables({"NCCL_TOPO_FILE": "topo", "NCCL_GRAPH": "topo.xml"}) == told
    others = {"OMP_NUM_THREADS": "1", "NCCL_TOPO_FILE": "gone.xml", "TORCH_X": 150 * "a/b"}
    assert measured_variables(others) == others


@pytest.mark.parametrize("value", ["/home/me/a:/home/me/b", "file:/home/me/x", "file:///home/me/x", "dir=/home/me/x"])
def test_of_paths_in_a_longer_text_a_change_is_seen_and_no_path_told(value):
    told = measured_variables({"TORCHINDUCTOR_X": value})
    assert told == {"TORCHINDUCTOR_X": f"text with sha256 {hashlib.sha256(value.encode()).hexdigest()}"}


@pytest.mark.parametrize("method", ["is_file", "open"])
def test_a_file_that_cannot_be_read_is_none(tmp_path, monkeypatch, method):
    def refuse(*_args):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "x").write_text("x")
    monkeypatch.setattr(f"pathlib.Path.{method}", refuse)
    assert measured_variables({"TORCH_HOME": str(tmp_path / "x")}) == {}
