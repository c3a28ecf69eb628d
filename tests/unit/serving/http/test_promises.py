"""Each promise of docs/server.md has a test by name; those that no other file here tests are below."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import numpy as np
import pytest

from embedkit import Collection, Encoder
from embedkit.errors import ModelError
from embedkit.runtime.threads import available_threads
from embedkit.serving.http.catalogue import Assets
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.workers import Workers

ROOT = Path(__file__).parents[4]
PROMISES = {
    "does not start if any of them differs": "a_model_that_computes_something_else_here_does_not_start",
    "Responses equal the results of `Encoder.encode`: to the bit": "rows_equal_the_encoders_to_the_bit",
    "texts of different requests share batches": "no_answer_is_lost_or_swapped",
    "and `/metrics` count texts longer than the model's maximum": "metrics_count_requests_tokens_and_cut_texts",
    '`on_overflow = "error"` rejects them instead': "long_texts_are_refused_if_configured",
    "TEI's clients choose with `truncate`": "the_request_decides_whether_long_texts_are_truncated",
    "**Usage counts processed tokens**": "usage_counts_the_tokens_that_were_run",
    "**Token ids are rejected**": "the_error_for_token_input_names_the_option_of_langchain",
    "accepts ids of the model's own tokenizer": "token_ids_are_embedded_if_the_client_names_the_model",
    "such ids are never truncated": "token_ids_that_do_not_fit_are_refused",
    "`HEAD` works like `GET`": "head_answers_wherever_get_does",
    "`max_body_bytes` applies before and after decompression": "compressed_bodies_are_limited",
    "JSON may be nested up to 200 levels deep": "json_has_one_limit_of_depth",
    "which Java's HttpClient and `curl --http2` offer, is ignored": "an_upgrade_that_is_not_taken_is_ignored",
    "requests are answered with and without it": "a_scope_is_that_of_the_route_that_answers",
    "any type from clients that are not web pages": "a_body_without_a_type_is_json_unless_a_page_sends_it",
    "No log line contains a text, an address or a query string": "no_text_is_in_the_log",
    "ONNX Runtime's telemetry is switched off": "onnx_runtime_stores_no_telemetry",
    "The field `model` of a request selects a model": "the_requested_model_answers",
    "`/info?model=mini` describes one model": "all_models_are_listed_and_described",
    "An alias is another name": "an_alias_is_the_model",
    "Each model has its own batches and its own row in the metrics": "metrics_are_by_model",
    "SIGHUP, or `POST /admin/reload`": "sighup_reloads",
    "an API key of the scope `admin`": "a_reload_needs_the_scope_admin",
    "running requests finish with the old ones": "requests_finish_on_the_model_they_began_with",
    "no request is lost. Both sets": "no_request_is_lost_or_mixed_by_reloads",
    "If anything fails, the log and the response give the reason": "a_reload_that_fails_changes_nothing",
    "`/metrics` returns the sums over all workers": "metrics_and_readiness_are_of_all_workers",
    "reload all workers": "all_workers_reload",
    "drain all of them": "no_request_is_lost_when_workers_stop",
    "A worker that crashes is replaced": "a_worker_that_is_killed_is_replaced",
    "the parent process is killed, the workers drain and exit": "workers_end_with_the_process_that_started_them",
    "all of them map these files read-only": "workers_share_the_weights",
    "a warning is logged and each worker keeps its own copy": "without_a_folder_the_arrays_are_private",
    "is divided among the workers unless it is set": "threads_are_divided_among_workers",
    "Workers take turns writing to a collection": "workers_write_to_one_collection",
    "Health checks and `/metrics` are logged with `--verbose` only": "health_checks_are_logged_on_request_only",
    "Other servers' names `top_k`": "names_of_other_servers_are_understood",
    "are metadata, as in a `.jsonl` file": "fields_beside_the_text_are_metadata_as_in_a_file",
    "An unknown field of these routes is rejected": "an_unknown_field_of_a_search_is_an_error",
    "accepts Jina's `embedding_type`": "the_type_of_numbers_has_the_name_of_each_client",
    "A call of `embed` takes at most 64 texts": "an_agent_embeds_a_limited_number_of_texts",
    "a result has at most 4 MiB": "an_agent_gets_a_limited_number_of_bytes",
    "one request at a time for each model": "tokens_are_admitted_like_other_work",
    "Only the log and `/admin/reload` name places": "places_on_the_disk_are_told_to_operators_only",
    "the disk of the collection is full": "a_disk_that_takes_nothing_is_a_507_without_its_path",
    "the server compares 20 wrong keys, and then 5 a second": "guesses_are_limited_by_address",
    "of which 64 stay free for writes": "idle_connections_leave_files_for_writes",
    "features are not supported: TEI's `/embed_all`": "what_the_document_calls_unsupported_is_refused",
    "Without `--reranker` the encoder ranks by cosine": "without_a_cross_encoder_the_cosine_ranks",
    "TEI's `raw_scores` is rejected": "what_no_cross_encoder_can_score_is_refused_by_name",
    "A write is on disk before its response is sent": "a_write_is_on_disk_when_it_is_answered",
    "become visible within `refresh_s` seconds": "writes_of_another_process_are_visible_within_refresh_s",
    "`--allow-writes` the writing routes do not exist": "without_permission_the_writing_routes_do_not_exist",
    "Each hit has the scores of all stages": "words_are_fused_in",
    "takes longer ([indexes]": "the_effort_reaches_the_search",
    "but no texts, addresses, queries or error messages": "spans_hold_no_text",
    "Without the variable nothing is sent": "nothing_is_sent_unless_the_environment_names_a_collector",
    "`add` also needs `write`": "adding_needs_the_scope_write",
    "A map with a legend displays up to 4,000 documents": "a_map_has_at_most_4000_documents",
    "fully usable with the keyboard": "the_keyboard_suffices",
    "makes no requests to other hosts": "the_page_loads_nothing_from_elsewhere",
    "displays documents without executing their content": "contents_of_documents_are_shown_and_not_executed",
    "the page asks for it": "a_locked_server_asks_for_its_key",
    "A text that arrives at an idle server runs immediately": "nothing_waits_while_the_batcher_is_idle",
    "form the next batch": "requests_that_arrive_meanwhile_run_together",
    "the oldest text waits for others": "after_a_shared_batch_the_oldest_request_waits",
    "short requests are not stuck behind it": "a_long_request_takes_turns_with_short_ones",
    "further requests get 429 with `Retry-After`": "excess_work_is_refused_with_a_time_to_retry",
    "cannot fill the queue at the expense of cheap ones": "costly_work_leaves_room_for_cheap_work",
    "further ones get 429 before their bodies are read": "overload_is_a_429_with_a_time_to_retry",
    "immediately if more work than that is queued": "work_that_would_miss_its_deadline_is_refused_at_once",
    "the remaining work is dropped": "work_past_its_deadline_is_dropped",
    "`timeout_s` limits every request": "the_time_limit_of_the_server_applies_too",
    "Errors have OpenAI's form": "errors_have_the_form_of_the_client",
    "Sending a byte now and then does not extend a limit": "headers_have_a_time_limit_however_often_a_byte_comes",
    "unfinished requests do not block others": "unfinished_requests_take_no_place",
    "routes without authentication do not count": "requests_that_need_no_key_are_answered_before_their_body",
    "replaces the one that has been idle": "connections_are_bounded_and_the_longest_idle_one_goes_first",
    "is limited by `max_buffered_bytes`": "memory_for_unread_answers_is_bounded",
    "send and read at a normal pace": "a_client_that_reads_slowly_but_steadily_gets_its_answer",
    "keeps web pages of other sites from reaching it": "a_foreign_name_does_not_reach_a_local_server",
    "JSON is accepted only with its content type": "a_form_from_a_foreign_page_is_no_request",
    "no CORS headers unless `cors_origins` names origins": "no_origin_is_allowed_unless_named",
    "`/health` and the files of the web page need no key": "health_is_open",
    "The server logs a warning if it listens on any other address": "an_open_address_without_a_key_is_a_warning",
    "The file is reloaded within a second": "keys_change_without_a_restart",
    "Keys are compared in constant time": "every_key_is_compared",
    "contain the name of a key, never the key itself": "the_log_has_names_of_keys_and_never_keys",
    "Both logs then contain the same request id": "a_request_is_one_line_of_numbers",
    "answers readiness probes with 503": "readiness_is_refused_before_connections_are",
    "A request on an accepted connection is answered or rejected, never reset": "no_request_is_lost_when_it_stops",
    "skips the delay; a second signal": "an_interrupt_or_a_second_signal_waits_for_no_load_balancer",
    "and no request is lost. - `examples": "a_rolling_update_loses_no_request",
    "The log goes to stderr as one JSON object per line": "every_line_of_its_log_is_json",
}
"""Words of docs/server.md, and the test of what they promise."""


@pytest.mark.parametrize("promise", PROMISES)
def test_each_promise_has_a_test(promise):
    document = " ".join((ROOT / "docs" / "server.md").read_text(encoding="utf-8").split())
    assert promise in document
    files = [*Path(__file__).parent.glob("test_*.py"), *(ROOT / "tests" / "unit" / "runtime").glob("test_*.py")]
    name = re.compile(rf"def test_{PROMISES[promise]}\(")
    assert any(name.search(file.read_text(encoding="utf-8")) for file in files)


def test_an_open_address_without_a_key_is_a_warning(start, toy_bundle):
    server = start(toy_bundle, "--host", "0.0.0.0")
    assert server.end() == 0
    assert any("has no API key" in line for line in server.lines)


def test_the_log_has_names_of_keys_and_never_keys(start, toy_bundle, tmp_path):
    (tmp_path / "keys.toml").write_text('[keys.site]\nkey = "a-key-of-some-length"\n')
    server = start(toy_bundle, "--api-key-file", tmp_path / "keys.toml")
    answers = [
        httpx.post(f"{server.url}/embed", json={"inputs": "a"}, headers={"authorization": f"Bearer {key}"})
        for key in ("a-key-of-some-length", "another-key-of-a-client")
    ]
    assert [answer.status_code for answer in answers] == [200, 401]
    assert server.end() == 0
    log = "".join(server.lines)
    assert '"key":"site"' in log
    assert "key-of-" not in log + answers[1].text


def test_threads_are_divided_among_workers():
    assert Workers(["m"], ServerSettings(workers=2), 20).settings.threads == max(1, available_threads() // 2)
    assert Workers(["m"], ServerSettings(workers=2, threads=3), 20).settings.threads == 3


def test_a_map_has_at_most_4000_documents(serve, toy_encoder, tmp_path):
    rows = np.tile(toy_encoder.encode(["a dog", "the sea"]), (2001, 1))
    documents = [(str(number), ("a dog", "the sea")[number % 2]) for number in range(len(rows))]
    collection = Collection.build(
        documents, embeddings=rows, encoder=toy_encoder, path=tmp_path / "idx", show_progress_bar=False
    )
    with serve(collection=collection) as url:
        assert len(httpx.get(f"{url}/v1/collection/map", timeout=60).json()["points"]) == 4000


def test_a_model_that_computes_something_else_here_does_not_start(toy_bundle, monkeypatch):
    monkeypatch.setattr(
        Encoder, "verify", lambda _: {"passed": False, "same_bits": None, "difference": 0.5, "tolerance": 1e-4}
    )
    with pytest.raises(ModelError, match=r"toy computes other results .*difference 0\.5, tolerance 0\.0001"):
        Assets.load([str(toy_bundle)], ServerSettings(threads=1))


def test_a_write_is_on_disk_when_it_is_answered(serve, toy_encoder, tmp_path):
    place = tmp_path / "idx"
    collection = Collection.build([("a", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    with serve(collection=collection, allow_writes=True) as url:
        for number in range(3):
            content = {"documents": [{"id": f"n{number}", "text": "the sea"}]}
            assert httpx.post(f"{url}/v1/documents", json=content).status_code == 200
            assert Collection.open(place).get(f"n{number}").text == "the sea"
        assert httpx.post(f"{url}/v1/documents/delete", json={"ids": ["a"]}).status_code == 200
        assert Collection.open(place).get("a") is None


def test_writes_of_another_process_are_visible_within_refresh_s(serve, toy_encoder, tmp_path):
    place = tmp_path / "idx"
    served = Collection.build([("a", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    with serve(collection=served, refresh_s=0) as url:
        Collection.open(place, encoder=toy_encoder).upsert([("b", "the sea")], show_progress_bar=False)
        done = httpx.post(f"{url}/v1/search", json={"query": "the sea", "k": 1}).json()
    assert [hit["id"] for hit in done["hits"]] == ["b"]


def test_without_permission_the_writing_routes_do_not_exist(serve, toy_encoder, tmp_path):
    place = tmp_path / "idx"
    collection = Collection.build([("a", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    with serve(collection=collection) as url:
        content = {"documents": [{"id": "b", "text": "b"}]}
        assert httpx.post(f"{url}/v1/documents", json=content).status_code == 404
