"""Encoding: numpy, onnxruntime and tokenizers, and nothing else."""
