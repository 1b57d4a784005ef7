"""Stands in for SGLang's CUDA kernels on a CPU, where they are imported but never called."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__path__: list[str] = []
__version__ = "0.0.0"


class _Kernel:
    """A name of the package; calling it raises an error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Kernel":
        return _kernel(f"{self._name}.", name)

    def __call__(self, *_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{self._name} needs a CUDA device")


def _kernel(where: str, name: str) -> _Kernel:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Kernel(where + name)


class _Submodule(ModuleType):
    def __getattr__(self, name: str) -> _Kernel:
        return _kernel("", name)


class _Submodules(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


sys.meta_path.insert(0, _Submodules())


def __getattr__(name: str) -> _Kernel:
    return _kernel("", name)
