"""Environment variables that an implementation needs, asked while planning. Pure.

A library reads them when it is imported, so they must be there before a worker starts: a case's own `env`, else that of
the runner. What a shell or an image sets does not count, for no record of the case would say it.
"""

from __future__ import annotations

from collections.abc import Mapping

from attnspec.plan.asked import Asked
from attnspec.plan.model import Case, Unsupported
from attnspec.support.provider import UNSET


def misled(case: Case, asked: Asked, runner_env: Mapping[str, str] | None) -> Unsupported | None:
    """Why a case's environment does not let its strategy run; None where it does.

    runner_env: None where nobody looked at the runner; then only what the case says itself can be wrong.
    """
    for name, value in variables_of(asked).items():
        held = {**(runner_env or {}), **case.env}.get(name)
        if (held is None and runner_env is None) or (held or UNSET) == value:
            continue
        who = f"{case.implementation.strategy} with {case.implementation.kernel}"
        got = "it is not set" if held is None else f'got "{held}"'
        return Unsupported(
            reason_code="backend", reason=f'{who} needs env: {{{name}: "{value}"}} in the spec or runner; {got}'
        )
    return None


def variables_of(asked: Asked) -> Mapping[str, str]:
    """What a strategy's `variables` names for its kernel."""
    variables = getattr(asked.strategy, "variables", None)
    return {} if variables is None else variables(asked.implementation.kernel)
