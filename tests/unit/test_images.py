"""Images: names, folders, locks, what is refused, how one is built; the stores of docker and podman stood in for."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from attnspec import plugins
from attnspec.cli.image import lock_command, verify_command
from attnspec.errors import EnvironmentMissingError, InputError, SpecError
from attnspec.images.building import GivenBase, build_argv, find_base, labels_of, lock_of, stale_files, unresolved_lock
from attnspec.images.folder import ImageFolder, find_image, image_folders, image_names
from attnspec.images.lock import Base, Lock, lock_text, read_lock
from attnspec.images.pinning import choose, declared, pin, pin_recorded
from attnspec.images.reference import parse_image
from attnspec.images.store import ImageStore
from attnspec.resources import shipped

SHIPPED = [shipped("containers")]
ID, OTHER, DIGEST = (f"sha256:{mark * 64}" for mark in "abc")
REPOSITORY = "registry.example/a/cpu"

# A podman that keeps its images in a file: reference -> image as `image inspect` tells it, or text: a pull fails so.
PODMAN = """\
import json, sys
from pathlib import Path

state = Path(__file__).with_name("images.json")
held = json.loads(state.read_text())
calls = Path(__file__).with_name("calls.jsonl")
with calls.open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
match sys.argv[1:]:
    case ["--version"]:
        print("podman version 4.3.1")
    case ["image", "inspect", reference]:
        found = held["here"].get(reference)
        if found is None:
            sys.exit(f"{reference}: image not known")
        print(json.dumps([found]))
    case ["image", "ls", "--quiet"]:
        if held.get("broken"):
            sys.exit("cannot set up namespace")
    case ["pull", "--quiet", *flags, reference]:
        found = held["registry"].get(reference)
        if found is None:
            sys.exit("manifest unknown")
        held["here"][reference] = held["here"]["sha256:" + found["Id"]] = found
        state.write_text(json.dumps(held))
    case ["run", *rest]:
        print("a banner")
        print(json.dumps({"torch": "2.13.0", "numpy": "2.4.6"}))
    case _:
        sys.exit(f"unexpected {sys.argv}")
