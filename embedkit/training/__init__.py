"""Training: from a corpus, and optionally a teacher, to a run folder that holds a small encoder."""

import embedkit.modeling  # noqa: F401 - before torch, for how its threads wait
