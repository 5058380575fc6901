"""Device and precision chosen for a machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from eaglenet.core import platform
from eaglenet.core.errors import UsageError
from eaglenet.encoders import hardware
from eaglenet.encoders.hardware import (
    Precision,
    autocast_for,
    best_device,
    choose_precision,
    has_fast_bf16,
    require_device,
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> object:
    """Return a function that simulates GPUs: ``machine(cuda=2, xpu=1, half="fp16")``."""

    def build(*, half: Precision = "bf16", **counts: int) -> None:
        monkeypatch.setattr(hardware, "_num_gpus", lambda kind: counts.get(kind, 0))
        monkeypatch.setattr(hardware, "_gpu_precision", lambda kind: half)

    return build


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, "cpu"),
        ({"cuda": 1}, "cuda"),
        ({"mps": 1}, "mps"),
        ({"cuda": 2, "mps": 1}, "cuda"),
        ({"xpu": 1}, "cpu"),  # by name only
    ],
)
def test_auto_takes_a_gpu(machine: object, counts: dict[str, int], expected: str) -> None:
    machine(**counts)  # type: ignore[operator]
    assert best_device() == expected
    assert require_device("auto") == torch.device(expected)


@pytest.mark.parametrize(
    ("choice", "counts", "message"),
    [
        ("gpu", {"cuda": 1}, "device gpu is unknown; use auto, cpu, cuda, cuda:N, mps, xpu"),
        ("cuda", {}, "device cuda: torch sees no such GPU here; use cpu or auto"),
        ("cuda:2", {"cuda": 2}, "device cuda:2: torch sees 2 GPUs here; use cpu or auto"),
        ("mps", {}, "device mps: torch sees no such GPU here; use cpu or auto"),
        ("xpu:1", {"xpu": 1}, "device xpu:1: torch sees one GPU here; use cpu or auto"),
        ("rocm", {"cuda": 1}, "device rocm: this torch is not built for ROCm; install"),
    ],
)
def test_missing_device_is_refused(
    machine: object, choice: str, counts: dict[str, int], message: str
) -> None:
    machine(**counts)  # type: ignore[operator]
    with pytest.raises(UsageError) as caught:
        require_device(choice)
    assert str(caught.value).startswith(message)
    assert require_device("cpu") == torch.device("cpu")


def test_devices_by_name(machine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(cuda=2, xpu=2, mps=1)  # type: ignore[operator]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    for choice, expected in (
        ("xpu", "xpu"),
        ("xpu:1", "xpu:1"),
        ("mps", "mps"),
        ("rocm", "cuda"),
        ("rocm:1", "cuda:1"),
    ):
        assert require_device(choice) == torch.device(expected)


@pytest.mark.parametrize("half", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_gpu_encodes_in_the_precision_that_torch_reports(
    machine: object, kind: str, half: Precision
) -> None:
    machine(half=half, **{kind: 1})  # type: ignore[operator]
    assert choose_precision(kind) == half
    assert has_fast_bf16(kind) == (half == "bf16")
    assert choose_precision(kind, "fp16") == "fp16"


@pytest.mark.parametrize(("is_new", "expected"), [(True, "bf16"), (False, "fp16")])
def test_mps_uses_bf16_since_macos_14(
    is_new: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.backends.mps,
        "is_macos_or_newer",
        lambda major, minor: (major, minor) == (14, 0) and is_new,
    )
    assert choose_precision("mps") == expected


def test_emulated_bf16_of_a_gpu_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    def is_supported(including_emulation: bool = True) -> bool:
        calls.append(including_emulation)
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert choose_precision("cuda") == "fp32"
    assert calls == [False]


@pytest.mark.parametrize("flag", ["amx_bf16", "avx512_bf16", "bf16", "sve_bf16"])
def test_cpu_with_bf16_instructions_encodes_in_bf16(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {flag: True, "avx2": True})
    assert choose_precision("cpu") == "bf16"
    assert choose_precision("cpu", "fp32") == "fp32"


def test_other_cpu_encodes_in_fp32_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags in ({}, {"amx_bf16": False, "avx512_f": True, "neon": True}):
        monkeypatch.setattr(hardware, "_cpu_flags", lambda flags=flags: flags)
        assert not has_fast_bf16("cpu")
        assert choose_precision("cpu") == "fp32"
        assert choose_precision("cpu", "bf16") == "bf16"


@pytest.mark.parametrize("flag", ["dot", "avx512_vnni", "avx_vnni"])
def test_cpu_with_int8_instructions_prefers_bf16(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {flag: True})
    assert choose_precision("cpu") == "int8"
    assert choose_precision("cpu", "fp32") == "fp32"
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {flag: True, "bf16": True})
    assert choose_precision("cpu") == "bf16"


def test_precision_must_fit_the_device() -> None:
    with pytest.raises(UsageError, match="the model is on cuda; use bf16"):
        choose_precision("cuda", "int8")
    with pytest.raises(UsageError, match="fp16 is for GPUs"):
        choose_precision("cpu", "fp16")
    with pytest.raises(UsageError, match="'fp8' is unknown; use auto, fp32, bf16, fp16 or int8"):
        choose_precision("cpu", "fp8")


def test_reads_the_flags_of_this_cpu() -> None:
    flags = hardware._cpu_flags()
    assert flags, "torch reports no capabilities of this CPU: auto would never be bf16"
    assert has_fast_bf16("cpu") == any(flags.get(name) for name in hardware.BF16_FLAGS)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512_vnni\nflags\t: again", "int8"),
        ("flags\t\t: fpu avx512_vnni avx512_bf16", "bf16"),
        ("Features\t: fp asimd asimddp", "int8"),
        ("Features\t: fp asimd asimddp svebf16", "bf16"),
        ("model name\t: none", "fp32"),
    ],
)
def test_flags_of_linux_decide_without_torch(
    cpuinfo: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(platform, "PROC", tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)  # an import would fail
    assert choose_precision("cpu") == expected
    assert not hardware.has_gpu()


def test_only_16_bit_precisions_change_products() -> None:
    left, right = torch.ones(2, 3), torch.ones(3, 5)
    for precision, dtype in (
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("int8", torch.float32),
    ):
        with autocast_for(torch.device("cpu"), precision):
            assert (left @ right).dtype == dtype
