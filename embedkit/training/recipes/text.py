"""The text that a run was trained on."""

from __future__ import annotations

from pathlib import Path

from embedkit.config import load_toml
from embedkit.training.corpus import Corpus
from embedkit.training.recipes.run import resolve
from embedkit.training.run_folder import RunFolder

__all__ = ["training_text"]


def training_text(run: str | Path) -> list[str]:
    """Return the distinct rows of a run's corpus, from the cache or else prepared again.

    Args:
        run: the run folder.

    Raises:
        ConfigError: it has no configuration, or a damaged one.
        DataError: a source of text is missing or malformed.
    """
    config = resolve(load_toml(RunFolder(run).config))
    corpus = Corpus.prepare(config.sources, Path(config.cache))
    return [text for view in range(corpus.views) for text in corpus.texts(range(len(corpus)), view)]
