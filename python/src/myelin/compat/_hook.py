"""Gives imports of `mininet` and `comnetsemu` the modules of this package."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Optional

_PACKAGES = ("mininet", "comnetsemu")
# Mininet's examples import each other.
_EXAMPLES = "mininet.examples"
# They make nodes on other machines.
_CLUSTER = ("mininet.examples.cluster", "mininet.examples.clustercli")


class _Alias(Loader):
    """Loads a module of this package under the name that the script imports."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: Optional[ModuleSpec] = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec there. Relative imports of the module need its own.
        module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    def __init__(self, examples: str) -> None:
        self._examples = examples

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if fullname in _CLUSTER:
            raise ModuleNotFoundError(
                f"the module `{fullname}` has no counterpart in Myelin: a network is on one machine", name=fullname
            )
        if fullname.partition(".")[0] not in _PACKAGES or fullname.startswith(f"{_EXAMPLES}."):
            return None
        if fullname == _EXAMPLES:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [self._examples]
            return spec
        own = f"{__package__}.{fullname}"
        if importlib.util.find_spec(own) is None:
            raise ModuleNotFoundError(
                f"the module `{fullname}` has no counterpart in Myelin: docs/python.md lists what has one", name=fullname
            )
        return ModuleSpec(fullname, _Alias(own), is_package=os.path.isdir(_directory(fullname)))


def _directory(fullname: str) -> str:
    return os.path.join(os.path.dirname(__file__), *fullname.split("."))


def install(examples: str) -> None:
    """Installs the hook for this process. `examples`: the directory of `mininet.examples`."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(examples))
