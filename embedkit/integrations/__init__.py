"""Adapters of encoders to other packages, one module for each package, and their common class."""

from collections.abc import Iterable

from embedkit.runtime.arguments import check_text
from embedkit.runtime.encoder import Encoder


class Adapter:
    """An encoder with the settings of an adapter at the time of loading."""

    def __init__(
        self, model: str = "tiny", *, truncate_dim: int | None = None, threads: int | None = None
    ) -> None:
        """Load the model.

        Args:
            model: argument of :meth:`embedkit.Encoder.load`: a path, a bundled name or a hub id.
            truncate_dim: number of leading dimensions to keep; all if None.
            threads: number of threads; if None, all available.

        Raises:
            ModelNotFoundError, ModelError: the model cannot be loaded.
            InputError: ``truncate_dim`` or ``threads`` does not fit.
        """
        super().__init__()
        self._model, self._truncate_dim, self._threads = model, truncate_dim, threads
        self._encoder = Encoder.load(model, threads=threads)
        self._encoder.encode([], truncate_dim=truncate_dim)  # an argument that does not fit is an error here

    def _embed_query(self, text: str) -> list[float]:
        """Embed a query with the model's prompt for queries; an error names anything else than a text."""
        check_text(text, "text")
        row = self._encoder.encode_query([text], truncate_dim=self._truncate_dim, show_progress_bar=False)[0]
        return list(row.tolist())

    def _embed_documents(self, texts: Iterable[str]) -> list[list[float]]:
        """Embed documents with the model's prompt for documents."""
        rows = self._encoder.encode_document(texts, truncate_dim=self._truncate_dim, show_progress_bar=False)
        return list(rows.tolist())

    @property
    def model(self) -> str:
        """The model, as it was given."""
        return self._model

    @property
    def dimension(self) -> int:
        """D, the length of an embedding."""
        return self._truncate_dim or self._encoder.dimension
