"""`comnetsemu.cli`: the prompt of a network."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

from ...client import Client
from ...container import Container
from ...errors import ArgumentError, CommandError
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
    command = ["container", "exec", container.host, container_name, "--", "sh"]
    if not os.environ.get("DISPLAY"):
        raise NoCounterpart(
            f"a terminal in the container `{container_name}`",
            f"there is no display: run `myelin {' '.join(command)}`, or set DISPLAY",
        )
    if shutil.which("xterm") is None:
        raise CommandError("the program `xterm` is not installed: install the package `xterm`", object="xterm")
    # The program in the container gets pipes. Without `-i` its shell shows no prompt.
    shell = client.program.command(*command, "-i")
    return subprocess.Popen(["xterm", "-title", container_name, "-e", *shell])


__all__ = ["CLI", "makeTerm", "spawnXtermDocker"]
