"""Methods: one file per paper, one interface. The file of a method registers it."""

from eaglenet.methods.base import METHODS, Method, MethodSpec

__all__ = ["METHODS", "Method", "MethodSpec"]
