"""Reloads: the new models answer new requests, the old ones finish theirs, and no request is lost."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from embedkit import Collection, Encoder
from embedkit.serving.http.registry import LoadedModels, Peers, Service
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.retrieval.search import SearchOptions

from .conftest import bearer, ring, wait_for

TEXTS = ["a dog in the garden with a cat", "the sea and a boat under the moon"]


@pytest.fixture
def bundle(write_toy_bundle, tmp_path):
    return write_toy_bundle(tmp_path / "model.onnx")


@pytest.fixture
def replace(write_toy_bundle, bundle, tmp_path):
    """Put another model under the same path; return its rows for the texts."""

    def replace(length):
        write_toy_bundle(tmp_path / "new.onnx", max_length=length)
        (tmp_path / "new.onnx").replace(bundle)
        return Encoder.load(bundle, threads=1).encode(TEXTS)

    return replace


@pytest.fixture
def keys():
    return ring(admin={"admin"}, reader={"read", "write", "metrics"})


def start(serving, bundle, keys=(), **settings):
    settings = ServerSettings(port=0, threads=1, **settings)
    return serving(Service.load([str(bundle)], settings), keys)


def test_new_requests_get_the_new_model(served, bundle, replace, keys):
    with start(served, bundle, keys) as url, httpx.Client(base_url=url, headers=bearer("reader")) as client:
        before = client.post("/embed", json={"inputs": TEXTS}).json()
        expected = replace(5)
        assert client.post("/embed", json={"inputs": TEXTS}).json() == before
        done = client.post("/admin/reload", headers=bearer("admin"), timeout=250)
        assert done.status_code == 200
        after = client.post("/embed", json={"inputs": TEXTS}).json()
        card = client.get("/v1/models/toy").json()
        metrics = client.get("/metrics").text
    assert done.json()["data"] == [card]
    assert card["max_length"] == 5
    assert before != after
    np.testing.assert_array_equal(np.float32(after), expected)
    assert 'embedkit_reloads_total{result="done"} 1.0' in metrics


def test_replaced_models_leave_the_memory_at_once(bundle, toy_cross_bundle, build):
    build([{"id": "a", "text": TEXTS[0]}])
    settings = ServerSettings(threads=1, collection=str(bundle.parent / "idx"), reranker=str(toy_cross_bundle))

    async def reload_after_use(service):
        await service.registry.embedder().embed(TEXTS)
        await service.registry.needed_collection().search(TEXTS[0], SearchOptions(k=1, rerank=True))
        before = [weakref.ref(service.registry.embedder().encoder), weakref.ref(service.registry.cross.model)]
        assert await service.reload() is None
        return before

    service = Service.load([str(bundle)], settings)
    gc.collect()
    gc.disable()  # which runs so seldom in an idle server that a dozen models can wait for it
    try:
        before = asyncio.run(reload_after_use(service))
        wait_for(lambda: not any(model() for model in before))
    finally:
        gc.enable()
        service.close()


@pytest.mark.parametrize("name", ["reader", None])
def test_a_reload_needs_the_scope_admin(serve, keys, name):
    with serve(keys=keys if name else ()) as url:
        done = httpx.post(f"{url}/admin/reload", headers=bearer(name) if name else {})
    assert done.status_code == 403
    assert "'admin'" in done.json()["error"]


def test_a_reload_that_fails_changes_nothing(served, bundle, keys):
    with start(served, bundle, keys) as url, httpx.Client(base_url=url, headers=bearer("reader")) as client:
        before = client.post("/embed", json={"inputs": TEXTS}).json()
        content = bundle.read_bytes()
        bundle.write_bytes(content[:-100])
        done = client.post("/admin/reload", headers=bearer("admin"), timeout=250)
        assert done.status_code == 500
        assert client.post("/embed", json={"inputs": TEXTS}).json() == before
        assert client.get("/health/ready").status_code == 200
        assert 'embedkit_reloads_total{result="failed"} 1.0' in client.get("/metrics").text


def test_an_unexpected_fault_in_a_reload_is_logged_counted_and_told_to_the_worker_that_asked(
    bundle, tmp_path, caplog
):
    service = Service.load([str(bundle)], ServerSettings(threads=1))
    service.peers, asking = Peers(tmp_path), Peers(tmp_path, own=1)
    service._load = lambda: 1 // 0

    async def run():
        await service.answer_siblings()
        return await asking.ask("reload")

    try:
        told = asyncio.run(run())
    finally:
        service.peers.close()
        service.close()
    assert told == ["integer division or modulo by zero"]
    (record,) = (record for record in caplog.records if record.message.startswith("reload failed"))
    assert record.exc_info[0] is ZeroDivisionError
    assert b'embedkit_reloads_total{result="failed"} 1.0' in service.metrics.text([])


def test_a_reload_continues_in_all_workers_without_its_caller(toy_encoder):
    loading, asked = threading.Event(), asyncio.Event()

    class Others(Peers):
        async def ask(self, question):
            asked.set()
            assert question == "reload"
            return [""]

    def load():
        assert loading.wait(250)
        return LoadedModels([toy_encoder])

    loading.set()
    service = Service(ServerSettings(), load, peers=Others())
    loading.clear()
    before = service.registry

    async def run():
        caller = asyncio.ensure_future(service.reload_everywhere())
        await asyncio.sleep(0.05)
        caller.cancel()
        loading.set()
        await asyncio.wait_for(asked.wait(), 250)
        return caller.cancelled()

    try:
        assert asyncio.run(run())
        assert service.registry is not before
    finally:
        service.close()


def test_no_request_is_lost_or_mixed_by_reloads(served, bundle, replace, keys):
    known = [Encoder.load(bundle, threads=1).encode(TEXTS)]
    found, stop = [], threading.Event()

    def ask(url):
        with httpx.Client(base_url=url, headers=bearer("reader"), timeout=250) as client:
            while not stop.is_set():
                done = client.post("/embed", json={"inputs": TEXTS})
                found.append((done.status_code, done.json()))

    with start(served, bundle, keys) as url, ThreadPoolExecutor(4) as pool:
        pending = [pool.submit(ask, url) for _ in range(4)]
        wait_for(lambda: found)
        for length in (5, 7, 9):
            known.append(replace(length))
            assert httpx.post(f"{url}/admin/reload", headers=bearer("admin"), timeout=60).status_code == 200
        answered = len(found)
        wait_for(lambda: len(found) > answered + 4)
        stop.set()
        for one in pending:
            one.result()
    assert {status for status, _ in found} == {200}
    seen = {
        next(n for n, rows in enumerate(known) if np.array_equal(rows, np.float32(given))) for _, given in found
    }
    assert {0, 3} <= seen <= {0, 1, 2, 3}


def test_a_rebuilt_collection_is_noticed(toy_encoder, write_toy_bundle, tmp_path):
    other = Encoder.load(write_toy_bundle(tmp_path / "other.onnx", name="other", max_length=6), threads=1)
    place = tmp_path / "idx"
    Collection.build(["a dog"], encoder=toy_encoder, path=place, show_progress_bar=False)

    def load():
        fingerprint = Collection.open(place).manifest.fingerprint
        builder = next(one for one in (toy_encoder, other) if one.fingerprint == fingerprint)
        return LoadedModels([toy_encoder, other], None, Collection.open(place, encoder=builder))

    service = Service(ServerSettings(), load)

    async def run():
        Collection.build(["the sea", "a boat"], encoder=other, path=place, replace=True, show_progress_bar=False)
        await service.reload()
        return await service.registry.needed_collection().search(
            "the sea", SearchOptions(k=5)
        ), service.registry.collection.card()

    try:
        hits, card = asyncio.run(run())
    finally:
        service.close()
    assert [hit.text for hit in hits] == ["the sea", "a boat"]
    assert card["model"] == "other"
