"""Packages that are missing, broken, too old, or compute the wrong thing cost their own kernel, with the real message."""

import importlib
import importlib.metadata
import shutil
import subprocess
import sys
import types
import uuid

import pytest
import torch

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.execute import providers
from attnspec.execute.providers import beside, choose, installed_version, library, through
from attnspec.support import Device, Provider, Support
from attnspec.wire import CaseRequest, Implementation
from attnspec.worker.environment import Environment
from attnspec.worker.identity import provided

CPU = Device(type="cpu")
ENVIRONMENT = Environment(device=torch.device("cpu"), support=CPU, driver=None, variables={}, facts={})
BROKEN = {
    "undefined symbol": (
        "raise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2')",
        "broken_package",
        "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2",
    ),
    "shared library": (
        "raise OSError('libcudart.so.12: cannot open shared object file: No such file or directory')",
        "broken_package",
        "OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
    ),
    "own dependency": (
        "import a_package_that_is_nowhere",
        "broken_package",
        "ModuleNotFoundError: No module named 'a_package_that_is_nowhere'",
    ),
    "cause": (
        """
try:
    raise OSError('libcudart.so.12: cannot open')
except OSError as error:
    raise ImportError('_C.so cannot be loaded') from error
""",
        "broken_package",
        "ImportError: _C.so cannot be loaded, from OSError: libcudart.so.12: cannot open",
    ),
    "exit": ("import sys; sys.exit('needs a licence')", "broken_package", "SystemExit: needs a licence"),
    "anything": ("raise RuntimeError('no device\\n  found')", "broken_package", "RuntimeError: no device found"),
    "too old": ("__version__ = '0.0.1'", "broken_package", "is installed, >=1.0 is needed"),
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes an importable package of the given source and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(source):
        name = f"fake_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return make


def provider_of(module, name="fake", requires=">=1.0"):
    fix = f"pip install {name}"
    return Provider(name=name, distribution=f"no-{name}", module=module, requires=requires, fix=fix)


def kernel_of(*held, wrong=0.0, raises=None):
    """A kernel module that computes as sdpa does, times 1 + wrong."""
    real = plugins.load("kernels", "sdpa")
    module = types.ModuleType(f"kernel_{uuid.uuid4().hex}")

    def bind(lowered, problem, params, provider, device):
        if raises is not None:
            raise raises
        bound = real.bind(lowered, problem, params, provider, device)
        forward = bound.forward

        def scaled(inputs):
            made = forward(inputs)
            made.out = made.out * (1 + wrong)
            return made

        bound.forward = scaled
        return bound

    module.PROVIDERS = held
    module.SUPPORT = Support(devices=("cpu",), dtypes=("float32",), max_head_dim=64)
    module.Params, module.lower, module.bind = real.Params, real.lower, bind
    return module


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_package_gives_its_own_message(kind, package):
    source, code, message = BROKEN[kind]
    with pytest.raises(UnsupportedError) as caught:
        installed_version(provider_of(package(source)))
    assert caught.value.reason_code == code
    assert message in caught.value.reason


@pytest.mark.parametrize("module", ["a_package_that_is_nowhere", "a_package_that_is_nowhere.inside"])
def test_a_missing_package_is_missing(module):
    with pytest.raises(UnsupportedError) as caught:
        installed_version(provider_of(module))
    assert caught.value.reason_code == "missing_package"
    assert caught.value.reason == "ModuleNotFoundError: No module named 'a_package_that_is_nowhere'"


def test_the_first_usable_provider_is_chosen_and_remembered(package, monkeypatch):
    good = package("__version__ = '1.2'")
    module = kernel_of(provider_of("a_package_that_is_nowhere", "first"), provider_of(good, "second"))
    assert choose(module, None, CPU) == ("second", "1.2")
    monkeypatch.setattr(providers, "tiny_call", None)  # would fail if it were called again
    assert choose(module, None, CPU) == ("second", "1.2")


def test_the_next_provider_is_tried_after_one_that_ends_the_process(package):
    bad, good = package("import sys; sys.exit(7)"), package("__version__ = '1.2'")
    module = kernel_of(provider_of(bad, "first"), provider_of(good, "second"))
    assert choose(module, None, CPU) == ("second", "1.2")
    with pytest.raises(UnsupportedError, match=r"first: SystemExit: 7 \(pip install first\)"):
        choose(module, "first", CPU)


def library_without_another(folder):
    """A shared library that wants libnot_here.so.12, which is not there any more."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build a shared library with")
    source, made = folder / "empty.c", folder / "xformers" / "flash_attn_3" / "_C.so"
    source.write_text("int nothing(void) { return 0; }\n")
    made.parent.mkdir(parents=True)
    absent = folder / "libnot_here.so.12"
    soname = f"-Wl,-soname,{absent.name}"
    subprocess.run([compiler, "-shared", "-fPIC", soname, "-o", absent, source], check=True)
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", made, source, absent], check=True)
    absent.unlink()
    return made


def test_the_library_that_a_library_lacks_is_named(tmp_path, monkeypatch):
    """torch tells the file that it was asked for; what the loader said is its error's cause."""
    library = library_without_another(tmp_path)
    (tmp_path / "xformers" / "__init__.py").touch()
    (tmp_path / "xformers-0.0.34.dist-info").mkdir()
    (tmp_path / "xformers-0.0.34.dist-info" / "METADATA").write_text("Name: xformers\nVersion: 0.0.34\n")
    monkeypatch.syspath_prepend(tmp_path)
    fa3 = plugins.load("kernels", "fa3")
    (provider,) = (one for one in fa3.PROVIDERS if one.name == "xformers")
    module = kernel_of(provider)
    module.bind = lambda *_: fa3._register(provider.name)
    with pytest.raises(UnsupportedError) as caught:
        choose(module, "xformers", CPU)
    assert caught.value.reason_code == "broken_package"
    assert str(library) in caught.value.reason
    assert "libnot_here.so.12: cannot open shared object file" in caught.value.reason
    assert provider.fix in caught.value.reason


def test_a_named_provider_is_the_only_one_tried(package):
    module = kernel_of(provider_of(package("__version__ = '1.2'"), "good"), provider_of("nowhere_at_all", "absent"))
    with pytest.raises(UnsupportedError, match="absent: ModuleNotFoundError: No module named 'nowhere_at_all'") as one:
        choose(module, "absent", CPU)
    assert one.value.reason_code == "missing_package"
    assert "(pip install absent)" in one.value.reason
    with pytest.raises(UnsupportedError, match=r"no provider 'goood' \(did you mean 'good'\?\); allowed: good, absent"):
        choose(module, "goood", CPU)


def test_all_messages_are_told_and_asking_again_tells_them_again(package):
    module = kernel_of(provider_of("nowhere_at_all", "absent"), provider_of(package("raise OSError('libcuda')"), "bad"))
    for _ in range(2):
        with pytest.raises(UnsupportedError) as caught:
            choose(module, None, CPU)
        assert caught.value.reason_code == "broken_package"
        assert caught.value.reason == (
            "absent: ModuleNotFoundError: No module named 'nowhere_at_all' (pip install absent); "
            "bad: OSError: libcuda (pip install bad)"
        )


@pytest.mark.parametrize(
    "raised",
    [
        AttributeError("module has no attribute 'attn'"),  # a placeholder
        OSError("libcudart.so.12: cannot open shared object file"),  # a library that is loaded late
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),  # built for others
        NotImplementedError(),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_a_package_that_imports_and_cannot_compute_is_not_usable(raised, package):
    module = kernel_of(provider_of(package(""), requires=""), raises=raised)
    with pytest.raises(UnsupportedError) as caught:
        choose(module, None, CPU)
    assert caught.value.reason_code == "broken_package"
    assert caught.value.reason == f"fake: {type(raised).__name__}: {raised} (pip install fake)"


@pytest.mark.parametrize("wrong", [0.1, float("nan")])
def test_a_package_that_computes_the_wrong_thing_is_not_usable(wrong, package):
    module = kernel_of(provider_of(package(""), requires=""), wrong=wrong)
    with pytest.raises(UnsupportedError, match="a call with 2 heads and 200 tokens gives a wrong out") as caught:
        choose(module, None, CPU)
    assert caught.value.reason_code == "broken_package"


def test_a_kernel_that_refuses_says_why(package):
    module = kernel_of(provider_of(package(""), requires=""))
    module.SUPPORT = Support(devices=("cuda",), dtypes=("float32",), max_head_dim=64)
    with pytest.raises(UnsupportedError, match="fake: runs on cuda, not on cpu") as caught:
        choose(module, None, CPU)
    assert caught.value.reason_code == "device"


def test_running_out_of_memory_is_not_the_packages_fault(package):
    module = kernel_of(provider_of(package(""), requires=""), raises=torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        choose(module, None, CPU)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_strategy_whose_library_is_broken_is_unsupported_with_the_real_message(package, kind):
    source, code, words = BROKEN[kind]
    strategy = types.SimpleNamespace(PROVIDERS=(provider_of(package(source)),))
    with pytest.raises(UnsupportedError) as error:
        library(strategy)
    assert error.value.reason_code == code
    assert words in error.value.reason
    assert error.value.reason.endswith("(pip install fake)")


def test_the_library_of_a_strategy_counts_with_its_version(package):
    strategy = types.SimpleNamespace(PROVIDERS=(provider_of(package("__version__ = '1.5'")),))
    assert library(strategy) == {"no-fake": "1.5"}
    assert library(plugins.load("strategies", "ring_p2p")) == {}


@pytest.mark.parametrize("name", [one for one in plugins.names("strategies") if one.startswith("te_")])
def test_a_library_that_is_not_here_says_so_and_how_to_get_it(name):
    with pytest.raises(UnsupportedError, match="No module named 'transformer_engine' .pip install") as error:
        library(plugins.load("strategies", name))
    assert error.value.reason_code == "missing_package"


def test_a_strategy_that_calls_its_kernel_itself_has_no_other_provider():
    te, own = plugins.load("strategies", "te_p2p"), plugins.load("strategies", "ring_p2p")
    assert through(te, None) == through(te, "transformer-engine") == "transformer-engine"
    assert through(own, None) is None
    assert through(own, "nvidia-cudnn-frontend") == "nvidia-cudnn-frontend"
    with pytest.raises(UnsupportedError, match="through transformer-engine, not nvidia-cudnn-frontend"):
        through(te, "nvidia-cudnn-frontend")


@pytest.fixture
def flash_attention_4(tmp_path, monkeypatch):
    """Makes a flash-attn-4 of a version whose module is the given source; without one, nothing but its outer folder."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(providers, "_found", {})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").touch()

    def make(source, version="4.0.0b36"):
        (tmp_path / "flash_attn" / "cute").mkdir()
        (tmp_path / "flash_attn" / "cute" / "__init__.py").touch()
        (tmp_path / "flash_attn" / "cute" / "interface.py").write_text(source)
        folder = tmp_path / f"flash_attn_4-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: flash-attn-4\nVersion: {version}\n")
        importlib.invalidate_caches()

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("made", "code", "reason"),
    [
        (None, "missing_package", "ModuleNotFoundError: No module named 'flash_attn.cute'"),
        (("raise ImportError('undefined symbol')",), "broken_package", "ImportError: undefined symbol"),
        (
            ("import types; types.ModuleType('cutlass').CACHE",),  # what parts of CUTLASS of several versions give
            "broken_package",
            "AttributeError: module 'cutlass' has no attribute 'CACHE'",
        ),
        (("", "4.0.0b20"), "broken_package", "flash-attn-4 4.0.0b20 is installed, >=4.0.0b30 is needed"),
    ],
    ids=["missing", "symbol", "attribute", "old"],
)
def test_a_backend_over_a_package_is_unsupported_as_that_packages_kernel_is(flash_attention_4, made, code, reason):
    if made is not None:
        flash_attention_4(*made)
    flex, (own,) = plugins.load("kernels", "flex"), plugins.load("kernels", "fa4").PROVIDERS
    for _ in range(2):
        with pytest.raises(UnsupportedError) as caught:
            provided(flex_case("FLASH"), ENVIRONMENT)
        assert (caught.value.reason_code, caught.value.reason) == (code, f"flash-attn-4: {reason} ({own.fix})")
    with pytest.raises(UnsupportedError) as of_fa4:
        installed_version(own)
    assert (of_fa4.value.reason_code, of_fa4.value.reason) == (code, reason)
    assert beside(flex, "TRITON") is beside(flex, None) is None


def test_the_package_of_a_backend_counts_with_its_version(flash_attention_4):
    flash_attention_4("")
    torchs = importlib.metadata.version("torch")
    provider, version, versions = provided(flex_case("FLASH"), ENVIRONMENT)
    assert (provider, version) == ("torch", f"{torchs} with flash-attn-4 4.0.0b36")
    assert versions == {"torch": torchs, "flash-attn-4": "4.0.0b36"}
    assert provided(flex_case("TRITON"), ENVIRONMENT) == ("torch", torchs, {"torch": torchs})


def flex_case(backend):
    return CaseRequest(case_id="a", implementation=Implementation(kernel="flex", backend=backend), pass_="fwd")


def test_providers_of_strategies_kernels_are_among_those_of_their_kernels():
    for name in plugins.names("strategies"):
        strategy = plugins.load("strategies", name)
        own = getattr(strategy, "KERNEL_PROVIDER", None)
        assert (own is None) == (not getattr(strategy, "PROVIDERS", ()))
        for kernel in strategy.KERNELS if own else ():
            assert own in [provider.name for provider in plugins.load("kernels", kernel).PROVIDERS]
