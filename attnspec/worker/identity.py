"""Under which key the results of a case stand here: by what runs it and on what."""

from __future__ import annotations

from attnspec import plugins
from attnspec.execute.providers import beside, choose, library, through
from attnspec.record.keys import result_key
from attnspec.wire import CaseRequest, JobRequest
from attnspec.worker.environment import Environment


def identify(request: JobRequest, case: CaseRequest, environment: Environment) -> tuple[str, str, str]:
    """(provider, its version, result_key). Raises UnsupportedError when no provider is usable."""
    provider, version, versions = provided(case, environment)
    key = result_key(case.case_id, request.image_id, versions, environment.driver, environment.support.model)
    return provider, version, key


def provided(case: CaseRequest, environment: Environment) -> tuple[str, str, dict[str, str]]:
    """(provider, its version, distributions -> versions of all that runs the case). Raises UnsupportedError.

    The version tells that of a package which the backend needs beside the provider, too.
    """
    implementation = case.implementation
    module, asked = plugins.load("kernels", implementation.kernel), implementation.provider
    versions: dict[str, str] = {}
    if implementation.strategy is not None:
        strategy = plugins.load("strategies", implementation.strategy)
        asked, versions = through(strategy, asked), library(strategy)
    provider, version = choose(module, asked, environment.support)
    distribution = next(one.distribution for one in module.PROVIDERS if one.name == provider)
    versions |= {distribution: version}
    if (package := beside(module, implementation.backend)) is not None:
        versions |= dict([package])
        version += f" with {' '.join(package)}"
    return provider, version, versions
