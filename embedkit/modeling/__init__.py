"""Torch networks: backbone, pooling, heads and initialisation. Losses and the training loop are elsewhere."""

from __future__ import annotations

import os
import sys

# OpenMP's threads spin while they wait for each other. Beside a busy process, which takes the processor from one
# of them, a step is then ten times slower. OpenMP reads the setting once, when torch is imported.
SPINS = "OMP_WAIT_POLICY" not in os.environ and "torch" in sys.modules
"""Whether torch was imported before the setting below, without a choice of the user's."""
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
