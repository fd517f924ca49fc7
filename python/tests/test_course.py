#!/usr/bin/env python3
"""The notebooks of the course run from the first cell to the last, and leave nothing."""

from __future__ import annotations

import os

from support import ROOT, AgentTest, run, wait_for

COURSE = ROOT / "docs/course"


class Course(AgentTest):
    def test_notebooks_run(self) -> None:
        try:
            import nbclient
            import nbformat
        except ImportError as error:
            self.fail(f"{error}: `scripts/install-deps test` installs it")
        path = f"{ROOT / 'python/src'}:{os.environ.get('PYTHONPATH', '')}"
        os.environ.update(PYTHONPATH=path, MYELIN_RUN_DIR=str(self.client.run_dir))
        notebooks = sorted(COURSE.glob("*.ipynb"))
        self.assertTrue(notebooks)
        for file in notebooks:
            with self.subTest(file.name):
                notebook = nbformat.read(file, as_version=4)
                for cell in notebook.cells:
                    self.assertFalse(cell.get("outputs"), "a notebook of the repository has no outputs")
                nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(COURSE)}}).execute()
                drawn = [one for cell in notebook.cells for one in cell.get("outputs", []) if "image/svg+xml" in one.get("data", {})]
                self.assertTrue(drawn, "a notebook shows its network or its chain")
                wait_for("the end of the network", lambda: self.client.topologies() == [])
                self.assertEqual(self.client.ps(), [])


if __name__ == "__main__":
    run()
