"""Compiled kernels, one C file each, using CPython's limited API. See ``docs/install.md``.

All are optional. Without a compiler they are absent, and :mod:`embedkit.runtime.kernels`, the only module that
imports them, has None in their place.
"""
