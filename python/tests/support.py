"""An agent of its own for each test class, with everything removed at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/src"))
os.environ.setdefault("MYELIN", str(ROOT / "target/debug/myelin"))

import myelin  # noqa: E402

# Patience for an event that a test waits for.
PATIENCE_S = 60.0


def wait_for(what: str, is_true: Callable[[], bool]) -> None:
    """Waits for an event."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.02)


class AgentTest(unittest.TestCase):
    """Tests with an agent in a run directory of their own."""

    client: ClassVar[myelin.Client]
    directory: ClassVar[Path]
    tag: ClassVar[str]

    @classmethod
    def setUpClass(cls) -> None:
        if os.geteuid() != 0:
            raise unittest.SkipTest("needs root")
        cls.directory = Path(tempfile.mkdtemp(prefix="myelin-test-py"))
        cls.tag = f"p{os.getpid()}"
        cls.client = myelin.Client(cls.directory / "run")
        os.environ["MYELIN_IMAGES"] = str(cls.directory / "images")
        os.environ["MYELIN_ACCESS"] = str(cls.directory / "access.yaml")

    @classmethod
    def tearDownClass(cls) -> None:
        command = cls.client.program.command("down", "--all")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
        shutil.rmtree(cls.directory)

    def write(self, text: str, name: str = "chain.yaml") -> Path:
        """Writes a file; `@` in the text is the prefix of this test's names."""
        path = self.directory / name
        path.write_text(text.replace("@", f"{self.tag}-"))
        return path

    def name(self, name: str) -> str:
        """The name of an object that a file calls `@NAME`."""
        return f"{self.tag}-{name}"

    def namespaces(self) -> list[str]:
        """The network namespaces of this test's objects."""
        listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
        return [line.split()[0] for line in listed.stdout.splitlines() if f"{self.tag}-" in line]


def run() -> None:
    """Runs the tests of the calling file. A skip is printed as the suite expects it."""
    program = unittest.main(exit=False, verbosity=2)
    for test, reason in program.result.skipped:
        print(f"SKIP: {reason} ({test})")
    sys.exit(not program.result.wasSuccessful())
