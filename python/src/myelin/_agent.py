"""Finds the agent and the program `myelin`, and starts an agent if none runs."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Optional, Union

from .errors import FailedError, NoAgentError

StrPath = Union[str, "os.PathLike[str]"]

_DEFAULT_RUN_DIR = "/run/myelin"
_START_LIMIT_S = 30.0
# As for an agent that the command line starts.
_IDLE_EXIT = "60s"


def resolve_run_dir(run_dir: Optional[StrPath]) -> Path:
    """Returns the directory of the argument, else of MYELIN_RUN_DIR, else /run/myelin."""
    path = run_dir or os.environ.get("MYELIN_RUN_DIR") or _DEFAULT_RUN_DIR
    return Path(path).absolute()


def find_program(program: Optional[StrPath]) -> str:
    """Returns the program of the argument, else of the variable MYELIN, else `myelin` of PATH."""
    wanted = os.fspath(program or os.environ.get("MYELIN") or "myelin")
    import shutil

    found = shutil.which(wanted)
    if found is None:
        raise FailedError(
            f"the program `{wanted}` is not installed: run `make install` in the repository of Myelin, or name the "
            "program with `program=` or the variable MYELIN",
            object=wanted,
            remedy="run `make install` in the repository of Myelin",
        )
    return str(Path(found).absolute())


def is_served(run_dir: Path) -> bool:
    """Whether an agent answers at the socket.

    Raises NoAgentError if an agent runs and this user may not use it.
    """
    path = run_dir / "agent.sock"
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(os.fspath(path))
        except PermissionError:
            raise NoAgentError(
                f"{path}: permission denied: the agent serves root and the group `myelin`; use sudo, or have root create "
                "that group and add you to the group before the agent starts",
                object="agent",
                file=str(path),
                remedy="use sudo, or have root add you to the group `myelin`",
            ) from None
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError as error:
            raise NoAgentError(f"{path}: the agent's socket does not answer: {error}", file=str(path)) from error
    return True


def start(run_dir: Path, program: Optional[StrPath]) -> None:
    """Starts an agent that stops after a minute without chains, unless one runs."""
    if is_served(run_dir):
        return
    if os.geteuid() != 0:
        raise NoAgentError(
            f"no agent runs at {run_dir} and only root can start one: use sudo, or start `sudo myelin agent` once",
            object="agent",
            remedy="use sudo, or start `sudo myelin agent` once",
        )
    path = find_program(program)
    run_dir.mkdir(parents=True, exist_ok=True)
    log = run_dir / "agent.log"
    with open(log, "ab") as output:
        # An interrupt in this terminal must not reach the agent.
        agent = subprocess.Popen(
            [path, "agent", "--idle-exit", _IDLE_EXIT, "--run-dir", str(run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_LIMIT_S
    while not is_served(run_dir):
        # Another program may have started an agent at the same time; that one serves both.
        if agent.poll() is not None and not _is_starting(run_dir) or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").strip().splitlines() or ["the log is empty"]
            raise NoAgentError(f"the agent did not start: {lines[-1].strip()}", object="agent", file=str(log))
        time.sleep(0.002)
    # The agent outlives this process, so nobody waits for it.
    agent.returncode = agent.poll() or 0


def _is_starting(run_dir: Path) -> bool:
    """Whether another agent holds the lock of the directory."""
    import fcntl

    try:
        with open(run_dir / "agent.lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