"""


class FakePodman:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "podman"
        program.write_text(f"#!{sys.executable}\n{PODMAN}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.hold()

    def hold(self, *, broken: bool = False, registry: dict[str, dict] | None = None, **here: dict) -> None:
        state = {"here": here, "registry": registry or {}, "broken": broken}
        (self.folder / "images.json").write_text(json.dumps(state))

    def calls(self) -> list[list[str]]:
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def image(image_id: str, **labels: str) -> dict:
    return {"Id": image_id.removeprefix("sha256:"), "RepoDigests": [], "Config": {"Labels": labels}, "Size": 1}


@pytest.fixture
def podman(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    fake = FakePodman(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return fake


@pytest.fixture
def folder(tmp_path):
    """The image cpu in a folder of its own."""
    shutil.copytree(shipped("containers") / "cpu", tmp_path / "containers" / "cpu")
    return find_image("cpu", [tmp_path / "containers"])


def locked(folder, **values) -> Lock:
    facts = {
        "image_id": ID,
        "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
        "base": Base(reference="b", digest=DIGEST),
        "unresolved": {"manifest_digest": "in no registry"},
        **values,
    }
    if "manifest_digest" in values:
        facts["unresolved"] = {}
    lock = Lock(
        attnspec_image=1,
        image="cpu",
        containerfile_sha256=folder.checksum(folder.containerfile),
        requirements_sha256=folder.checksum(folder.requirements),
        **facts,
    )
    folder.lock_file.write_text(lock_text(lock))
    return lock


def choice(folder):
    (made,) = choose([parse_image("cpu")], [folder.path.parent])
    return made


@pytest.mark.parametrize(
    ("text", "repository", "digest", "tag"),
    [
        (f"registry.example/a/b@{ID}", "registry.example/a/b", ID, None),
        (f"localhost:5000/a@{ID}", "localhost:5000/a", ID, None),
        ("localhost/a_b/c--d", "localhost/a_b/c--d", None, "latest"),
        ("registry.example:80/a:v1.2", "registry.example:80/a", None, "v1.2"),
    ],
)
def test_references(text, repository, digest, tag):
    name = parse_image(text)
    assert (name.repository, name.digest, name.tag, name.folder) == (repository, digest, tag, None)
    assert name.pinned == (digest is not None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ubuntu:22.04", "where REGISTRY has a dot or a port"),
        ("library/ubuntu", "where REGISTRY has a dot or a port"),
        ("", "allowed: the name of an image folder such as cpu"),
        ("-rm", "allowed: the name"),
        ("registry.example/A", "allowed: the name"),
        ("registry.example/a b", "allowed: the name"),
        ("registry.example/a@sha256:AB", "64 hexadecimal digits"),
        (f"registry.example/a:v1@{ID}", "a tag beside its digest"),
        ("registry.example/a:", "allowed: the name"),
        ("registry.example/../a", "allowed: the name"),
        ("registry.example/\u00e9", "allowed: the name"),
    ],
)
def test_what_is_no_image(text, message):
    with pytest.raises(InputError, match=message):
        parse_image(text)


@pytest.mark.parametrize("name", image_names(SHIPPED))
def test_every_shipped_image_is_whole(name):
    folder = find_image(name, SHIPPED)
    contents, lock = folder.contents(), folder.lock()
    assert set(contents.kernels) <= set(plugins.names("kernels"))
    assert set(contents.strategies) <= set(plugins.names("strategies"))
    assert stale_files(folder, lock) == []
    assert (lock.image, lock.base.reference) == (name, contents.base)
    text = folder.containerfile.read_text()
    assert "ARG BASE\nFROM ${BASE}\n" in text
    assert "--require-hashes" in text
    lines = [line for line in folder.requirements.read_text().splitlines() if line and not line.startswith("#")]
    assert lines and all("==" in line for line in lines[::2])
    assert all("--hash=sha256:" in line for line in lines[1::2])


def test_every_kernel_has_an_image_that_holds_it():
    held = {kernel for name in image_names(SHIPPED) for kernel in find_image(name, SHIPPED).contents().kernels}
    assert held == set(plugins.names("kernels"))


def test_folders_are_looked_up_here_then_in_the_configuration_then_in_the_package(tmp_path):
    folders = image_folders(cwd=tmp_path, environ={"XDG_CONFIG_HOME": str(tmp_path / "c")})
    assert folders == (tmp_path / "containers", tmp_path / "c/attnspec/containers", shipped("containers"))
    with pytest.raises(InputError, match=r"unknown image 'cpus' \(did you mean 'cpu'\?\); allowed: blackwell, "):
        find_image("cpus", folders)


def test_a_lock_tells_what_is_missing(folder):
    lock = locked(folder)
    assert read_lock(folder.lock_file) == lock
    text = folder.lock_file.read_text()
    folder.lock_file.write_text(text.replace("  manifest_digest: in no registry", "  size: unknown"))
    with pytest.raises(SpecError) as caught:
        read_lock(folder.lock_file)
    assert {problem.path: problem.message for problem in caught.value.problems} == {
        "manifest_digest": "is null and not in `unresolved`",
        "unresolved.size": "allowed: manifest_digest, image_id, base.digest, packages",
    }
    folder.lock_file.write_text(text.replace(ID, "sha256:12"))
    with pytest.raises(SpecError, match="image_id: got 'sha256:12'; allowed: sha256: and 64 hexadecimal digits"):
        read_lock(folder.lock_file)
    folder.lock_file.unlink()
    with pytest.raises(
        InputError, match=r"image cpu has no lock: .*image.lock is missing; `attnspec image build cpu --base "
    ):
        folder.lock()


def test_the_locked_image_runs_by_its_id(folder, podman):
    locked(folder)
    podman.hold(**{ID: image(ID)})
    said: list[str] = []
    found = pin(choice(folder), ImageStore("podman", tell=said.append))
    assert said == []
    assert (found.run_as, found.image_id, found.pinned) == (ID, ID, True)


def test_a_locked_image_is_pulled_by_digest(folder, podman):
    locked(folder, reference=REPOSITORY, manifest_digest=DIGEST)
    podman.hold(registry={f"{REPOSITORY}@{DIGEST}": image(ID)})
    said: list[str] = []
    found = pin(choice(folder), ImageStore("podman", tell=said.append), pull_flags=["--tls-verify=false"])
    assert said == [
        f"podman pulls {REPOSITORY}@{DIGEST}; this may take minutes",
        f"podman pulled {REPOSITORY}@{DIGEST} in 0 s, 1 B",
    ]
    assert (found.image_id, found.digest, found.repository) == (ID, DIGEST, REPOSITORY)
    assert ["pull", "--quiet", "--tls-verify=false", f"{REPOSITORY}@{DIGEST}"] in podman.calls()


def test_another_image_is_refused_with_what_differs(folder, podman):
    locked(folder, packages={"torch": "2.12.0", "numpy": "2.4.6"})
    podman.hold(**{folder.tag: image(OTHER)})
    with pytest.raises(EnvironmentMissingError) as caught:
        pin(choice(folder), ImageStore("podman"))
    lines = str(caught.value).splitlines()
    assert lines[1:3] == [
        f"  image ID: locked {ID}, found {OTHER}",
        "  package torch: locked 2.12.0, found 2.13.0",
    ]
    assert "--unpinned runs it and labels the run" in lines[3]
    found = pin(choice(folder), ImageStore("podman"), unpinned=True)
    assert (found.image_id, found.pinned, found.digest) == (OTHER, False, None)


_UNRESOLVED = (
    "is not here, and its lock names no registry to pull it from; "
    "`attnspec image build cpu --base docker.io/library/python@sha256:DIGEST` builds it"
)


def test_an_unresolved_lock_pins_nothing(folder, podman):
    folder.lock_file.write_text(lock_text(unresolved_lock(folder, "no registry")))
    podman.hold(**{folder.tag: image(OTHER)})
    with pytest.raises(
        EnvironmentMissingError, match=rf"image ID: unresolved in the lock \(no registry\), found {OTHER}"
    ):
        pin(choice(folder), ImageStore("podman"))
    podman.hold()
    with pytest.raises(EnvironmentMissingError, match=_UNRESOLVED):
        pin(choice(folder), ImageStore("podman"))


@pytest.mark.parametrize("program", ["podman", "docker"])
def test_the_command_that_is_advised_names_what_the_build_needs(folder, podman, monkeypatch, program):
    """Where no digest of a base is known, a build refuses to begin without one."""
    (podman.folder / "docker").symlink_to(podman.folder / "podman")
    chosen = "" if program == "podman" else " --program docker"
    with_base = f"`attnspec image build cpu{chosen} --base docker.io/library/python@sha256:DIGEST`"
    monkeypatch.chdir(folder.path.parent.parent)
    for lock in ("unresolved", "none"):
        if lock == "none":
            folder.lock_file.unlink()
        with pytest.raises(InputError, match="--base docker.io/library/python@sha256:DIGEST"):
            find_base(folder, folder.contents(), None, ImageStore(program))
        with pytest.raises(EnvironmentMissingError, match=f"image cpu is not here; {with_base} builds it"):
            lock_of(folder, ImageStore(program), date="2026-01-01T00:00:00Z")
    locked(folder)
    assert find_base(folder, folder.contents(), None, ImageStore(program)).digest == DIGEST
    with pytest.raises(EnvironmentMissingError, match=f"; `attnspec image build cpu{chosen}` builds it"):
        pin(choice(folder), ImageStore(program))
    with pytest.raises(EnvironmentMissingError) as caught:
        verify_command.callback(name="cpu", program=program, as_json=False)
    assert str(caught.value) == f"image cpu is not here; `attnspec image build cpu{chosen}` builds it"
    locked(folder, reference=REPOSITORY, manifest_digest=DIGEST)
    with pytest.raises(EnvironmentMissingError, match=f", `{program} pull {REPOSITORY}@{DIGEST}` fetches it"):
        verify_command.callback(name="cpu", program=program, as_json=False)


def test_a_tag_is_refused(podman):
    name = parse_image(f"{REPOSITORY}:v1")
    podman.hold(**{name.text: image(ID)})
    (tagged,) = choose([name], [])
    with pytest.raises(InputError, match=r"is given by a tag, .*; allowed: registry.example/a/cpu@sha256:DIGEST"):
        pin(tagged, ImageStore("podman"))
    with pytest.raises(InputError, match="is given by a tag"):
        declared(tagged)
    assert pin(tagged, ImageStore("podman"), unpinned=True).pinned is False


def test_a_program_that_does_not_work_is_not_an_image_that_is_not_there(folder, podman):
    locked(folder)
    podman.hold(broken=True)
    with pytest.raises(EnvironmentMissingError, match="podman does not work here: cannot set up namespace"):
        pin(choice(folder), ImageStore("podman"))
    with pytest.raises(EnvironmentMissingError, match="nowhere is not on the path"):
        ImageStore("nowhere")


def test_a_pull_that_fails_says_why(podman):
    (digest,) = choose([parse_image(f"{REPOSITORY}@{DIGEST}")], [])
    with pytest.raises(EnvironmentMissingError, match=f"podman cannot pull {REPOSITORY}@{DIGEST}: manifest unknown"):
        pin(digest, ImageStore("podman"))


def test_a_registry_without_tls_is_told_with_the_option_that_pulls_all_the_same(podman):
    (digest,) = choose([parse_image(f"{REPOSITORY}@{DIGEST}")], [])
    program = podman.folder / "podman"
    said = "http: server gave HTTP response to HTTPS client"
    program.write_text(program.read_text().replace("manifest unknown", said))
    with pytest.raises(EnvironmentMissingError, match=rf"{said}; .*`options: \{{tls_verify: false\}}` pulls"):
        pin(digest, ImageStore("podman"))


def test_programs_that_fetch_themselves_get_a_reference_by_digest(folder):
    locked(folder, reference=REPOSITORY, manifest_digest=DIGEST)
    found = declared(choice(folder), scheme="docker://")
    assert (found.run_as, found.image_id) == (f"docker://{REPOSITORY}@{DIGEST}", ID)
    locked(folder)
    with pytest.raises(
        EnvironmentMissingError, match=r"no reference by digest .*manifest_digest: in no registry.* --push"
    ):
        declared(choice(folder))


@pytest.mark.parametrize("has_lock", [True, False])
def test_why_unpinned_changes_nothing_for_programs_that_fetch_themselves_is_said(folder, has_lock):
    folder.lock_file.unlink()
    if has_lock:
        locked(folder)
    with pytest.raises(EnvironmentMissingError) as caught:
        declared(choice(folder), unpinned=True)
    said = str(caught.value)
    known = "manifest_digest: in no registry" if has_lock else "it has no lock"
    assert said.startswith(f"image cpu has no reference by digest to pull ({known}); ")
    build = "`attnspec image build cpu --base docker.io/library/python@sha256:DIGEST` builds it; "
    assert (build in said) != has_lock  # what has an ID was built
    assert "`attnspec image lock cpu --push REGISTRY/NAME`; --unpinned changes nothing here: the machines that" in said
    if has_lock:
        assert declared(choice(folder), unpinned=True, by_id=True).run_as == ID  # podman on the nodes may hold it
        with pytest.raises(EnvironmentMissingError) as caught:
            declared(choice(folder))
        assert "--unpinned" not in str(caught.value)


def test_a_recorded_image_is_had_again_or_refused(podman):
    facts = {"image_id": ID, "digest": DIGEST, "repository": REPOSITORY, "python": "python3", "pinned": True}
    podman.hold(registry={f"{REPOSITORY}@{DIGEST}": image(ID)})
    assert pin_recorded("cpu", facts, ImageStore("podman")).run_as == ID
    podman.hold(registry={f"{REPOSITORY}@{DIGEST}": image(OTHER)})
    with pytest.raises(EnvironmentMissingError, match=f"has image ID {OTHER}; the run used {ID}"):
        pin_recorded("cpu", facts, ImageStore("podman"))
    with pytest.raises(
        EnvironmentMissingError, match=f"the run used image ID {ID}, which is not here and was in no regi"
    ):
        pin_recorded("cpu", {**facts, "digest": None}, ImageStore("podman"))


@pytest.mark.parametrize(
    ("program", "stamp"), [("podman", "--timestamp=1764547200"), ("docker", "--build-arg=SOURCE_DATE_EPOCH=1764547200")]
)
def test_the_build_command(folder, program, stamp):
    base = GivenBase(argument=f"registry.example/p@{DIGEST}", name="registry.example/p", digest=DIGEST)
    argv = build_argv(program, folder, base, labels_of(folder, base), offline=True)
    assert argv[:3] == [program, "build", "--no-cache"]
    assert {stamp, "--network=none", f"--build-arg=BASE=registry.example/p@{DIGEST}"} <= set(argv)
    assert f"--label=org.opencontainers.image.base.digest={DIGEST}" in argv
    assert argv[-3:] == ["--tag=localhost/attnspec/cpu:latest", "--file=Containerfile", "."]


def test_a_base_needs_a_digest(folder, podman):
    folder.lock_file.unlink()
    store, contents = ImageStore("podman"), folder.contents()
    with pytest.raises(InputError, match=r"base docker.io/library/python:3.11-bookworm is unresolved; give it"):
        find_base(folder, contents, None, store)
    with pytest.raises(InputError, match="--base: mine is not stored here"):
        find_base(folder, contents, "mine", store)
    podman.hold(mine=image(OTHER))
    given = find_base(folder, contents, "mine", store)
    assert (given.digest, given.image_id) == (None, OTHER)
    labels = labels_of(folder, given)
    assert labels["attnspec.base.image_id"] == OTHER
    assert labels["org.opencontainers.image.base.digest"] == ""
    given = find_base(folder, contents, f"registry.example/p@{DIGEST}", store)
    assert (given.argument, given.digest) == (f"registry.example/p@{DIGEST}", DIGEST)
    locked(folder, base=Base(reference="registry.example/p:1", digest=DIGEST))
    assert find_base(folder, contents, None, store).argument == f"registry.example/p@{DIGEST}"
    assert find_base(folder, contents, None, store).image_id is None
    local = {"manifest_digest": "in no registry", "base.digest": "local"}
    locked(folder, base=Base(reference="mine", image_id=OTHER), unresolved=local)
    podman.hold()
    with pytest.raises(InputError, match=f"was built from mine with image ID {OTHER}, which is not stored here under"):
        find_base(folder, contents, None, store)
    podman.hold(mine=image(ID))
    with pytest.raises(InputError, match="is not stored here under that name"):
        find_base(folder, contents, None, store)
    podman.hold(mine=image(OTHER))
    given = find_base(folder, contents, None, store)
    assert (given.argument, given.name, given.digest, given.image_id) == ("mine", "mine", None, OTHER)


def test_a_lock_is_of_the_image_that_the_folder_built(folder, podman):
    base = GivenBase(argument="registry.example/p", name="registry.example/p", digest=DIGEST)
    podman.hold(**{folder.tag: image(ID, **labels_of(folder, base))})
    lock = lock_of(folder, ImageStore("podman"), date="2026-01-01T00:00:00Z")
    assert lock.base == Base(reference="registry.example/p", digest=DIGEST)
    assert lock.build is not None and f"--build-arg=BASE=registry.example/p@{DIGEST}" in lock.build.command
    base = GivenBase(argument="mine", name="mine", image_id=OTHER)
    inherited = labels_of(folder, GivenBase(argument="mine", name="registry.example/p", digest=DIGEST))
    podman.hold(**{folder.tag: image(ID, **{**inherited, **labels_of(folder, base)})})
    lock = lock_of(folder, ImageStore("podman"), date="2026-01-01T00:00:00Z")
    assert (lock.image_id, lock.packages) == (ID, {"numpy": "2.4.6", "torch": "2.13.0"})
    assert lock.base == Base(reference="mine", digest=None, image_id=OTHER)
    assert lock.build is not None and lock.build.program == "podman 4.3.1"
    assert lock.unresolved == {
        "manifest_digest": "it has been pushed to no registry",
        "base.digest": "the base was an image of the building machine; base.image_id tells which",
    }
    kept = ("registry.example/cpu", DIGEST)
    for image_id, expected in ((ID, kept), (OTHER, (None, None))):
        locked(folder, image_id=image_id, reference=kept[0], manifest_digest=kept[1])
        again = lock_of(folder, ImageStore("podman"), date="2026-01-01T00:00:00Z")
        assert (again.reference, again.manifest_digest) == expected
    folder.containerfile.write_text("ARG BASE\nFROM ${BASE}\nRUN true\n")
    with pytest.raises(InputError, match="was built from another containerfile than lie"):
        lock_of(folder, ImageStore("podman"), date="2026-01-01T00:00:00Z")
    assert stale_files(folder, lock) == ["Containerfile: has changed since it was locked"]


@pytest.mark.parametrize(
    "reference", ["--all-tags/x", "registry.example/a:1", f"registry.example/a@{ID}", "a b/c", "cpu"]
)
def test_a_lock_names_a_repository_and_nothing_else(folder, reference):
    locked(folder, reference=REPOSITORY, manifest_digest=DIGEST)
    text = folder.lock_file.read_text()
    folder.lock_file.write_text(text.replace(f"reference: {REPOSITORY}", f"reference: {json.dumps(reference)}"))
    with pytest.raises(SpecError, match="reference: .*allowed: REGISTRY/NAME without tag and digest"):
        folder.lock()


@pytest.mark.parametrize("options", [[], ["--requirements"], ["--unresolved", "no registry"]])
def test_a_lock_is_not_written_into_the_installed_package(folder, monkeypatch, options):
    monkeypatch.setattr("attnspec.resources._PACKAGE", folder.path.parent.parent)
    inside = folder.path.parent.parent / "shipped" / "containers" / folder.name
    shutil.copytree(folder.path, inside)
    monkeypatch.setattr("attnspec.cli.image._find", lambda name: ImageFolder(inside))
    before = (inside / "image.lock").read_bytes()
    with pytest.raises(InputError, match=r"copy it to ./containers/cpu, which comes first, and lock it there"):
        lock_command.main(["cpu", *options], standalone_mode=False)
    assert (inside / "image.lock").read_bytes() == before
