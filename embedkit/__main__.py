"""`python -m embedkit` is the command `embedkit`."""

import sys

from embedkit.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
