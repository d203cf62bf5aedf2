"""Content ids: the same content gives the same id on every machine, whatever the order of its keys. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

ID_LENGTH = 16
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(content: Any) -> str:
    """JSON with sorted keys and no spaces. Takes only JSON's own types; NaN and infinities are refused.

    >>> canonical_json({"b": 1, "a": [True, None]})
    '{"a":[true,null],"b":1}'
    """
    return _ENCODER.encode(content)


def content_id(kind: str, content: Any) -> str:
    """The first 16 hexadecimal digits of SHA-256 over `kind` and the canonical JSON of `content`.

    >>> content_id("mask", {"a": 1, "b": 2}) == content_id("mask", {"b": 2, "a": 1})
    True
    """
    return text_id(kind, canonical_json(content))


def text_id(kind: str, text: str) -> str:
    """`content_id` of content whose canonical JSON is `text`, for callers that put it together from parts.

    >>> text_id("mask", '{"a":1}') == content_id("mask", {"a": 1})
    True
    """
    return hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()[:ID_LENGTH]
