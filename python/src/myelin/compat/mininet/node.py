"""`mininet.node`: hosts, switches and controllers."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from typing import Any, ClassVar, Optional

from ...errors import FailedError, bad_argument
from .. import NoCounterpart
from ._lab import Lab, ThisMachine
from .link import Configurable, Link
from .log import debug, info, warn
from .util import decode, encode, getincrementaldecoder, isShellBuiltin, numCores

# The prompt of a node's shell: it says that a command has ended.
_PROMPT = chr(127)
_PID = re.compile(r"\x01(\d+)\r\n")
_JOB = re.compile(r"\[\d+\] \d+\r\n")


class Node(Configurable):
    """A machine with a shell, which starts with the first command."""

    outToNode: ClassVar[dict[int, Node]] = {}
    inToNode: ClassVar[dict[int, Node]] = {}
    portBase = 0
    is_switch = False

    def __init__(self, name: str, inNamespace: bool = True, **params: Any) -> None:
        self.name = params.get("name", name)
        self.inNamespace = params.get("inNamespace", inNamespace)
        # Directories that the host has for itself: a path, or a path and the directory that stands for it.
        self.privateDirs: list[Any] = params.get("privateDirs") or []
        self.params = params
        self.limits: dict[str, Any] = {}
        self.intfs: dict[int, Any] = {}
        self.ports: dict[Any, int] = {}
        self.nameToIntf: dict[str, Any] = {}
        self.lab = Lab.current()
        # The host or switch of Myelin.
        self.made: Any = None
        self._shell: Any = None
        self._terminal = -1
        self._decoder = getincrementaldecoder()
        self.readbuf = ""
        self.waiting = False
        self.lastCmd: Optional[str] = None
        self.lastPid: Optional[int] = None
        self._has_ended = False
        self.lab.add_node(self)

    @property
    def is_host(self) -> bool:
        """Whether the node has a network namespace of its own."""
        return bool(self.inNamespace) and not self.is_switch

    @property
    def machine(self) -> Any:
        """The machine where the node's programs run."""
        if not self.is_host:
            return ThisMachine()
        self.lab.start()
        if self.made is None:
            raise FailedError(f"the host `{self.name}` has ended: start its network again", object=self.name)
        return self.made

    def made_now(self) -> None:
        """The lab calls it when the node has its counterpart."""

    def _mounts(self) -> list[str]:
        """Returns the start of a command line that mounts the private directories, for the command alone."""
        if not self.privateDirs:
            return []
        lines = []
        for directory in self.privateDirs:
            path, source = directory if isinstance(directory, tuple) else (directory, None)
            if source is None:
                lines += [f"mkdir -p '{path}'", f"mount -t tmpfs tmpfs '{path}'"]
            else:
                source = source % {"name": self.name, **self.params}
                lines += [f"mkdir -p '{path}' '{source}'", f"mount --bind '{source}' '{path}'"]
        return ["unshare", "--mount", "--", "sh", "-ec", "\n".join([*lines, 'exec "$@"']), "mounts"]

    @classmethod
    def fdToNode(cls, fd: int) -> Node:
        """Returns the node with this output."""
        return cls.outToNode[fd]

    @classmethod
    def setup(cls) -> None:
        """Does nothing: Myelin needs no programs for nodes."""

    checkSetup = setup

    # --- The shell -----------------------------------------------------------------------------------------------------

    @property
    def shell(self) -> Any:
        """The shell; None after the end of the node."""
        if self._shell is None and not self._has_ended:
            self._start_shell()
        return self._shell

    def startShell(self, mnopts: Any = None) -> None:
        """Starts the shell."""
        self._has_ended = False
        _ = self.shell

    def _start_shell(self) -> None:
        machine = self.machine
        self._terminal, slave = pty.openpty()
        # The shell's terminal controls it, so that the character Ctrl-C interrupts its programs.
        command = [*self._mounts(), "bash", "--norc", "--noediting", "-is", f"mininet:{self.name}"]
        try:
            self._shell = machine.popen(
                command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "PS1": _PROMPT}, terminal=True
            )
        finally:
            os.close(slave)
        self.pollOut = select.poll()
        self.pollOut.register(self._terminal, select.POLLIN)
        self.outToNode[self._terminal] = self.inToNode[self._terminal] = self
        self.waiting = True
        self.waitOutput()
        self.cmd("unset HISTFILE; stty -echo; set +m")

    @property
    def stdout(self) -> Any:
        """The output of the shell, for `select.poll`."""
        _ = self.shell
        return _Descriptor(self._terminal)

    stdin = stdout

    @property
    def pid(self) -> Any:
        """The process of the shell."""
        return None if self.shell is None else self.shell.pid

    def read(self, size: int = 1024) -> str:
        """Reads output of the shell, at most `size` characters."""
        if len(self.readbuf) < size:
            try:
                data = os.read(self._terminal, size - len(self.readbuf))
            except OSError:
                data = b""
            if not data and not self.readbuf:
                self.waiting = False
                raise FailedError(f"{self.name}: the shell has ended: a command must not end it", object=self.name)
            self.readbuf += self._decoder.decode(data)
        result, self.readbuf = self.readbuf[:size], self.readbuf[size:]
        return result

    def readline(self) -> Optional[str]:
        """Reads a line of the shell; None if there is no whole line."""
        self.readbuf += self.read(1024)
        if "\n" not in self.readbuf:
            return None
        line, _, self.readbuf = self.readbuf.partition("\n")
        return line

    def write(self, data: str) -> None:
        """Writes to the shell."""
        _ = self.shell
        rest = encode(data)
        while rest:
            rest = rest[os.write(self._terminal, rest) :]

    def waitReadable(self, timeoutms: Optional[float] = None) -> Any:
        """Waits for output of the shell."""
        return [(self._terminal, select.POLLIN)] if self.readbuf else self.pollOut.poll(timeoutms)

    def sendCmd(self, *args: Any, printPid: bool = False, **_kwargs: Any) -> None:
        """Starts a command in the shell. `waitOutput` or `monitor` read its output."""
        if self.shell is None:
            raise FailedError(f"{self.name}: the node has ended: start its network again", object=self.name)
        if self.waiting:
            raise FailedError(f"{self.name}: `{self.lastCmd}` still runs: call `waitOutput` first", object=self.name)
        words = args[0] if len(args) == 1 and isinstance(args[0], list) else args
        cmd = " ".join(str(word) for word in words)
        if not re.search(r"\w", cmd):
            cmd = "echo -n"
        self.lastCmd, self.lastPid = cmd, None
        if cmd.endswith("&"):
            cmd += ' printf "\\001%d\\012" $!'
        elif printPid and not isShellBuiltin(cmd):
            cmd = "bash -c 'printf \"\\001%d\\012\" $$; exec \"$@\"' bash " + cmd
        self.write(cmd + "\n")
        self.waiting = True

    def sendInt(self, intr: str = chr(3)) -> None:
        """Interrupts the running command."""
        self.write(intr)

    def monitor(self, timeoutms: Optional[float] = None, findPid: bool = True) -> str:
        """Reads output of the running command; '' after the timeout. `waiting` becomes False when the command has ended."""
        if not self.waitReadable(timeoutms):
            return ""
        data = self.read(1024)
        if findPid and "\x01" in data:
            while not _PID.search(data):
                data += self.read(1024)
            found = _PID.search(data)
            assert found is not None
            self.lastPid = int(found[1])
            data = _PID.sub("", _JOB.sub("", data))
        if _PROMPT in data:
            self.waiting = False
            data = data.replace(_PROMPT, "")
        return data

    def waitOutput(self, verbose: bool = False, findPid: bool = True) -> str:
        """Reads the output of the running command to its end."""
        log = info if verbose else debug
        output = ""
        while self.waiting:
            data = self.monitor(findPid=findPid)
            output += data
            log(data)
        return output

    def cmd(self, *args: Any, verbose: bool = False, **kwargs: Any) -> Any:
        """Runs a command in the shell and returns its output."""
        debug(f"*** {self.name} : {args}\n")
        if self.shell is None:
            warn(f"({self} exited - ignoring cmd{args})\n")
            return None
        self.sendCmd(*args, **kwargs)
        return self.waitOutput(verbose)

    def cmdPrint(self, *args: Any) -> Any:
        """Runs a command in the shell, writes and returns its output."""
        return self.cmd(*args, verbose=True)

    def popen(self, *args: Any, **kwargs: Any) -> Any:
        """Starts a program on the node, with the words of `subprocess.Popen`: `stdin`, `stdout`, `stderr`, `env`, `cwd`.
        Output and errors go to pipes of their own.
        """
        kwargs.pop("mncmd", None)
        other = [key for key in kwargs if key not in ("shell", "stdin", "stdout", "stderr", "env", "cwd")]
        if other:
            raise NoCounterpart(f"`popen` with `{other[0]}`", "the agent starts the program: leave the argument out")
        shell = kwargs.pop("shell", False)
        what = args[0] if len(args) == 1 else list(args)
        if not isinstance(what, (str, list)):
            raise bad_argument("popen", what, "a command", "write text, or a list of words")
        words: Any = what
        if shell:
            words = ["/bin/bash", "-c", what if isinstance(what, str) else " ".join(map(str, what))]
        elif isinstance(what, str):
            words = what.split()
        if self.privateDirs:
            # The program shares the mounts of the shell.
            words = ["nsenter", "--mount", "--target", self.pid, *words]
        options = {"stdin": None, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
        return self.machine.popen([str(word) for word in words], **options)

    def pexec(self, *args: Any, **kwargs: Any) -> tuple[str, str, int]:
        """Runs a program on the node: output, errors, exit status."""
        process = self.popen(*args, **kwargs)
        out, err = process.communicate()
        return decode(out), decode(err), process.returncode

    # --- Interfaces ----------------------------------------------------------------------------------------------------

    def newPort(self) -> int:
        """Returns the next number of an interface."""
        return max(self.ports.values(), default=self.portBase - 1) + 1

    def addIntf(self, intf: Any, port: Optional[int] = None, **_kwargs: Any) -> None:
        """Adds an interface."""
        number = self.newPort() if port is None else port
        self.intfs[number] = intf
        self.ports[intf] = number
        self.nameToIntf[intf.name] = intf

    def delIntf(self, intf: Any) -> None:
        """Forgets an interface."""
        port = self.ports.pop(intf, None)
        if port is not None:
            del self.intfs[port]
            self.nameToIntf.pop(intf.name, None)

    def defaultIntf(self) -> Any:
        """Returns the interface with the lowest number."""
        if not self.intfs:
            warn(f"*** defaultIntf: warning: {self.name} has no interfaces\n")
            return None
        return self.intfs[min(self.intfs)]

    def intf(self, intf: Any = None) -> Any:
        """Returns the interface of this name, by default the first one."""
        if not intf:
            return self.defaultIntf()
        return self.nameToIntf[intf] if isinstance(intf, str) else intf

    def intfList(self) -> list[Any]:
        """Returns the interfaces by number."""
        return [self.intfs[number] for number in sorted(self.intfs)]

    def intfNames(self) -> list[str]:
        """Returns the names of the interfaces by number."""
        return [str(intf) for intf in self.intfList()]

    def connectionsTo(self, node: Any) -> list[tuple[Any, Any]]:
        """Returns the pairs of interfaces of the links to a node."""
        pairs = []
        for intf in self.intfList():
            if intf.link:
                far = intf.link.intf2 if intf is intf.link.intf1 else intf.link.intf1
                pairs += [(intf, far)] if far.node is node else []
        return pairs

    def deleteIntfs(self, checkName: bool = True) -> None:
        """Forgets the interfaces. They go with their network."""

    def linkTo(self, node: Any, link: Any = Link) -> Any:
        """Links the node to another one."""
        return link(self, node)

    def IP(self, intf: Any = None) -> Any:
        """Returns the IPv4 address of an interface."""
        found = self.intf(intf)
        return None if found is None else found.IP()

    def MAC(self, intf: Any = None) -> Any:
        """Returns the MAC address of an interface."""
        return self.intf(intf).MAC()

    def setIP(self, ip: str, prefixLen: int = 8, intf: Any = None, **kwargs: Any) -> Any:
        """Sets the IPv4 address of an interface."""
        return self.intf(intf).setIP(ip, prefixLen, **kwargs)

    def setMAC(self, mac: str, intf: Any = None) -> Any:
        """Sets the MAC address of an interface."""
        return self.intf(intf).setMAC(mac)

    def setARP(self, ip: str, mac: str) -> Any:
        """Adds a neighbour."""
        return self.cmd("ip neighbour replace", ip, "lladdr", mac, "dev", self.defaultIntf())

    def setHostRoute(self, ip: str, intf: Any) -> Any:
        """Adds a route to a host."""
        return self.cmd("ip route add", ip, "dev", intf)

    def setDefaultRoute(self, intf: Any = None) -> Any:
        """Sets the default route: an interface, or text such as `via 10.0.0.1`."""
        way = intf if isinstance(intf, str) and " " in intf else f"dev {intf}"
        return self.cmd("ip route del default 2>/dev/null; ip route add default", way)

    def intfIsUp(self, intf: Any = None) -> Any:
        """Whether an interface is up."""
        return self.intf(intf).isUp()

    # --- Configuration -------------------------------------------------------------------------------------------------

    def config(
        self,
        mac: Optional[str] = None,
        ip: Optional[str] = None,
        defaultRoute: Optional[str] = None,
        lo: str = "up",
        **_params: Any,
    ) -> dict[str, Any]:
        """Sets addresses and the default route. Subclasses override it."""
        results: dict[str, Any] = {}
        self.setParam(results, "setMAC", mac=mac)
        self.setParam(results, "setIP", ip=ip)
        self.setParam(results, "setDefaultRoute", defaultRoute=defaultRoute)
        if lo != "up":
            self.cmd("ip link set lo", lo)
        return results

    def configDefault(self, **moreParams: Any) -> None:
        """Configures the node with its parameters."""
        self.params.update(moreParams)
        self.config(**self.params)

    def cleanup(self) -> None:
        """Forgets the shell."""
        if self._shell is not None:
            self.outToNode.pop(self._terminal, None)
            self.inToNode.pop(self._terminal, None)
            # The shell ends with its terminal.
            os.close(self._terminal)
            self._shell.kill()
            self._shell.wait()
            self._shell = None

    def terminate(self) -> None:
        """Ends the shell."""
        self._has_ended = True
        self.waiting = False
        self.cleanup()

    def stop(self, deleteIntfs: bool = False) -> None:
        """Ends the node."""
        self.terminate()

    def __repr__(self) -> str:
        intfs = ",".join(f"{intf.name}:{intf.IP()}" for intf in self.intfList())
        return f"<{type(self).__name__} {self.name}: {intfs} pid={self.pid}> "

    def __str__(self) -> str:
        return str(self.name)


class _Descriptor:
    """The terminal of a shell."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number


class Host(Node):
    """A host: a network namespace."""


class CPULimitedHost(Host):
    """A host with a limit of processor time: `cpu`, the share of all cores, and `cores`."""

    def __init__(self, name: str, sched: str = "cfs", **kwargs: Any) -> None:
        if sched == "rt":
            raise NoCounterpart(
                f"`sched='rt'` of the host `{name}`",
                "the agent limits hosts by the kernel's fair scheduler: write `sched='cfs'`",
            )
        super().__init__(name, **kwargs)
        self.sched = sched
        self.setCPUFrac(kwargs.get("cpu") or -1)
        self.setCPUs(kwargs.get("cores"))

    def _limit(self, key: str, value: Any) -> None:
        if self.made is not None:
            raise NoCounterpart(f"a new limit of the running host `{self.name}`", "set limits before the network starts")
        self.limits[key] = value

    def setCPUFrac(self, f: float, sched: Optional[str] = None) -> None:
        """Limits the host to a share of all cores; -1: no limit."""
        if f is not None and f > 0:
            self._limit("cpu", f"{max(10, round(f * numCores() * 1000))}m")

    def setCPUs(self, cores: Any, mems: int = 0) -> None:
        """Sets the cores of the host."""
        if cores is not None and cores != []:
            self._limit("cpus", list(cores) if isinstance(cores, (list, tuple)) else str(cores))

    @classmethod
    def init(cls) -> None:
        """Does nothing: the agent makes the groups."""


# --- Switches ----------------------------------------------------------------------------------------------------------


class Switch(Node):
    """A switch: a kernel bridge, which learns by itself. Its commands run in the namespace of this machine."""

    portBase = 1
    dpidLen = 16
    is_switch = True

    def __init__(
        self, name: str, dpid: Optional[str] = None, opts: str = "", listenPort: Optional[int] = None, **params: Any
    ) -> None:
        if params.get("stp"):
            raise NoCounterpart(f"`stp` of the switch `{name}`", "switches form no loop: leave `stp` and the loop out")
        super().__init__(name, **{**params, "inNamespace": False})
        self.dpid = self.defaultDpid(dpid)
        self.opts, self.listenPort = opts, listenPort
        self.controllers: list[Any] = []

    def defaultDpid(self, dpid: Optional[str] = None) -> str:
        """Returns the number of the switch as hexadecimal digits."""
        digits = re.findall(r"\d+", str(self.name))
        number = dpid.replace(":", "") if dpid else f"{int(digits[0]) if digits else 0:x}"
        return number.rjust(self.dpidLen, "0")

    def defaultIntf(self) -> Any:
        """Returns the first interface."""
        return super().defaultIntf() if self.intfs else None

    def start(self, controllers: Any) -> None:
        """Makes the switch with its network."""
        self.lab.start()
        self.controllers = [one for one in controllers or [] if one is not None]

    def stop(self, deleteIntfs: bool = True) -> None:
        """Ends the switch's shell. The switch forwards until its network ends."""
        self.terminate()

    def connected(self) -> bool:
        """Whether the switch forwards."""
        return self.lab.is_running

    def _no_flows(self, what: str) -> Any:
        raise NoCounterpart(f"`{what}` of the switch `{self.name}`", "a switch is a kernel bridge, which learns by itself")

    def sendCmd(self, *args: Any, printPid: bool = False, **kwargs: Any) -> None:
        """Starts a command in the namespace of this machine."""
        first = str(args[0][0] if isinstance(args[0], list) else args[0]).split(" ", 1)[0]
        if first.startswith("ovs-") or first == "dpctl":
            self._no_flows(" ".join(map(str, args)))
        super().sendCmd(*args, printPid=printPid, **kwargs)

    def dpctl(self, *args: Any) -> Any:
        """There are no flow tables."""
        return self._no_flows(f"dpctl {' '.join(map(str, args))}".strip())

    def vsctl(self, *args: Any, **_kwargs: Any) -> Any:
        """There is no Open vSwitch."""
        return self._no_flows(f"ovs-vsctl {' '.join(map(str, args))}".strip())

    def attach(self, intf: Any) -> Any:
        """Does nothing for an interface of this switch."""
        if intf not in self.ports and intf not in self.nameToIntf:
            self._no_flows(f"attach {intf}")
        self.lab.start()

    def detach(self, intf: Any) -> Any:
        """An interface stays at its switch."""
        return self._no_flows("detach")

    def __repr__(self) -> str:
        intfs = ",".join(f"{intf.name}:{intf.IP()}" for intf in self.intfList())
        return f"<{type(self).__name__} {self.name}: {intfs}> "


class OVSSwitch(Switch):
    """A switch."""

    @classmethod
    def isOldOVS(cls) -> bool:
        """False: there is no Open vSwitch."""
        return False


class OVSBridge(OVSSwitch):
    """A switch."""


class UserSwitch(Switch):
    """A switch."""


class IVSSwitch(Switch):
    """A switch."""


OVSKernelSwitch = OVSSwitch
KernelSwitch = OVSSwitch
OVSLegacyKernelSwitch = OVSSwitch


# --- Controllers -------------------------------------------------------------------------------------------------------


class Controller(Node):
    """A controller for learning switches. Switches learn by themselves, so it has nothing to do."""

    def __init__(
        self,
        name: str,
        inNamespace: bool = False,
        command: str = "controller",
        cargs: str = "",
        cdir: Optional[str] = None,
        ip: str = "127.0.0.1",
        port: Optional[int] = None,
        protocol: str = "tcp",
        **params: Any,
    ) -> None:
        self.command, self.cargs, self.cdir, self.ip, self.port, self.protocol = command, cargs, cdir, ip, port, protocol
        super().__init__(name, inNamespace=inNamespace, **({"ip": ip, **params} if inNamespace else params))

    def start(self) -> None:
        """Does nothing: switches learn by themselves."""

    def stop(self, *args: Any, **kwargs: Any) -> None:
        """Ends the controller's shell."""
        self.terminate()

    def checkListening(self) -> None:
        """Does nothing: switches need no controller."""

    def IP(self, intf: Any = None) -> Any:
        """Returns the address."""
        return super().IP(intf) if self.intfs else self.ip

    @classmethod
    def isAvailable(cls) -> bool:
        """True: switches learn by themselves."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.IP()}:{self.port}> "


class OVSController(Controller):
    """A controller for learning switches."""


class _OpenFlow(Controller):
    """A controller that steers switches by OpenFlow."""

    def __init__(self, name: str, *_args: Any, **_params: Any) -> None:
        raise NoCounterpart(
            f"the controller `{name}` ({type(self).__name__})",
            "no OpenFlow controller steers a kernel bridge: use `Controller`, or steer traffic by chains",
        )


class RemoteController(_OpenFlow):
    """A controller of its own program."""


class Ryu(_OpenFlow):
    """Ryu."""


class NOX(_OpenFlow):
    """NOX."""


DefaultControllers = (Controller, OVSController)


def findController(controllers: Any = DefaultControllers) -> Any:
    """Returns the first class of controllers."""
    return controllers[0]


def DefaultController(name: str, controllers: Any = DefaultControllers, **kwargs: Any) -> Any:
    """Makes a controller."""
    return findController(controllers)(name, **kwargs)


def NullController(*_args: Any, **_kwargs: Any) -> None:
    """Makes no controller."""
