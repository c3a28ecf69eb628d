"""The command line: one file per command, and `main` which finds them."""

__all__: list[str] = []
