"""The shell of a node, and the programs beside it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from typing import Any, ClassVar, Optional

from ...errors import FailedError, bad_argument
from .. import NoCounterpart
from .log import debug, info, warn
from .util import decode, encode, getincrementaldecoder, isShellBuiltin

# The prompt of a node's shell: it says that a command has ended.
_PROMPT = chr(127)
_PID = re.compile(r"\x01(\d+)\r\n")
_JOB = re.compile(r"\[\d+\] \d+\r\n")


class _Descriptor:
    """The terminal of a shell."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number


class Shell:
    """A shell with a terminal of its own, which starts with the first command."""

    outToNode: ClassVar[dict[int, Any]] = {}
    inToNode: ClassVar[dict[int, Any]] = {}
    name: str
    # Directories that the host has for itself: a path, or a path and the directory that stands for it.
    privateDirs: list[Any]
    params: dict[str, Any]

    def __init__(self) -> None:
        self._shell: Any = None
        self._terminal = -1
        self._decoder = getincrementaldecoder()
        self.readbuf = ""
        self.waiting = False
        self.lastCmd: Optional[str] = None
        self.lastPid: Optional[int] = None
        self._has_ended = False

    @property
    def machine(self) -> Any:
        """The machine where the programs run."""
        raise NotImplementedError

    @classmethod
    def fdToNode(cls, fd: int) -> Any:
        """Returns the node with this output."""
        return cls.outToNode[fd]

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
