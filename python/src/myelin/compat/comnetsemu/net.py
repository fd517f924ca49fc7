"""`comnetsemu.net`: a network whose hosts have containers."""

from __future__ import annotations

import time
from typing import Any, Optional

from ...errors import ArgumentError
from .. import NoCounterpart
from ..mininet.log import info
from ..mininet.net import Mininet
from .node import DockerContainer, DockerHost, start_container


class Containernet(Mininet):
    """A network of hosts in which containers run."""

    def addDockerHost(self, name: str, cls: Any = DockerHost, **params: Any) -> Any:
        """Adds a host. Its `docker_args` limit its programs and containers together."""
        return self.addHost(name, cls=cls, **params)

    def addLinkNamedIfce(self, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds a link whose interfaces are named after both ends."""
        one, other = (self[node] if isinstance(node, str) else node for node in (src, dst))
        return self.addLink(one, other, *args, intfName1=f"{one}-{other}", intfName2=f"{other}-{one}", **kwargs)

    def change_host_ifce_loss(self, host: Any, ifce: str, loss: float, parent: str = "") -> None:
        """Changes the loss of the packets that an interface sends."""
        node = self[host] if isinstance(host, str) else host
        node.intf(ifce).config(loss=loss)


class VNFManager:
    """Starts and removes the containers of a network."""

    def __init__(self, net: Containernet) -> None:
        self.net = net
        self._containers: dict[str, DockerContainer] = {}

    def addContainer(
        self,
        name: str,
        dhost: Any,
        dimage: Optional[str] = None,
        dcmd: Any = None,
        docker_args: Optional[dict[str, Any]] = None,
        wait: bool = True,
        **_params: Any,
    ) -> DockerContainer:
        """Starts a container in a host. The containers of a host share its limits."""
        host = self.net[dhost] if isinstance(dhost, str) else dhost
        if name in self._containers:
            raise ArgumentError(f"the network has a container `{name}`: choose another name", object=name)
        self._containers[name] = start_container(host, name, dimage, dcmd, docker_args)
        info(f"*** Container {name} runs in {host}\n")
        return self._containers[name]

    def _find(self, name: Any) -> DockerContainer:
        known = self._containers.get(name.name if isinstance(name, DockerContainer) else name)
        if known is None:
            raise ArgumentError(
                f"the network has no container `{name}`: it has {', '.join(self._containers) or 'none'}", object=str(name)
            )
        return known

    def removeContainer(self, name: Any, wait: bool = True) -> None:
        """Ends a container and removes it."""
        found = self._find(name)
        found.container.remove()
        del self._containers[found.name]

    def getContainerInstance(self, name: str, default: Any = None) -> Any:
        """Returns the container of this name."""
        return self._containers.get(name, default)

    def getContainersDhost(self, dhost: Any) -> list[DockerContainer]:
        """Returns the containers in a host."""
        return [one for one in self._containers.values() if one.dhost == str(dhost)]

    def getAllContainers(self) -> list[DockerContainer]:
        """Returns all containers."""
        return list(self._containers.values())

    def monResourceStats(self, name: Any, sample_num: int = 3, sample_period: float = 1.0) -> list[tuple[float, float]]:
        """Measures a container: in each period its processor time in percent of a core, and its memory in MiB."""
        container = self._find(name).container
        samples = []
        before = container.stats()
        for _ in range(sample_num):
            time.sleep(sample_period)
            now = container.stats()
            busy = (now.cpu_s - before.cpu_s) / max(1e-9, now.up_s - before.up_s)
            samples.append((100.0 * busy, now.memory_bytes / (1 << 20)))
            before = now
        return samples

    def migrateCRIU(self, *_args: Any, **_kwargs: Any) -> None:
        """A container does not move with its memory."""
        raise NoCounterpart("`migrateCRIU`", "start a second container, steer the traffic to it, and remove the first")

    def stop(self) -> None:
        """Removes all containers."""
        for name in list(self._containers):
            if self.net.lab.is_running:
                self.removeContainer(name)
            else:
                del self._containers[name]


class APPContainerManager(VNFManager):
    """Starts and removes the containers of a network."""
