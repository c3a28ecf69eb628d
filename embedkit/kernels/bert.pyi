# Encoders and cross-encoders of the BERT family.

from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

# weight (I, O) float32 or int8, scales (O,) float32 for int8, bias (O,) float32, factors (I,) float32 that inputs
# are multiplied by before rounding; then the value of one unit of a rounded input, 0 if each row has its own, and
# the value of input 0. I and O are multiples of 64.
Product: TypeAlias = tuple[Array, Array | None, Array, Array | None, float, float]
Norm: TypeAlias = tuple[Array, Array]  # weight and bias (H,) float32
# projection to queries, keys and values, product of the context, norm; wide and narrow product, norm; number of
# the rotation of queries and keys, and the largest distance of a key from its query, both -1 without one
Layer: TypeAlias = tuple[Product, Product, Norm, Product, Product, Norm, int, int]

# Instruction sets that this build contains and this processor supports, fastest first; always includes "portable".
def instructions() -> tuple[str, ...]: ...

# Threads that share one run: its own and at most `threads - 1` that help. Results do not depend on the team.
Team: TypeAlias = object

def make_team(instructions: str, threads: int, /) -> Team: ...

# Wait for the team's run and take part in it, until it ends or the team is closed. Releases the GIL.
def help_team(team: Team, /) -> None: ...

# Dismiss the helpers of a team, whether or not it had a run.
def close_team(team: Team, /) -> None: ...

class Network:
    # words: (V, H) float32; (V, H) int8 with scales (V, 1) float32; (V, H / 2) uint8, the left half of a row in
    # low bits and the right in high bits, with scales (V, blocks) float16. memory: (V, M), also in one of these
    # forms, of the same V words; its mean is appended to the pooled state. Without one, memory_width M is 0.
    # With H = 0 that mean is all: words and positions are None, norms empty, and texts of any length.
    # These tables, positions (P, H) float32 and token types (T, H) float32, if any, are not copied.
    # head: H + M -> D, then head_activation: "linear" for none, "tanh", or "gelu" in the form of the layers; then
    # head_norm, if there is one. unit: rows are scaled to length 1.
    # padding_id: an id whose tokens have position 0 and are not counted, so that other tokens have positions from
    # 1, as of RoBERTa's padding; -1 if all tokens are counted from 0.
    # bias: (heads, 2 P - 1) float32, added to a score by the distance of the key from the query, from 1 - P to
    # P - 1 for texts of at most P tokens.
    # rotations: at most two of (P, H / heads) float32, the cosines and then the sines by which layers rotate the
    # halves of queries and keys. positions may then be None.
    # pre_norm: norms apply to the inputs of products and not to the sums that go on to the next block.
    # gated: wide products have 2 I outputs; the GELU of the first I is multiplied by the others.
    # score: (D + 1,) float32, the last column of a cross-encoder and its bias; its sigmoid replaces rows.
    # ValueError if sizes do not fit, the instruction set is not available, or a weight is NaN or infinite.
    def __new__(
        cls,
        *,
        hidden: int,
        heads: int,
        intermediate: int,
        memory_width: int,
        dimension: int,
        vocabulary: int,
        epsilon: float,
        tanh: bool,
        first_token: bool,
        unit: bool,
        instructions: str,
        words: Array | None,
        word_scales: Array | None,
        memory: Array | None,
        memory_scales: Array | None,
        positions: Array | None,
        types: Array | None,
        norm: Norm,
        layers: Sequence[Layer],
        head: Product | None,
        head_activation: str,
        score: Array | None,
        padding_id: int = -1,
        bias: Array | None = None,
        rotations: Sequence[Array] = (),
        pre_norm: bool = False,
        gated: bool = False,
        head_norm: Norm | None = None,
    ) -> Self: ...

    # ids (N,) int32 of concatenated texts, types (N,) int32 if the network has token types, starts (B + 1,) int32
    # of each text and the end; fills out, (B, D) or (B,) float32. A team has the same instructions,
    # and one run. logits: scores before their sigmoid. ValueError if the texts are invalid for this network,
    # ArithmeticError if a value became NaN or infinite. Releases the GIL.
    def run(
        self,
        ids: Array,
        types: Array | None,
        starts: Array,
        out: Array,
        team: Team | None = None,
        logits: bool = False,
        /,
    ) -> None: ...
