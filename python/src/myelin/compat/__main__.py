"""Runs a script of Mininet or ComNetsEmu: `python3 -m myelin.compat SCRIPT [ARGUMENTS]`."""

from __future__ import annotations

import os
import runpy
import sys

from ..errors import MyelinError
from . import _hook


def main(arguments: list[str]) -> int:
    """Runs the script of the arguments, and returns the exit status of an error of Myelin."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python3 -m myelin.compat SCRIPT [ARGUMENTS]\n\n"
              "Runs a script that imports `mininet` or `comnetsemu` unmodified on networks of Myelin.")
        return 0 if arguments else 2
    script = arguments[0]
    directory = os.path.dirname(os.path.abspath(script))
    _hook.install(directory)
    sys.argv = arguments
    sys.path.insert(0, directory)
    try:
        runpy.run_path(script, run_name="__main__")
    except MyelinError as error:
        print(f"myelin: {error}", file=sys.stderr)
        return error.exit_status
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("mininet", "comnetsemu")):
            raise
        print(f"myelin: {error}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        if error.filename != script:
            raise
        print(f"myelin: {script}: there is no such script: name a file", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
