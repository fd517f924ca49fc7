"""`mininet.util`: helpers of scripts."""

from __future__ import annotations

import codecs
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from fcntl import F_GETFL, F_SETFL, fcntl
from ipaddress import IPv4Address
from select import POLLHUP, POLLIN, poll
from typing import Any, Optional, Union

from .log import error, info, output

Python3 = True
BaseString = str
Encoding = "utf-8"


def decode(buf: Union[bytes, str]) -> str:
    """Returns bytes as text."""
    return buf if isinstance(buf, str) else buf.decode(Encoding, errors="replace")


def encode(buf: str) -> bytes:
    """Returns text as bytes."""
    return buf.encode(Encoding)


def getincrementaldecoder() -> Any:
    """Returns a decoder for text that comes in parts."""
    return codecs.getincrementaldecoder(Encoding)(errors="replace")


# --- Commands on this machine ------------------------------------------------------------------------------------------


def errRun(*cmd: Any, **kwargs: Any) -> tuple[str, str, int]:
    """Runs a command: output, errors, exit status."""
    what = cmd[0] if len(cmd) == 1 else [str(word) for word in cmd]
    shell = bool(kwargs.get("shell", False))
    if isinstance(what, str) and not shell:
        what = what.split()
    elif shell and not isinstance(what, str):
        what = " ".join(map(str, what))
    stderr = kwargs.get("stderr", subprocess.PIPE)
    try:
        done = subprocess.run(what, shell=shell, stdout=subprocess.PIPE, stderr=stderr, check=False)
    except OSError as fault:
        return "", f"{what[0]}: {fault.strerror}\n", 127
    if kwargs.get("echo", False):
        info(decode(done.stdout))
    return decode(done.stdout), decode(done.stderr or b""), done.returncode


def errFail(*cmd: Any, **kwargs: Any) -> tuple[str, str, int]:
    """Runs a command, and raises an error if it fails."""
    out, err, status = errRun(*cmd, **kwargs)
    if status != 0:
        raise RuntimeError(f"{cmd}: exit status {status}: {err}")
    return out, err, status


def quietRun(*cmd: Any, **kwargs: Any) -> str:
    """Runs a command, and returns its output with its errors."""
    out, err, _ = errRun(*cmd, **{"stderr": subprocess.STDOUT, **kwargs})
    return out + err


def run(cmd: str) -> int:
    """Runs a command with this terminal."""
    return subprocess.call(cmd.split())


def which(cmd: str, **kwargs: Any) -> str:
    """Returns the path of a program."""
    return quietRun("which", cmd, **kwargs).rstrip()


def isShellBuiltin(cmd: str) -> bool:
    """Whether the first word is a command of the shell."""
    builtins = quietRun("bash -c 'compgen -b'", shell=True).split()
    return cmd.split(" ", 1)[0] in builtins


def ensureRoot() -> None:
    """Ends the program if the user is not root."""
    if os.getuid() != 0:
        error("*** Making a network needs root.\n")
        sys.exit(1)


