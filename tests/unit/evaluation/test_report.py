from __future__ import annotations

import dataclasses
import json

import pytest

from embedkit.evaluation.report import to_json
from embedkit.evaluation.results import Evaluation, Part, Result

STS = Result(
    name="sts13",
    measure="all",
    value=0.80601,
    measures={"all": 0.80601, "mean": None},
    rows=1499,
    unit="pairs",
    source="data/STS13-en-test",
    expected=1500,
    complete=False,
    parts={"FNWN": Part(189, 0.5)},
    notes=["OnWN: 560 scored pairs; the published set has 561"],
)
SCIDOCS = Result(
    name="scidocs",
    convention="useb",
    measure="map",
    value=0.65,
    measures={"map": 0.65},
    rows=4000,
    unit="queries",
    source="data/scidocs",
    parts={"cite": Part(1000, 0.6)},
    skipped={"without a title": 2},
)


def evaluation(model, results, fingerprint=""):
    return Evaluation(
        model=model,
        fingerprint=fingerprint or model,
        dimension=384,
        max_length=128,
        task="t",
        texts=10,
        seconds=1.5,
        results=results,
    )


TWO = [
    evaluation("tiny", [STS]),
    evaluation("tiny", [SCIDOCS]),
    evaluation("small", [dataclasses.replace(STS, value=0.9, measures={"all": 0.9, "mean": 0.8})]),
]


def test_json_has_everything_and_no_nan():
    report = json.loads(json.dumps(to_json(TWO), allow_nan=False))
    assert report["versions"].keys() >= {"embedkit", "python", "numpy"}
    first = report["evaluations"][0]
    assert first["fingerprint"] == "tiny"
    assert first["results"][0]["measures"] == {"all": 0.80601, "mean": None}
    assert first["results"][0]["parts"] == {"FNWN": {"rows": 189, "value": 0.5}}
    assert first["results"][0]["complete"] is False
    assert first["seconds"] == pytest.approx(1.5)
