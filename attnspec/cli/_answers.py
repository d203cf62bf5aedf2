"""What doctor says of one plug-in, as JSON and in lines. Not a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Answer = dict[str, Any]
"""usable, provider, version, reason, fix."""


def unusable(reason: str, fix: str | None) -> Answer:
    """The answer about a plug-in that does not work here."""
    return {"usable": False, "provider": None, "version": None, "reason": reason, "fix": fix}


def told(answer: Answer) -> Answer:
    """An answer as JSON tells it, with the fix behind the reason."""
    reason = "; fix: ".join(filter(None, (answer["reason"], answer["fix"]))) or None
    return {"usable": answer["usable"], "provider": answer["provider"], "version": answer["version"], "reason": reason}


def answer_lines(content: Mapping[str, Mapping[str, Answer]]) -> Iterator[str]:
    """Answers in lines. content: kind -> name of a plug-in -> answer."""
    width = max((len(name) for answers in content.values() for name in answers), default=0)
    for kind, answers in content.items():
        yield ""
        usable = sum(answer["usable"] for answer in answers.values())
        yield f"{kind}: {usable} of {len(answers)} usable" if answers else f"{kind}: none"
        for name, answer in answers.items():
            what = " ".join(filter(None, (answer["provider"], answer["version"])))
            parts = [part for part in (what, answer["reason"]) if part]
            yield f"  {'yes' if answer['usable'] else 'no ':<3}  {name:<{width}}  {', '.join(parts)}".rstrip()
            if answer["fix"]:
                yield f"       {'':<{width}}  fix: {answer['fix']}"
