"""The checks that every other test stands on do fail where they should."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

jaxtyping = pytest.importorskip("jaxtyping")
checked_signatures = pytest.importorskip("checked_signatures")

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
from jaxtyping import Float
from torch import Tensor
Rows = Float[Tensor, "rows dim"]

def product(a: Float[Tensor, "rows dim"], b: Float[Tensor, "dim"]) -> Float[Tensor, "rows"]:
    return a[:, 0]

def shorter(a: Rows) -> Rows:
    return a[1:]

def several(pairs: list[tuple[str, Rows]] | None = None) -> None: ...

def longer(text: str, times: int = 2) -> str:
    return text * times if times else times

@dataclass
class Pair:
    first: Float[Tensor, "size"]
    second: Float[Tensor, "size"]

def adder(number: int):
    def add(other: int) -> int:
        return other + number if number < 9 else "many"
    return add

class Box:
    @property
    def wrong(self) -> int:
        return "text"
    @classmethod
    def made(cls, number: int) -> Box:
        return cls()
    @staticmethod
    def chosen(number: int) -> int:
        return number
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module of its own, imported as those of the package are."""
    folder = tmp_path_factory.mktemp("checked")
    (folder / "checked_example.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    hook = checked_signatures.check_signatures(["checked_example"])
    yield importlib.import_module("checked_example")
    sys.path.remove(str(folder))
    del sys.modules["checked_example"]
    hook.uninstall()


def test_sound_calls_pass(checked: ModuleType) -> None:
    assert checked.product(torch.ones(3, 2), torch.ones(2)).shape == (3,)
    assert checked.longer("a", times=3) == "aaa"
    assert checked.Box.chosen(1) == 1
    assert isinstance(checked.Box.made(1), checked.Box)
    checked.several([("a", torch.ones(3, 2))])
    checked.Pair(torch.ones(3), torch.ones(3))


def test_sizes_of_one_signature_are_compared(checked: ModuleType) -> None:
    wrong = jaxtyping.TypeCheckError
    with pytest.raises(wrong):
        checked.product(torch.ones(3, 2), torch.ones(3))
    with pytest.raises(wrong):
        checked.shorter(torch.ones(3, 2))  # behind a name, of what is given back
    with pytest.raises(wrong):
        checked.several([("a", torch.ones(3))])
    with pytest.raises(wrong):
        checked.Pair(torch.ones(3), torch.ones(2))


def test_tensors_are_checked_as_jaxtyping_does(checked: ModuleType) -> None:
    """Also after a check that failed, which leaves no size behind."""
    from jaxtyping import Bool, Float, Float32, Int, Shaped, UInt8
    from torch import Tensor

    texts = ("rows dim", "rows 2", "2 rows", "rows rows", "dim", "*any dim", "", "_ dim", "#rows 2")
    shapes = [kind[Tensor, text] for kind in (Float, Float32, Int, Shaped) for text in texts]
    shapes += [Bool[Tensor, "rows"], UInt8[Tensor, "rows dim"], Float[Tensor, "dim rows"]]
    ones, wide = torch.ones(3, 2), torch.ones(2, 3)
    values = [ones, wide.half(), torch.ones(2, 2).int(), torch.ones(2), torch.tensor(1.0), 3]
    values += [torch.ones(3) > 0, torch.nn.Parameter(ones), ones.byte(), ones[:1], ones.numpy()]
    for first in shapes:
        pairs = [(shape, value) for value in values for shape in (first, *shapes)]
        results = []
        for name in ("_is_instance", "_is_instance_of_any"):
            with checked_signatures._sizes_of_a_call:
                results.append([getattr(checked_signatures, name)(*pair) for pair in pairs])
        assert results[0] == results[1]
        assert len(set(results[0])) == 2


def test_types_without_shapes_are_checked_too(checked: ModuleType) -> None:
    wrong = jaxtyping.TypeCheckError
    with pytest.raises(wrong):
        checked.longer(3)
    with pytest.raises(wrong):
        checked.longer("a", times=0)
    with pytest.raises(wrong):
        _ = checked.Box().wrong
    with pytest.raises(wrong):
        checked.Box.made("1")
    with pytest.raises(wrong):
        checked.Box.chosen("1")


def test_functions_inside_others_are_checked_each_time_and_are_their_own(
    checked: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the check of the first is taken for all that have its code."""
    first, second, ninth = checked.adder(1), checked.adder(2), checked.adder(9)
    assert (first(1), second(1), first(1)) == (2, 3, 2)
    for add in (first, second):
        with pytest.raises(jaxtyping.TypeCheckError):
            add("1")
    with pytest.raises(jaxtyping.TypeCheckError):
        ninth(1)
    monkeypatch.setattr(checked_signatures, "_types_checked", lambda _: pytest.fail("written anew"))
    assert checked.adder(3)(1) == 4


def test_the_package_is_checked() -> None:
    from eaglenet.core.types import Tokens
    from eaglenet.encoders.tokenizers import ClipTokenizer

    with pytest.raises(jaxtyping.TypeCheckError):
        ClipTokenizer.from_folder(3)  # type: ignore[arg-type]
    with pytest.raises(jaxtyping.TypeCheckError):
        Tokens(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.bool))
