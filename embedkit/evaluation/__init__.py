"""Evaluation of encoders: similarity, re-ranking, retrieval, pairs and transfer, on public or custom sets."""
