"""The OpenAPI document and the service agree: Schemathesis sends valid and invalid requests, with every check."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from harness import clean_environment
from scrubjay.exact_json import MAX_WRITE_ROWS

CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.mark.timeout(1500)
def test_the_service_conforms_to_its_openapi_document(guarded, tmp_path):
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG), "run",
        f"{guarded.url}/openapi.json", "--header", f"X-API-Key: {guarded.apikey}", "--no-color",
        "--header", "Accept: application/json",  # without it changes are a stream of events, which does not end
        "--generation-deterministic", "--max-examples", "6", "--continue-on-failure",
    ]  # fmt: skip
    environment = clean_environment(PYTHONPATH=str(CONFIG.parent))  # where its hooks are
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=1200, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    document = requests.get(f"{guarded.url}/openapi.json", timeout=60).json()
    operations = sum(map(len, document["paths"].values()))
    assert f"Tested: {operations}" in done.stdout
    assert int(re.search(r"(\d+) generated", done.stdout)[1]) > 1000
    assert guarded.process.poll() is None
    assert requests.get(f"{guarded.url}/ready", timeout=60).json()["status"] == "ready"


def test_the_document_states_how_many_items_and_keys_one_call_may_write(guarded):
    schemas = requests.get(f"{guarded.url}/openapi.json", timeout=60).json()["components"]["schemas"]
    update, append, transaction = (
        schemas[name]["properties"] for name in ("UpdateItemsBody", "AppendItemsBody", "TransactionBody")
    )
    limits = [append["items"]["maxItems"], transaction["commands"]["maxItems"], update["values"]["maxProperties"]]
    assert {*limits, update["if_versions"]["anyOf"][0]["maxProperties"]} == {MAX_WRITE_ROWS}


def test_every_number_in_a_query_has_bounds(guarded):
    """Schemathesis sends too few numbers to find one that the document allows and the service refuses."""
    document = requests.get(f"{guarded.url}/openapi.json", timeout=60).json()
    unbounded = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for given in operation.get("parameters", ()):
                kinds = given["schema"].get("anyOf", [given["schema"]])
                numbers = [kind for kind in kinds if kind.get("type") in ("integer", "number")]
                if not all(kind.keys() >= {"minimum", "maximum"} for kind in numbers):
                    unbounded.append((method, path, given["name"]))
    assert unbounded == []


def test_the_document_says_that_the_time_to_live_of_an_expiry_is_required(guarded):
    document = requests.get(f"{guarded.url}/openapi.json", timeout=60).json()
    route = document["paths"]["/v1/namespaces/{namespace}/expiries/{key}"]["put"]
    assert route["requestBody"]["required"]
    assert document["components"]["schemas"]["TouchItemBody"]["required"] == ["ttl"]
