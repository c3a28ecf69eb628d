"""Encoding: numpy, onnxruntime and tokenizers, and nothing else."""

__all__: list[str] = []
