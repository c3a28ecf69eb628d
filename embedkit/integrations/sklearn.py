"""scikit-learn's transformer interface: texts in, features out, for pipelines and grid searches.

    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from embedkit.integrations.sklearn import TextEmbedder

    classifier = make_pipeline(TextEmbedder("tiny"), LogisticRegression())
    classifier.fit(texts, labels)

Needs ``pip install "embedkit-onnx[bench]"``, or scikit-learn 1.6 or newer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from embedkit.errors import EmbedkitError, MissingExtraError
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import check_iterable
from embedkit.runtime.encoder import Encoder

try:
    from sklearn.base import BaseEstimator, TransformerMixin
except ImportError as error:
    raise MissingExtraError('scikit-learn is not installed: pip install "embedkit-onnx[bench]"') from error

__all__ = ["TextEmbedder"]


class TextEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Embeds texts without learning from them. Can be cloned, pickled and tuned like any estimator.

    Args:
        model: argument of :meth:`embedkit.Encoder.load`: a path, a bundled name or a hub id. It is loaded on
            first use, in every process.
        truncate_dim: number of leading dimensions to keep; all if None.
        prompt_name: name of one of the model's prompts, prepended to every text.
        threads: number of threads; if None, all available. Use 1 with ``n_jobs``.
    """

    def __init__(
        self,
        model: str = "tiny",
        *,
        truncate_dim: int | None = None,
        prompt_name: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.model, self.truncate_dim, self.prompt_name, self.threads = model, truncate_dim, prompt_name, threads

    def fit(self, X: Iterable[str], y: object = None) -> Self:  # noqa: ARG002, N803 - scikit-learn's names
        """Load the model; nothing is learned from ``X``.

        Raises:
            ModelNotFoundError, ModelError: the model cannot be loaded.
        """
        self._load()
        return self

    def transform(self, X: Iterable[str]) -> FloatArray:  # noqa: N803 - scikit-learn's name
        """Embed N texts: ``(N, D) float32, unit rows``.

        Raises:
            InputError: an item is not a string, or the settings do not fit the model.
            ModelNotFoundError, ModelError: the model cannot be loaded.
        """
        rows: FloatArray = self._load().encode(
            check_iterable(X, "X"),
            truncate_dim=self.truncate_dim,
            prompt_name=self.prompt_name,
            show_progress_bar=False,
        )
        return rows

    def get_feature_names_out(self, input_features: object = None) -> npt.NDArray[np.object_]:  # noqa: ARG002
        """Return ``embedding0`` and so on, one name for each of the D dimensions."""
        return np.array([f"embedding{number}" for number in range(self.dimension)], dtype=object)

    @property
    def dimension(self) -> int:
        """D, the number of features."""
        return self.truncate_dim or self._load().dimension

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array, tags.input_tags.string = False, True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and the model's fingerprint, by which caches notice a replaced model."""
        state = {name: value for name, value in super().__getstate__().items() if name != "_loaded"}
        with contextlib.suppress(EmbedkitError):  # a model that is elsewhere can be used there
            state["_fingerprint"] = self._load().fingerprint
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "_fingerprint"})

    def _load(self) -> Encoder:
        """Return the model for the current settings."""
        wanted = (self.model, self.threads)
        if getattr(self, "_loaded", (None,))[0] != wanted:
            self._loaded = (wanted, Encoder.load(self.model, threads=self.threads))
        return self._loaded[1]
