"""What a runner's containers see, run as, and find: between a profile and the launchers that use containers."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attnspec import plugins
from attnspec.catalog import validate_params
from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.images.folder import image_folders
from attnspec.images.pinning import Choice, ImageProblem, PinnedImage, choose, declared, pin
from attnspec.images.store import ImageStore
from attnspec.launch.found import PATIENCE_S, Found, ask
from attnspec.launch.runner_profile import Runner
from attnspec.launchers import Mounted
from attnspec.launchers._containers import (
    CODE,
    Container,
    apptainer_argv,
    apptainer_env,
    cache_env,
    container_env,
    docker_argv,
    ending_argv,
    podman_argv,
    starting_fix,
    sweeping_argv,
)
from attnspec.plan import Image

STORES = ("docker", "podman")
_RENDERERS = {"docker": docker_argv, "podman": podman_argv, "apptainer": apptainer_argv}
NVIDIA = Path("/dev/nvidiactl")


def choices_of(runner: Runner, *, cwd: Path, environ: Mapping[str, str]) -> tuple[Choice, ...]:
    """The images that a runner names, with their folders. Raises InputError for an unknown one."""
    return choose(runner.image, image_folders(cwd=cwd, environ=environ))


def plan_images(choices: Sequence[Choice]) -> tuple[Image, ...]:
    """The same for planning: which image holds what. Plug-in files are mounted into every image."""
    given = tuple(Path(file).stem for file in plugins.loaded_files())
    kernels = [plugins.load("kernels", name) for name in given if name in plugins.names("kernels")]
    brought = [one.name for kernel in kernels for one in getattr(kernel, "PROVIDERS", ())]
    return tuple(
        Image(name=str(choice.name))
        if choice.contents is None
        else Image(
            name=str(choice.name),
            kernels=(*choice.contents.kernels, *given),
            strategies=(*choice.contents.strategies, *given),
            providers=None if choice.contents.providers is None else (*choice.contents.providers, *brought),
        )
        for choice in choices
    )


def quiet(text: str) -> None:
    """Hear what takes long and pass it on to nobody."""


def pinned(runner: Runner, choice: Choice, *, unpinned: bool, tell: Callable[[str], None] = quiet) -> PinnedImage:
    """The image that a runner's jobs run in: checked here where docker or podman hold it, else as it is declared.

    tell: hears of a pull.
    """
    if runner.launcher not in STORES:
        by_id = runner.slurm is not None and runner.slurm.container == "podman"
        return declared(choice, scheme=scheme_of(runner), unpinned=unpinned, by_id=by_id)
    return pin(choice, ImageStore(runner.launcher, tell=tell), unpinned=unpinned, pull_flags=pull_flags(runner))


def scheme_of(runner: Runner) -> str:
    """What a launcher's program wants in front of a reference."""
    return "docker://" if runner.launcher == "apptainer" else ""


def pull_flags(runner: Runner) -> tuple[str, ...]:
    """Flags of a pull. Raises SpecError for wrong options of the launcher."""
    params = validate_params("launchers", runner.launcher, runner.options, path="options")
    return () if params.get("tls_verify", True) else ("--tls-verify=false",)


def mounted(runner: Runner) -> tuple[Mounted, ...]:
    """The mounts of a profile. Raises InputError for one whose source is not there."""
    mounts = []
    for index, mount in enumerate(runner.mounts):
        source = Path(mount.source).expanduser()
        if not source.exists():
            raise InputError(f"{runner.file}: mounts[{index}].source: {source} is not there")
        mounts.append(Mounted(source=str(source), target=mount.target or str(source), read_only=mount.read_only))
    return tuple(mounts)


def user(runner: Runner) -> str | None:
    """Whose files docker's containers write: ours. The others run as the user who starts them anyway."""
    return f"{os.getuid()}:{os.getgid()}" if runner.launcher == "docker" and os.getuid() != 0 else None


def enter(
    runner: Runner, image: PinnedImage, *, package: str, files: tuple[str, ...]
) -> tuple[list[str], dict[str, str], list[str]]:
    """A container for something other than a worker, with attnspec's code and plug-in files and no run folder.

    The command line up to the process, what it adds to the environment, and the command that ends it ([]: none).
    """
    name = f"attnspec-{secrets.token_hex(8)}"
    code = Mounted(source=package, target=f"{CODE}/attnspec")
    # No run folder, whose caches it could use; containers of apptainer share the machine's /tmp.
    caches = cache_env(f"attnspec-{os.getuid()}") if runner.launcher == "apptainer" else {}
    container = Container(
        image=image.run_as,
        env=container_env({**caches, **runner.env}, 1),
        mounts=(code, *(Mounted(source=file, target=file) for file in files), *mounted(runner)),
        gpus=uses_gpus(runner),
        name=name,
        network="none",
        user=user(runner),
    )
    argv = _RENDERERS[runner.launcher](container)
    if runner.launcher == "apptainer":
        return argv, apptainer_env(container), []
    return argv, {}, ending_argv(runner.launcher, name)


def uses_gpus(runner: Runner) -> bool:
    """Whether a runner's containers see GPUs: where it expects them, or leaves it open and there is a driver."""
    return runner.device.type == "cuda" or (runner.device.type == "auto" and NVIDIA.exists())


def end_orphans(launcher: str, run_dir: Path) -> None:
    """End the containers that a host of this run folder left when it was killed, while nobody works in the folder.

    launcher: what it ran with; only some leave any. Raises EnvironmentMissingError where that fails.
    """
    if launcher not in STORES:
        return
    argv = sweeping_argv(launcher, str(run_dir.resolve()))
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentMissingError(f"{launcher} does not answer") from None
    if done.returncode != 0:
        raise EnvironmentMissingError(
            f"{launcher} cannot end what an earlier run left: {done.stderr.decode(errors='replace').strip()}"
        )


def check_driver(runner: Runner) -> None:
    """Raise EnvironmentMissingError where a runner expects a CUDA device and this machine has no driver for one."""
    if runner.device.type == "cuda" and not NVIDIA.exists():
        raise EnvironmentMissingError(
            f"runner {runner.name} expects {runner.expectation()}; this machine has no NVIDIA driver "
            f"({NVIDIA} is not there)"
        )


def look_inside(runner: Runner, image: PinnedImage, python: str) -> Found:
    """What an image's interpreter finds on this machine. Raises EnvironmentMissingError when it fails, with a fix."""
    container = Container(
        image=image.run_as, env=runner.env, gpus=uses_gpus(runner), network="none", mounts=mounted(runner)
    )
    added = apptainer_env(container) if runner.launcher == "apptainer" else {}
    try:
        return ask([*_RENDERERS[runner.launcher](container), python], added, f"{python} in image {image.name}")
    except EnvironmentMissingError as error:
        fix = starting_fix(runner.launcher, str(error))
        if not fix:
            raise
        raise EnvironmentMissingError(
            ImageProblem(name=image.name, why=f"cannot be started: {error}", fix=fix)
        ) from None
