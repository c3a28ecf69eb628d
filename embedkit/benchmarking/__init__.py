"""Workers and models for timing that require torch."""
