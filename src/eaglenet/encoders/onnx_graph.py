"""Graphs for onnxruntime, written as bytes without the `onnx` package.

A model file is a protobuf message. This module writes the few fields that a graph of plain
operators needs, with the field numbers of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

OWN_DOMAIN = "com.microsoft"
"""Domain of onnxruntime's own operators."""
OPSET, IR_VERSION = 17, 9
"""Versions that every onnxruntime since 1.15 reads."""
TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int64": 7}
"""Numbers of the element types, by numpy's names."""


class Graph:
    """A graph under construction. Operators take and return the names of values."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[int | str]) -> str:
        """Declare an input; an axis with a name as its size may have any size."""
        self._inputs.append(_value(name, dtype, shape))
        return name

    def output(self, value: str, name: str, dtype: DTypeLike, shape: Sequence[int | str]) -> None:
        """Declare a value as the output ``name``."""
        self._nodes.append(_node("Identity", [value], [name], "", {}))
        self._outputs.append(_value(name, dtype, shape))

    def constant(self, values: Any) -> str:
        array = np.array(values, order="C")
        name = f"c{len(self._constants)}"
        fields = [_number(1, size) for size in array.shape]
        fields += [_number(2, TYPES[array.dtype.name]), _text(8, name), _bytes(9, array.tobytes())]
        self._constants.append(b"".join(fields))
        return name

    def node(self, operation: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add an operator with one output, and return the output's name."""
        return self.nodes(operation, *inputs, count=1, domain=domain, **attributes)[0]

    def nodes(
        self, operation: str, *inputs: str, count: int, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add an operator with several outputs, and return their names."""
        outputs = [f"v{len(self._nodes)}_{number}" for number in range(count)]
        self._nodes.append(_node(operation, inputs, outputs, domain, attributes))
        return outputs

    def cast(self, value: str, dtype: DTypeLike) -> str:
        return self.node("Cast", value, to=TYPES[np.dtype(dtype).name])

    def to_bytes(self) -> bytes:
        """Serialise the model; more operators can be added afterwards."""
        lists = [(1, self._nodes), (5, self._constants), (11, self._inputs), (12, self._outputs)]
        fields = [_bytes(field, value) for field, values in lists for value in values]
        graph = b"".join([*fields, _text(2, "graph")])
        opsets = [_text(1, domain) + _number(2, version) for domain, version in
                  (("", OPSET), (OWN_DOMAIN, 1))]  # fmt: skip
        return b"".join(
            [_number(1, IR_VERSION), _bytes(7, graph), *(_bytes(8, opset) for opset in opsets)]
        )


def open_session(model: bytes, threads: int, *, has_arena: bool = True) -> Any:
    """Open an onnxruntime session on the CPU.

    has_arena: keep the memory of the largest run for later runs.
    """
    try:
        import onnxruntime
    except ImportError as error:
        # Its C++ replaces an interrupt during the import by this error.
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = has_arena
    # Spinning idle threads would take CPU time from the decoders.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # negative numbers are written as their two's complement
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(int(value))


def _bytes(field: int, value: bytes) -> bytes:
    return b"".join([_varint(field << 3 | 2), _varint(len(value)), value])


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _node(
    operation: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    domain: str,
    attributes: dict[str, Any],
) -> bytes:
    fields = [_text(1, name) for name in inputs] + [_text(2, name) for name in outputs]
    fields += [_text(4, operation), _text(7, domain)]
    fields += [_bytes(5, _attribute(name, value)) for name, value in attributes.items()]
    return b"".join(fields)


def _attribute(name: str, value: float | int | Sequence[int]) -> bytes:
    if isinstance(value, float):
        return b"".join([_text(1, name), b"\x15", struct.pack("<f", value), _number(20, 1)])
    if isinstance(value, int):
        return b"".join([_text(1, name), _number(3, value), _number(20, 2)])
    return b"".join([_text(1, name), *(_number(8, each) for each in value), _number(20, 7)])


def _value(name: str, dtype: DTypeLike, shape: Sequence[int | str]) -> bytes:
    axes = (_text(2, size) if isinstance(size, str) else _number(1, size) for size in shape)
    kind = _number(1, TYPES[np.dtype(dtype).name])
    kind += _bytes(2, b"".join(_bytes(1, axis) for axis in axes))
    return _text(1, name) + _bytes(2, _bytes(1, kind))