def fixLimits(neighbours: int = 8192) -> None:
    """Raises the number of neighbours that the kernel remembers in all namespaces together. A number is never lowered."""
    for name, limit in (("1", neighbours // 2), ("2", neighbours), ("3", neighbours * 2)):
        path = f"/proc/sys/net/ipv4/neigh/default/gc_thresh{name}"
        with open(path, encoding="ascii") as file:
            now = int(file.read())
        if now < limit:
            with open(path, "w", encoding="ascii") as file:
                file.write(str(limit))
            info(f"*** Setting {path} to {limit}\n")


def numCores() -> int:
    """Returns the number of cores."""
    return os.cpu_count() or 1


# --- Nodes and links ---------------------------------------------------------------------------------------------------


def dumpNodeConnections(nodes: Iterable[Any]) -> None:
    """Writes each node with its interfaces and the opposite ones."""
    for node in nodes:
        output(node.name)
        for intf in node.intfList():
            output(f" {intf}:")
            if intf.link:
                output(intf.link.intf2 if intf is intf.link.intf1 else intf.link.intf1)
            else:
                output(" ")
        output("\n")


def dumpNetConnections(net: Any) -> None:
    """Writes all connections of a network."""
    dumpNodeConnections(net.controllers + net.switches + net.hosts)


def dumpPorts(switches: Iterable[Any]) -> None:
    """Writes each switch with the numbers of its ports."""
    for switch in switches:
        output(f"{switch.name} " + "".join(f"{intf}:{switch.ports[intf]} " for intf in switch.intfList()) + "\n")


def waitListening(
    client: Any = None, server: Any = "127.0.0.1", port: int = 80, timeout: Optional[float] = None
) -> bool:
    """Waits until a server listens on a port; False after the timeout."""
    address = server if isinstance(server, str) else server.IP()

    def connects() -> bool:
        try:
            with socket.create_connection((address, port), timeout=1):
                return True
        except OSError:
            return False

    machine = getattr(client, "machine", None)
    if machine is None and not isinstance(server, str):
        machine = server.machine
    start = time.monotonic()
    while not (machine.call(connects) if machine is not None else connects()):
        if timeout is not None and time.monotonic() - start > timeout:
            error(f"could not connect to {server} on port {port}\n")
            return False
        time.sleep(0.05)
    return True


def pmonitor(
    popens: dict[Any, Any], timeoutms: float = 500, readline: bool = True, readmax: int = 1024
) -> Iterator[tuple[Any, str]]:
    """Yields the lines of programs as they come, and `(None, "")` after a time without lines, until all have ended."""
    poller = poll()
    hosts = {}
    decoders = {}
    for host, popen in popens.items():
        fd = popen.stdout.fileno()
        hosts[fd], decoders[fd] = host, getincrementaldecoder()
        poller.register(fd, POLLIN)
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | os.O_NONBLOCK)
    while popens:
        ready = poller.poll(timeoutms)
        if not ready:
            yield None, ""
        for fd, event in ready:
            host = hosts[fd]
            stream = popens[host].stdout
            while True:
                part = stream.readline() if readline else stream.read(readmax)
                line = decoders[fd].decode(part) if isinstance(part, bytes) else (part or "")
                if not line:
                    break
                yield host, line
            if event & POLLHUP:
                poller.unregister(fd)
                del popens[host]


# --- Numbers, addresses, names -----------------------------------------------------------------------------------------


def irange(start: int, end: int) -> range:
    """The numbers from `start` to `end`, both included."""
    return range(start, end + 1)


def natural(text: Any) -> list[Any]:
    """A sort key that puts h2 before h10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", str(text))]


def naturalSeq(t: Iterable[Any]) -> list[Any]:
    """A sort key for sequences of names."""
    return [natural(one) for one in t]


def macColonHex(mac: int) -> str:
    """Returns a number as a MAC address."""
    return ":".join(f"{byte:02x}" for byte in mac.to_bytes(6, "big"))


def ipStr(ip: int) -> str:
    """Returns a number as an IPv4 address."""
    return str(IPv4Address(ip))


def ipNum(w: int, x: int, y: int, z: int) -> int:
    """Returns four bytes as the number of an IPv4 address."""
    return (w << 24) | (x << 16) | (y << 8) | z


def ipParse(ip: str) -> int:
    """Returns an IPv4 address as a number. Missing bytes are 0 before the last one."""
    parts = [int(part) for part in ip.split(".")]
    while len(parts) < 4:
        parts.insert(len(parts) - 1, 0)
    return ipNum(*parts)


def ipAdd(i: int, prefixLen: int = 8, ipBaseNum: int = 0x0A000000) -> str:
    """Returns the address with this number in a network."""
    last = 0xFFFFFFFF >> prefixLen
    if i > last:
        raise ValueError(f"the network has no address {i}: give the network a shorter prefix than /{prefixLen}")
    return ipStr((ipBaseNum & ~last) + i)


def netParse(ipstr: str) -> tuple[int, int]:
    """Returns address and prefix length of text such as 10.0.0.0/8."""
    address, _, length = ipstr.partition("/")
    return ipParse(address), int(length) if length else 24


def checkInt(s: str) -> bool:
    """Whether text is a whole number."""
    return re.fullmatch(r"[+-]?\d+", s) is not None


def checkFloat(s: str) -> bool:
    """Whether text is a number."""
    try:
        float(s)
    except ValueError:
        return False
    return True


def makeNumeric(s: str) -> Union[int, float, str]:
    """Returns text as a number, if it is one."""
    return int(s) if checkInt(s) else float(s) if checkFloat(s) else s


# --- Constructors ------------------------------------------------------------------------------------------------------


def custom(cls: Callable[..., Any], **params: Any) -> Callable[..., Any]:
    """Returns a constructor with these arguments."""

    def customized(*args: Any, **kwargs: Any) -> Any:
        return cls(*args, **{**kwargs, **params})

    customized.__name__ = f"custom({cls},{params})"
    return customized


def splitArgs(argstr: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Reads text such as `linear,3,n=2`."""
    name, *parts = argstr.split(",")
    pairs = [part.split("=", 1) for part in parts if "=" in part]
    return name, [makeNumeric(part) for part in parts if "=" not in part], {k: makeNumeric(v) for k, v in pairs}


def customClass(classes: dict[str, Any], argStr: str) -> Any:
    """Returns the class that text such as `tc,bw=10` names, with its arguments."""
    name, args, kwargs = splitArgs(argStr)
    if name not in classes:
        raise ValueError(f"{name!r} is unknown: write one of {', '.join(classes)}")
    return specialClass(classes[name], append=args, defaults=kwargs) if args or kwargs else classes[name]


def specialClass(
    cls: Any,
    prepend: Optional[list[Any]] = None,
    append: Optional[list[Any]] = None,
    defaults: Optional[dict[str, Any]] = None,
    override: Optional[dict[str, Any]] = None,
) -> Any:
    """Returns a subclass with these arguments."""

    def construct(self: Any, *args: Any, **params: Any) -> None:
        merged = {**(defaults or {}), **params, **(override or {})}
        cls.__init__(self, *(prepend or []), *args, *(append or []), **merged)

    return type(f"{cls.__name__}{defaults or {}}", (cls,), {"__init__": construct})


def buildTopo(topos: dict[str, Any], topoStr: str) -> Any:
    """Returns the topology that text such as `linear,3` names."""
    name, args, kwargs = splitArgs(topoStr)
    if name not in topos:
        raise ValueError(f"{name!r} is no topology: write one of {', '.join(topos)}")
    return topos[name](*args, **kwargs)
