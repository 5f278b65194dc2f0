"""`python -m mxgemm`: the command line without its entry point."""

import sys

from mxgemm.cli import main

sys.exit(main())
