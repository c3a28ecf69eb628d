"""The command line: one module per command, and `main`, which dispatches to them."""

__all__: list[str] = []
