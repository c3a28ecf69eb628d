"""Encoding, with numpy, onnxruntime and tokenizers alone."""
