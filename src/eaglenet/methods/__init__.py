"""One file a paper, one class a file, one small interface. A file of a method registers it."""

from importlib import import_module
from pkgutil import iter_modules

from eaglenet.methods.base import METHODS, Method, MethodSpec

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Method", "MethodSpec"]
