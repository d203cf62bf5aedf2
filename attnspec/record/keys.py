"""Result keys: under which conditions a record stands for a case, so that a run resumes what is measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from attnspec.ids import content_id


def result_key(
    case_id: str,
    image_id: str | None,
    provider_versions: Mapping[str, str],
    driver: str | None,
    device_model: str | None,
    variables: Mapping[str, str],
) -> str:
    """Content id of a case measured by certain software on a certain device; probed by the worker, never planned.

    An image ID pins all software inside it, so `provider_versions` (distribution -> version, the libraries that run
    this case) counts only without one. variables: `measured_variables` of the process that measures. Host name, time,
    paths and log levels are no part of it.

    >>> plain = result_key("c0", None, {"torch": "2.11.0"}, "580.1", "NVIDIA H200", {})
    >>> plain == result_key("c0", None, {"torch": "2.12.0"}, "580.1", "NVIDIA H200", {})
    False
    >>> plain == result_key("c0", None, {"torch": "2.11.0"}, "580.1", "NVIDIA H200", {"NCCL_ALGO": "Tree"})
    False
    >>> imaged = result_key("c0", "sha256:ab", {"torch": "2.11.0"}, "580.1", "NVIDIA H200", {})
    >>> imaged == result_key("c0", "sha256:ab", {}, "580.1", "NVIDIA H200", {})
    True
    """
    software = {"image": image_id} if image_id is not None else {"providers": dict(provider_versions)}
    found = {"software": software, "driver": driver, "device_model": device_model}
    # Without any, the key is that of records from before variables were part of it.
    return content_id("result", {"case": case_id, **found, **({"variables": dict(variables)} if variables else {})})
