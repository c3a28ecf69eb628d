"""`python -m embedkit` is the command `embedkit`."""

import sys

from embedkit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
