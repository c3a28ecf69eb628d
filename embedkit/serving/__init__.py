"""Serving: search, bulk encoding and the HTTP server. Does not need torch."""
