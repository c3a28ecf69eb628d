"""Text preprocessing of SentEval: tokenized by Moses' rules and, except for SICK, lower-cased.

Source: SentEval's ``get_transfer_data.bash`` (``tokenizer.perl -l en -no-escape``, then ``lowercase.perl``). Its
evaluators split the lines at whitespace, and the code of most papers joins them again by single spaces. The
tokenizer is the package sacremoses, a port of Moses' script.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from embedkit.errors import InputError
from embedkit.evaluation.sts import ScoredPairs
from embedkit.evaluation.sts_sources import SICK_NAMES, STS_YEARS, STSB_NAMES, StsSet
from embedkit.evaluation.sts_task import StsTask
from embedkit.evaluation.tasks import Task
from embedkit.extras import require

__all__ = ["as_senteval"]

_ENGLISH = (*STS_YEARS, *STSB_NAMES, *SICK_NAMES)


def as_senteval(task: Task) -> Task:
    """Preprocess the texts of a task; a set without any capital letter is assumed to be preprocessed already.

    Raises:
        InputError: the task is not one of SentEval's STS sets.
        MissingExtraError: sacremoses is not installed.
    """
    if not isinstance(task, StsTask) or any(each.name not in _ENGLISH for each in task.sets):
        raise InputError(f"{task.name}: SentEval's text is defined for its sets: {', '.join(('sts', *_ENGLISH))}")
    return replace(task, sets=[_prepared(each) for each in task.sets])


def _prepared(sts: StsSet) -> StsSet:
    if sts.lower_cased:
        return sts
    tokenize = require("sacremoses", extra="bench").MosesTokenizer("en").tokenize
    lower = sts.name not in SICK_NAMES
    prepare = partial(_prepare, tokenize=partial(tokenize, escape=False, return_str=True), lower=lower)
    subsets = [
        ScoredPairs(pairs.name, [*map(prepare, pairs.first)], [*map(prepare, pairs.second)], pairs.scores)
        for pairs in sts.subsets
    ]
    done = "tokenized and lower-cased" if lower else "tokenized"
    return replace(sts, subsets=subsets, notes=[*sts.notes, f"the text was {done} as in SentEval"])


def _prepare(text: str, *, tokenize: Callable[[str], str], lower: bool) -> str:
    tokens = " ".join(tokenize(text).split())
    return tokens.lower() if lower else tokens
