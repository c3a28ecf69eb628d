"""Export of torch models to verified bundles: graph, quantization, gates."""

import embedkit.modeling  # noqa: F401 - before torch, for how its threads wait
