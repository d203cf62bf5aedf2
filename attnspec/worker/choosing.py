"""Choosing providers before anything is measured: what is imported and tried first, told with all cases that need it.

Importing a package may end the process, and its first call may hang. The host then knows whose turn it was, and that
other cases cannot get further: it tries these in no worker of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

from attnspec import plugins
from attnspec.execute.joint import Agreement, JointFailure
from attnspec.execute.providers import through
from attnspec.wire import CaseRequest, JobRequest
from attnspec.worker.environment import Environment
from attnspec.worker.identity import provided
from attnspec.worker.reporter import Reporter

Choice = tuple[str, str | None, str | None, str | None]


def choice_of(case: CaseRequest) -> Choice:
    """Kernel, provider, backend and strategy as far as they decide what is imported. Raises AttnspecError for a case
    that names what there is not.

    >>> from attnspec.wire import Implementation
    >>> asked = Implementation(kernel="flex", backend="FLASH", strategy="ulysses")
    >>> choice_of(CaseRequest(case_id="a", implementation=asked, pass_="fwd"))
    ('flex', None, 'FLASH', None)
    """
    asked = case.implementation
    packages = getattr(plugins.load("kernels", asked.kernel), "BACKEND_PACKAGES", {})
    backend = asked.backend if asked.backend in packages else None
    if asked.strategy is None:
        return asked.kernel, asked.provider, backend, None
    strategy = plugins.load("strategies", asked.strategy)
    library = asked.strategy if getattr(strategy, "PROVIDERS", ()) else None
    return asked.kernel, through(strategy, asked.provider), backend, library


class Choosing:
    """What the cases of a job need, each choice made once in this process."""

    def __init__(self, request: JobRequest, environment: Environment, reporter: Reporter, agreement: Agreement) -> None:
        self._environment, self._reporter, self._agreement = environment, reporter, agreement
        self._alike: dict[Choice, list[str]] = {}
        self._choices: dict[str, Choice] = {}
        for workload in request.workloads:
            for case in workload.cases:
                try:
                    choice = choice_of(case)
                except Exception:  # noqa: BLE001  (the case's own outcome, told in its turn)
                    continue
                self._choices[case.case_id] = choice
                self._alike.setdefault(choice, []).append(case.case_id)

    def ahead(self, cases: Iterable[CaseRequest]) -> None:
        """Make the choices of these cases that are not made yet. What they come to the cases tell in their turns; where
        a failure comes from goes into the log. That other ranks are gone is no case's failure: whatever tells of it
        goes through, while it is still this choice's turn.
        """
        for case in cases:
            choice = self._choices.get(case.case_id)
            alike = None if choice is None else self._alike.pop(choice, None)
            if alike is None:
                continue
            self._reporter.choosing(case.case_id, alike)
            try:
                self._agreement.together(provided, case, self._environment)
            except Exception as error:  # the outcome of every case that needs it, told in its turn
                if self._agreement.ranks.size > 1 and not isinstance(error, JointFailure):
                    raise
                self._reporter.trace(case.case_id, error)
            self._reporter.nobody()
