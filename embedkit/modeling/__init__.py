"""Torch networks: backbone, pooling, heads and initialisation. Losses and the training loop are elsewhere."""
