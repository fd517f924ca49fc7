"""`mininet.node`: hosts, switches and controllers."""

from ._controller import (
    NOX,
    Controller,
    DefaultController,
    DefaultControllers,
    NullController,
    OVSController,
    RemoteController,
    Ryu,
    findController,
)
from ._node import CPULimitedHost, Host, Node
from ._switch import (
    IVSSwitch,
    KernelSwitch,
    OVSBridge,
    OVSKernelSwitch,
    OVSLegacyKernelSwitch,
    OVSSwitch,
    Switch,
    UserSwitch,
)

__all__ = [
    "NOX", "CPULimitedHost", "Controller", "DefaultController", "DefaultControllers", "Host", "IVSSwitch", "KernelSwitch",
    "Node", "NullController", "OVSBridge", "OVSController", "OVSKernelSwitch", "OVSLegacyKernelSwitch", "OVSSwitch",
    "RemoteController", "Ryu", "Switch", "UserSwitch", "findController",
]  # fmt: skip
