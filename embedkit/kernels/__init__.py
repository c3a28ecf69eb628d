"""What is compiled: one C file for each kernel, in CPython's limited API. See ``docs/install.md``.

Each is optional. Where no compiler was found it is not there, and :mod:`embedkit.runtime.kernels`, the only way to
them, has None in its place.
"""

__all__: list[str] = []
