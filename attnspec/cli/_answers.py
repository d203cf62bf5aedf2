"""What doctor says of one plug-in, as JSON and in lines. Not a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_INDENT = 3
Answer = dict[str, Any]
"""usable, provider, version, reason, fix; of a kernel with several ways to run it `variants`, these with `backend`."""


def unusable(reason: str, fix: str | None) -> Answer:
    """The answer about a plug-in that does not work here."""
    return {"usable": False, "provider": None, "version": None, "reason": reason, "fix": fix}


def told(answer: Answer) -> Answer:
    """An answer as JSON tells it, with the fix behind the reason."""
    reason = "; fix: ".join(filter(None, (answer["reason"], answer["fix"]))) or None
    names = ("usable", "provider", "backend", "version")
    content = {name: answer[name] for name in names if name in answer} | {"reason": reason}
    variants = {"variants": [told(one) for one in answer["variants"]]} if "variants" in answer else {}
    return content | variants


def answer_lines(content: Mapping[str, Mapping[str, Answer]]) -> Iterator[str]:
    """Answers in lines. content: kind -> name of a plug-in -> answer."""
    width = max(_widths(content), default=0)
    for kind, answers in content.items():
        yield ""
        usable = sum(answer["usable"] for answer in answers.values())
        yield f"{kind}: {usable} of {len(answers)} usable" if answers else f"{kind}: none"
        for name, answer in answers.items():
            variants = answer.get("variants", ())
            if len({(one["usable"], one["reason"], one["fix"]) for one in variants}) > 1 or answer["usable"]:
                yield from _lines(answer if answer["usable"] else unusable("", None), name, width)
                yield from _variant_lines(variants, width)
            else:
                yield from _lines(answer, name, width)


def _widths(content: Mapping[str, Mapping[str, Answer]]) -> Iterator[int]:
    """Of names; those of ways to run a kernel stand farther to the right."""
    for answers in content.values():
        for name, answer in answers.items():
            yield len(name)
            yield from (_INDENT + len(called) for called in _called(answer.get("variants", ())))


def _called(variants: Sequence[Answer]) -> list[str]:
    """Each by what tells it from the others."""
    several = len({one["provider"] for one in variants}) > 1
    return [
        " ".join(filter(None, [one["provider"] if several or one["backend"] is None else None, one["backend"]]))
        for one in variants
    ]


def _lines(answer: Answer, name: str, width: int, indent: str = "  ") -> Iterator[str]:
    what = " ".join(filter(None, (answer["provider"], answer["version"])))
    parts = [part for part in (what, answer["reason"]) if part]
    yield f"{indent}{'yes' if answer['usable'] else 'no ':<3}  {name:<{width}}  {', '.join(parts)}".rstrip()
    if answer["fix"]:
        yield f"{indent}     {'':<{width}}  fix: {answer['fix']}"


def _variant_lines(variants: Sequence[Answer], width: int) -> Iterator[str]:
    """Those of the ways to run a kernel, below its own."""
    for one, name in zip(variants, _called(variants), strict=True):
        reason = (one["reason"] or "").removeprefix(f"{one['provider']}: ")
        shown = {**one, "provider": None, "reason": reason}
        yield from _lines(shown, name, width - _INDENT, indent="  " + " " * _INDENT)
