"""`comnetsemu.cli`: the prompt of a network."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from ...client import Client
from ...container import Container
from ...errors import ArgumentError
from .. import NoCounterpart
from ..mininet.cli import CLI as CLI
from ..mininet.term import makeTerm


def spawnXtermDocker(container_name: str, **_options: Any) -> Any:
    """Starts a terminal program with a shell in the container of this name."""
    client = Client()
    found = [one for one in client.containers() if one.name == container_name]
    if not found:
        raise ArgumentError(f"no container `{container_name}` runs", object=container_name)
    container = Container(client, found[0])
    screen = os.environ.get("DISPLAY")
    if not screen:
        raise NoCounterpart(
            f"a terminal in the container `{container_name}`",
            f"there is no display: run `myelin container exec {container.host} {container_name} -- sh`, or set DISPLAY",
        )
    shell = client.program.command("container", "exec", container.host, container_name, "--", "sh")
    return subprocess.Popen(["xterm", "-title", container_name, "-e", *shell])


__all__ = ["CLI", "makeTerm", "spawnXtermDocker"]
