"""Graphs for onnxruntime: they can be read, and compute the same as numpy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eaglenet.encoders.onnx_graph import OWN_DOMAIN, Graph, open_session

pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.standard_normal((6, 4)).astype(np.float32)
WEIGHT, BIAS = RANDOM.standard_normal((2, 6)).astype(np.float32)


def example() -> Graph:
    """Return a graph with attributes of every kind and an axis of any size."""
    graph = Graph()
    graph.input("pixels", np.uint8, ["rows", 300, 6])
    values = graph.cast("pixels", np.float32)
    weight, bias = graph.constant(WEIGHT), graph.constant(BIAS)
    values = graph.node("LayerNormalization", values, weight, bias, axis=-1, epsilon=0.5)
    product = graph.node("MatMul", values, graph.constant(MATRIX))
    first, second = graph.nodes("Split", product, count=2, axis=2)
    graph.output(graph.node("Gelu", first, domain=OWN_DOMAIN), "gelu", np.float32, ["rows", 300, 2])
    largest = graph.node("ReduceMax", second, axes=[1, 2], keepdims=0)
    graph.output(largest, "largest", np.float32, ["rows"])
    return graph


@pytest.mark.parametrize("rows", [1, 3])
def test_a_graph_computes_what_numpy_computes(rows: int) -> None:
    pixels = RANDOM.integers(0, 255, (rows, 300, 6), dtype=np.uint8)
    gelu, largest = open_session(example().to_bytes(), 1).run(None, {"pixels": pixels})
    values = pixels.astype(np.float64)
    values -= values.mean(axis=-1, keepdims=True)
    values /= np.sqrt(np.square(values).mean(axis=-1, keepdims=True) + 0.5)
    product = (values * WEIGHT + BIAS) @ MATRIX
    np.testing.assert_allclose(largest, product[..., 2:].max(axis=(1, 2)), rtol=1e-4)
    from math import erf

    expected = [value * (1 + erf(value / 2**0.5)) / 2 for value in product[..., :2].ravel()]
    np.testing.assert_allclose(gelu.ravel(), expected, atol=1e-4)


def test_a_graph_is_a_model_by_the_standard() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(example().to_bytes())
    assert model.ir_version == 9
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 17, OWN_DOMAIN: 1}
    onnx.checker.check_model(model)
    onnx.shape_inference.infer_shapes(model, strict_mode=True)
    (pixels,) = model.graph.input
    axes = pixels.type.tensor_type.shape.dim
    assert [axis.dim_param or axis.dim_value for axis in axes] == ["rows", 300, 6]
    stored = onnx.numpy_helper.to_array(model.graph.initializer[2])
    np.testing.assert_array_equal(stored, MATRIX)


def test_negative_and_large_numbers_are_attributes() -> None:
    onnx = pytest.importorskip("onnx")
    graph = Graph()
    graph.node("Example", "a", small=-1, large=2**40, many=[-3, 5], real=1e-6)
    (node,) = onnx.load_from_string(graph.to_bytes()).graph.node
    values = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert values.pop("real") == pytest.approx(1e-6)
    assert values == {"small": -1, "large": 2**40, "many": [-3, 5]}


def test_onnxruntime_reports_nothing(tmp_path: Path) -> None:
    """Since version 1.31, its import opens a database of events and writes ids to a file."""
    pytest.importorskip("onnxruntime")
    program = "import eaglenet, onnxruntime"
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_import_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C++ of onnxruntime replaces it by an ``ImportError``."""
    model = example().to_bytes()

    class Interrupted:
        def __init__(self, cause: BaseException | None) -> None:
            self.cause = cause

        def find_spec(self, name: str, *_: object) -> None:
            if name == "onnxruntime":
                raise ImportError("initialization failed") from self.cause

    for cause, expected in ((KeyboardInterrupt(), KeyboardInterrupt), (None, ImportError)):
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "onnxruntime")
            patch.setattr(sys, "meta_path", [Interrupted(cause), *sys.meta_path])
            with pytest.raises(expected):
                open_session(model, 1)
