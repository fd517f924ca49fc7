"""Networks, service function chains and their measured figures: a client of the Myelin agent.

Start at `Network` for emulated networks, at `Chain` for chains, at `Client` for the agent. Modules are imported when they
are first used, so `import myelin` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import aio as aio
    from . import errors as errors
    from . import plots as plots
    from . import types as types
    from .chain import Chain as Chain
    from .chain import Function as Function
    from .chain import Sla as Sla
    from .client import Client as Client
    from .client import Lease as Lease
    from .client import probe_options as probe_options
    from .container import Container as Container
    from .conform import Conformance as Conformance
    from .conform import ConformReport as ConformReport
    from .errors import ArgumentError as ArgumentError
    from .errors import CommandError as CommandError
    from .errors import ContainerError as ContainerError
    from .errors import FailedError as FailedError
    from .errors import FileError as FileError
    from .errors import MyelinError as MyelinError
    from .errors import RefusedError as RefusedError
    from .errors import UsageError as UsageError
    from .host import AgentHost as AgentHost
    from .host import Host as Host
    from .host import Link as Link
    from .host import Router as Router
    from .migration import StateHook as StateHook
    from .migration import Steering as Steering
    from .migration import move_state as move_state
    from .network import Network as Network
    from .process import Process as Process
    from .host import Switch as Switch

_MODULES = {
    "Chain": "chain",
    "Function": "chain",
    "Sla": "chain",
    "Client": "client",
    "Lease": "client",
    "probe_options": "client",
    "Container": "container",
    "ConformReport": "conform",
    "Conformance": "conform",
    "ArgumentError": "errors",
    "CommandError": "errors",
    "ContainerError": "errors",
    "FailedError": "errors",
    "FileError": "errors",
    "MyelinError": "errors",
    "RefusedError": "errors",
    "UsageError": "errors",
    "AgentHost": "host",
    "Host": "host",
    "Link": "host",
    "Router": "host",
    "StateHook": "migration",
    "Steering": "migration",
    "move_state": "migration",
    "Network": "network",
    "Process": "process",
    "Switch": "host",
}
_SUBMODULES = {"aio", "errors", "plots", "types"}

__version__ = "0.1.0"
__all__ = sorted([*_MODULES, *_SUBMODULES])


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _MODULES:
        return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
