"""Run the command line: `python -m tfdpg`."""

import sys

from tfdpg.cli import main

sys.exit(main())
