"""Export of torch models to verified bundles: graph, quantization, gates."""
