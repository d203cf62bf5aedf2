"""What a runner's `image` may say: the name of an image folder, or a reference into a registry. Pure.

A name such as `cpu` is a folder with an `image.lock` that pins it. A reference holds a slash, colon or `@`; with
`@sha256:...` it is pinned by the registry's manifest digest, with a tag it is not, since tags move.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnspec.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?|\[[0-9A-Fa-f:]+\](?::[0-9]+)?", re.ASCII)
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_FORMS = "the name of an image folder such as cpu, or REGISTRY/NAME@sha256:DIGEST"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageName:
    """One image as a runner names it: a folder, else a repository with a digest or a tag.

    >>> parse_image("cpu").folder
    'cpu'
    >>> parse_image("localhost:5000/a/b:1").tag
    '1'
    """

    text: str
    folder: str | None = None
    repository: str | None = None
    digest: str | None = None
    tag: str | None = None

    @property
    def pinned(self) -> bool:
        """Whether the name alone, or the lock of its folder, says which image it is."""
        return self.folder is not None or self.digest is not None

    def __str__(self) -> str:
        return self.text


def parse_image(text: str) -> ImageName:
    """An image's name as `image` of a runner gives it. Raises InputError for anything else.

    A reference names its registry (a host with a dot or port, or `localhost`), so that no program fills in its own.
    """
    if _NAME.fullmatch(text):
        return ImageName(text=text, folder=text)
    rest, at, digest = text.partition("@")
    host, slash, path = rest.partition("/")
    tag = None
    if not at and ":" in path:
        path, _, tag = path.rpartition(":")
    elif at and ":" in path:  # a tag beside a digest says nothing; programs differ on it
        raise InputError(f"got {text!r}, with a tag beside its digest; allowed: {_FORMS}")
    known_host = _HOST.fullmatch(host) and (host == "localhost" or any(mark in host for mark in ".:"))
    if not (slash and known_host and all(_PATH.fullmatch(part) for part in path.split("/"))):
        raise InputError(f"got {text!r}; allowed: {_FORMS}, where REGISTRY has a dot or a port")
    if at and not _DIGEST.fullmatch(digest):
        raise InputError(f"got {text!r}; allowed: {_FORMS}, 64 hexadecimal digits in small letters")
    if tag is not None and not _TAG.fullmatch(tag):
        raise InputError(f"got {text!r}; allowed: {_FORMS}")
    return ImageName(
        text=text, repository=f"{host}/{path}", digest=digest if at else None, tag=None if at else tag or "latest"
    )


def by_digest(name: str, digest: str) -> str:
    """A name with a digest in the place of its tag; a registry's port is no tag.

    >>> by_digest("localhost:5000/python", "sha256:ab"), by_digest("python:3.11", "sha256:ab")
    ('localhost:5000/python@sha256:ab', 'python@sha256:ab')
    """
    head, colon, tag = name.rpartition(":")
    return f"{head if colon and '/' not in tag else name}@{digest}"


def is_digest(text: str) -> bool:
    """Whether a text is a digest or image ID, `sha256:` and 64 hexadecimal digits.

    >>> is_digest("sha256:" + "0" * 64), is_digest("sha256:0")
    (True, False)
    """
    return _DIGEST.fullmatch(text) is not None
