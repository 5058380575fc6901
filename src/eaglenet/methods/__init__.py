"""One file a paper, one class a file, one small interface. A file of a method registers it."""

from eaglenet.methods.base import METHODS, Method, MethodSpec

__all__ = ["METHODS", "Method", "MethodSpec"]
