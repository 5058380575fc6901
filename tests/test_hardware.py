"""The device and the precision that a machine is given, and that both are said."""

from __future__ import annotations

import pytest
import torch

from eaglenet.core import hardware
from eaglenet.core.errors import UsageError
from eaglenet.core.hardware import (
    best_device,
    choose_precision,
    encoding_in,
    has_fast_bf16,
    require_device,
)


def test_the_device_is_a_gpu_where_one_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_there, name in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=is_there: answer)
        assert best_device() == name


@pytest.mark.parametrize(
    ("wanted", "count", "said"),
    [
        ("gpu", 1, "--device gpu is unknown; give auto, cpu, cuda or cuda:N"),
        ("cuda", 0, "--device cuda: torch sees no GPU here; give cpu or auto"),
        ("cuda:2", 2, "--device cuda:2: torch sees 2 GPUs here; give cpu or auto"),
    ],
)
def test_a_device_that_is_not_there_is_one_short_line(
    wanted: str, count: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was given, what is there, what to give."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(UsageError) as caught:
        require_device(wanted)
    assert str(caught.value) == said
    assert require_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("flag", ["amx_bf16", "avx512_bf16", "bf16", "sve_bf16"])
def test_a_cpu_that_multiplies_bfloat16_encodes_in_it(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {flag: True, "avx2": True})
    assert choose_precision("cpu") == "bf16"
    assert choose_precision("cpu", "fp32") == "fp32"


def test_a_cpu_without_it_stays_in_single_precision_unless_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for flags in ({}, {"amx_bf16": False, "avx512_f": True, "neon": True}):
        monkeypatch.setattr(hardware, "_cpu_flags", lambda flags=flags: flags)
        assert not has_fast_bf16("cpu")
        assert choose_precision("cpu") == "fp32"
        assert choose_precision("cpu", "bf16") == "bf16"


@pytest.mark.parametrize("flag", ["dot", "avx512_vnni", "avx_vnni"])
def test_a_cpu_that_adds_up_int8_products_is_offered_int8_after_bf16(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {flag: True})
    assert choose_precision("cpu") == "int8"
    assert choose_precision("cpu", "fp32") == "fp32"
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {flag: True, "bf16": True})
    assert choose_precision("cpu") == "bf16"


def test_int8_is_for_cpus() -> None:
    with pytest.raises(UsageError, match="the model is on cuda; give bf16"):
        choose_precision("cuda", "int8")


def test_emulated_bfloat16_of_a_gpu_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def is_supported(including_emulation: bool = True) -> bool:
        asked.append(including_emulation)
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert choose_precision("cuda") == "fp32"
    assert asked == [False]


def test_what_torch_says_of_this_cpu_is_understood() -> None:
    flags = hardware._cpu_flags()
    assert flags, "torch tells nothing of this CPU: auto would never be bf16"
    assert has_fast_bf16("cpu") == any(flags.get(name) for name in hardware.BF16_FLAGS)


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'fp8' is unknown; give auto, fp32, bf16 or int8"):
        choose_precision("cpu", "fp8")


def test_only_bf16_changes_products() -> None:
    left, right = torch.ones(2, 3), torch.ones(3, 5)
    for precision, dtype in (
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("int8", torch.float32),
    ):
        with encoding_in(torch.device("cpu"), precision):
            assert (left @ right).dtype == dtype
