"""Runs the program `myelin` for the commands that need no agent."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Optional

from ._agent import StrPath, find_program
from .documents import Description
from .errors import of_text

_REFUSED_STATUS = 3
_NOT_MET_STATUS = 5


class Program:
    """The program `myelin`, for one run directory."""

    def __init__(self, run_dir: Path, path: Optional[StrPath]) -> None:
        self.run_dir = run_dir
        self.path = path

    def command(self, *arguments: str) -> list[str]:
        """Returns the command line of the program with these arguments."""
        return [find_program(self.path), "--run-dir", str(self.run_dir), *arguments]

    def plan(self, source: Description) -> bytes:
        """Returns the plans of a text as JSON. The program reads the files that the text names."""
        return self._run(["plan", "--json", "-"], (0, _REFUSED_STATUS), source)

    def conform(self, arguments: list[str]) -> bytes:
        """Returns the report of `myelin conform` as JSON."""
        return self._run(arguments, (0, _NOT_MET_STATUS), None)

    def start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Starts the program, with pipes for its output and its errors."""
        return subprocess.Popen(
            self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def _run(self, arguments: list[str], accepted: tuple[int, ...], source: Optional[Description]) -> bytes:
        done = subprocess.run(
            self.command(*arguments),
            input=b"" if source is None else source.text.encode(),
            cwd=None if source is None else source.directory,
            capture_output=True,
            check=False,
        )
        if done.returncode not in accepted or not done.stdout:
            text = done.stderr.decode(errors="replace")
            if source is not None:
                text = text.replace("<stdin>", source.name)
            raise of_text(text, done.returncode)
        return done.stdout
