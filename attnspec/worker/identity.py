"""Under which key the results of a case stand here: by what runs it and on what."""

from __future__ import annotations

import os
from collections.abc import Mapping

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.execute.providers import beside, choose, library, through
from attnspec.record.keys import result_key
from attnspec.support.provider import UNSET
from attnspec.wire import CaseRequest, Implementation, JobRequest
from attnspec.worker.environment import Environment


def identify(request: JobRequest, case: CaseRequest, environment: Environment) -> tuple[str, str, str]:
    """(provider, its version, result_key).

    Raises UnsupportedError when no provider is usable, or the process was started with other variables than those that
    the case's strategy means.
    """
    check_variables(request, case.implementation, os.environ)
    provider, version, versions = provided(case, environment)
    model, variables = environment.support.model, environment.variables
    key = result_key(case.case_id, request.image_id, versions, environment.driver, model, variables)
    return provider, version, key


def check_variables(request: JobRequest, implementation: Implementation, environ: Mapping[str, str]) -> None:
    """Raise UnsupportedError unless case or runner name what the strategy means, and the process has that.

    What happened to be set where attnspec was started names nothing: no one who reads the spec would know of it.
    """
    if implementation.strategy is None:
        return
    module = plugins.load("strategies", implementation.strategy)
    wanted = module.variables(implementation.kernel) if hasattr(module, "variables") else {}
    what = f"{implementation.strategy} over {implementation.kernel}"
    for name, value in wanted.items():
        if (request.env.get(name) or UNSET) != value:
            raise UnsupportedError("backend", f'{what} needs env: {{{name}: "{value}"}}')
        if (environ.get(name) or UNSET) != value:
            raise UnsupportedError(
                "backend",
                f'the worker was started with {name}="{environ.get(name) or UNSET}", which neither case nor runner '
                f'names; unset it, or name what {what} needs, env: {{{name}: "{value}"}}',
            )


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
