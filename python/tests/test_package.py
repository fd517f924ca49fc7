#!/usr/bin/env python3
"""The wheel: it holds all files, installs into a fresh environment, and needs nothing else."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile
from pathlib import Path

from support import ROOT, run


class Package(unittest.TestCase):
    def test_the_wheel_works_in_a_fresh_environment(self) -> None:
        with tempfile.TemporaryDirectory(prefix="myelin-test-py") as temporary:
            directory = Path(temporary)
            build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", temporary]
            subprocess.run(build, cwd=ROOT / "python", check=True, capture_output=True)
            (wheel,) = directory.glob("*.whl")
            names = zipfile.ZipFile(wheel).namelist()
            for name in ("myelin/chain.json", "myelin/py.typed", "myelin/types.py", "myelin/compat/mininet/net.py"):
                self.assertIn(name, names)
            environment = directory / "environment"
            venv.create(environment, with_pip=True)
            python = str(environment / "bin/python")
            install = [python, "-m", "pip", "--quiet", "install", "--no-index", "--disable-pip-version-check", str(wheel)]
            subprocess.run(install, check=True)
            script = (
                "import myelin\n"
                "for name in myelin.__all__:\n    getattr(myelin, name)\n"
                "chain = myelin.Chain('c', match={}, functions=[myelin.Function('f', 'forward')])\n"
                "print(chain.name, myelin.__file__.startswith(__import__('sys').prefix))\n"
            )
            done = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True, cwd=temporary)
            self.assertEqual(done.stdout, "c True\n")
            shell = subprocess.run([python, "-m", "myelin.shell", "--help"], check=True, capture_output=True, text=True)
            self.assertIn("Mininet", shell.stdout)
            labs = directory / "labs.py"
            labs.write_text("from mininet.topo import LinearTopo\nprint(LinearTopo(3).switches())\n")
            done = subprocess.run(
                [python, "-m", "myelin.compat", str(labs)], check=True, capture_output=True, text=True
            )
            self.assertEqual(done.stdout, "['s1', 's2', 's3']\n")

    def test_an_import_loads_little(self) -> None:
        # Each takes as much time as the rest of the package.
        script = "import sys, myelin; myelin.Network, myelin.Chain; print(*sys.modules)"
        source = {"PYTHONPATH": str(ROOT / "python/src"), "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, "-S", "-c", script], check=True, capture_output=True, text=True, env=source)
        loaded = set(done.stdout.split())
        self.assertIn("myelin.network", loaded)
        self.assertEqual(loaded & {"dataclasses", "inspect", "asyncio", "ctypes", "cmd", "myelin.compat", "myelin.types"}, set())


if __name__ == "__main__":
    run()
