"""Run the command line: `python -m tfdpg`."""

import os
import sys

try:
    if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():
        del sys.path[0]  # `python -m` added it, and a file there may have the name of a library (see tfdpg.imports)
except FileNotFoundError:  # the working directory was removed, so `python -m` added nothing
    pass

from tfdpg.cli import main  # noqa: E402 (imports libraries)

sys.exit(main())
