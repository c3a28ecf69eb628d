"""Admission: requests are admitted by their cost, refused before they cost anything, and counted until done."""

from __future__ import annotations

import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from embedkit import CrossEncoder, Encoder
from embedkit.errors import OverloadedError
from embedkit.serving.http.admission import CALLER, Admission, Caller
from embedkit.serving.http.protocols.openai import EmbeddingsRequest

from .conftest import gated, wait_for


def test_excess_work_is_refused_with_a_time_to_retry():
    admission = Admission(4.0)
    with admission.reserve(1.0), admission.reserve(1.0), admission.reserve(0.5):
        with pytest.raises(OverloadedError, match=r"2\.50 s of work are queued") as caught, admission.reserve(0.8):
            pass
        assert caught.value.retry_after_s == 3
        with admission.reserve(0.7):
            assert admission.reserved_s == pytest.approx(3.2)
    assert admission.reserved_s == 0


def test_costly_work_leaves_room_for_cheap_work():
    admission = Admission(4.0)
    with contextlib.ExitStack() as stack:
        costly = 0
        with contextlib.suppress(OverloadedError):
            for costly in range(100):  # noqa: B007 - how many were let in
                stack.enter_context(admission.reserve(60.0))
        assert costly == 3  # several, however busy it is
        for _ in range(90):
            stack.enter_context(admission.reserve(0.01))
        assert admission.reserved_s == pytest.approx(3 * 60 + 0.9)


def test_a_key_holds_no_more_than_its_share():
    admission = Admission(10.0)
    token = CALLER.set(Caller("batch jobs", share=0.3))
    try:
        with admission.reserve(2.0):
            with pytest.raises(OverloadedError, match="batch jobs"), admission.reserve(1.0):
                pass
            CALLER.set(Caller("search"))
            with admission.reserve(2.0), admission.reserve(2.0):
                pass
    finally:
        CALLER.reset(token)


def test_work_that_would_miss_its_deadline_is_refused_at_once():
    admission = Admission(10.0)
    with admission.reserve(2.0):
        token = CALLER.set(Caller(deadline=time.monotonic() + 1))
        try:
            with (
                pytest.raises(OverloadedError, match="more than the time limit of this request"),
                admission.reserve(0.1),
            ):
                pass
        finally:
            CALLER.reset(token)


def test_a_request_that_is_late_before_it_is_admitted_gets_504(serve, monkeypatch):
    accept = EmbeddingsRequest.model_validate
    monkeypatch.setattr(EmbeddingsRequest, "model_validate", lambda content: time.sleep(0.3) or accept(content))
    with serve(timeout_s=0.2) as url:
        assert httpx.post(f"{url}/v1/embeddings", json={"input": "one"}, timeout=250).status_code == 504


def test_searches_share_the_queue_and_costly_ones_keep_no_thread(serve, build, toy_cross_bundle):
    collection = build((str(n), f"a dog and {n} cats") for n in range(200))
    reranker = gated(CrossEncoder, "predict_tokens").load(toy_cross_bundle, threads=1)
    with serve(collection=collection, reranker=reranker, queue_s=0.05) as url, ThreadPoolExecutor(30) as pool:

        def ask(_):
            costly = {"query": "a dog", "rerank": True, "candidates": 200}
            return httpx.post(f"{url}/v1/search", json=costly, timeout=250)

        pending = [pool.submit(ask, number) for number in range(30)]
        wait_for(lambda: sum(one.done() for one in pending) >= 20)
        plain = httpx.post(f"{url}/v1/search", json={"query": "a dog"}, timeout=250)
        reranker.gate.set()
        answers = [one.result() for one in pending]
    assert plain.status_code == 200  # while all admitted requests wait for the re-ranker
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) >= 20
    assert len(refused) < 30
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


def test_work_past_its_deadline_is_dropped(serve, toy_bundle):
    encoder = gated(Encoder, "encode_tokens").load(toy_bundle)
    with serve(encoder=encoder) as url, ThreadPoolExecutor(2) as pool:
        first = pool.submit(httpx.post, f"{url}/embed", json={"inputs": "one"}, timeout=250)
        wait_for(lambda: encoder.begun)
        late = httpx.post(f"{url}/embed", json={"inputs": ["two"] * 50}, headers={"x-request-timeout": "0.3"})
        encoder.gate.set()
        assert first.result().status_code == 200
        httpx.post(f"{url}/embed", json={"inputs": "three"})
    assert late.status_code == 504
    assert "X-Request-Timeout" in late.json()["error"]
    assert sum(encoder.begun) == 2  # the fifty texts were never encoded


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_an_invalid_timeout_is_refused_by_name(client, value):
    done = client.post("/embed", json={"inputs": "a"}, headers={"x-request-timeout": value})
    assert done.status_code == 400
    assert done.json()["error"].startswith("X-Request-Timeout: ")


def test_the_time_limit_of_the_server_applies_too(serve, toy_bundle):
    encoder = gated(Encoder, "encode_tokens").load(toy_bundle)
    with serve(encoder=encoder, timeout_s=0.2) as url:
        headers = {"x-request-timeout": "60"}
        assert httpx.post(f"{url}/embed", json={"inputs": "one"}, headers=headers, timeout=250).status_code == 504
        encoder.gate.set()


def test_nothing_remains_of_much_work_of_all_sizes():
    admission, source = Admission(1000.0), random.Random(7)
    for _ in range(2000):
        with admission.reserve(source.random() / 3) as first, admission.reserve(source.random() / 7):
            admission.correct(first, source.random() / 11)
    assert admission.reserved_s == 0
