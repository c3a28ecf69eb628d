"""Training: from a corpus, and optionally a teacher, to a run folder that holds a small encoder."""
