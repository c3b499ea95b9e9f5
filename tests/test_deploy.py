"""The files in deploy/: what they name exists, and the programs that read them accept them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
import yaml

from harness import clean_environment, free_port, issue_key, serving
from scrubjay import InvalidInput, Memory, ScrubjayError
from scrubjay.http import HttpExecutor
from scrubjay.settings import SETTINGS, memory_settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
COMMAND = str(Path(sys.executable).with_name("scrubjay"))
UNITS = sorted(DEPLOY.glob("*.service"))


def needs(program: str) -> str:
    found = shutil.which(program, path="/usr/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def instructions() -> list[tuple[str, str]]:
    sys.path.insert(0, str(DEPLOY))
    try:
        import check_image
    finally:
        sys.path.remove(str(DEPLOY))
    return list(check_image.instructions((DEPLOY / "Dockerfile").read_text()))


# ------------------------------------------------------------ Docker


def test_the_image_has_two_stages_one_volume_a_health_check_and_no_root():
    found = instructions()
    names = [name for name, _ in found]
    assert [rest for name, rest in found if name == "FROM"] == ["python:3.13-slim AS build", "python:3.13-slim"]
    assert [rest for name, rest in found if name == "VOLUME"] == ["/data"]
    assert names.count("HEALTHCHECK") == 1
    assert found[names.index("USER")] == ("USER", "10001")
    assert names.index("USER") > max(index for index, name in enumerate(names) if name == "RUN")


def test_the_files_and_settings_that_the_image_names_exist():
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
        if name == "ENV":
            named = set(re.findall(r"SCRUBJAY_\w+", rest))
            assert named <= {setting.variable for setting in SETTINGS.values()}


def test_the_health_check_of_the_image_tells_a_server_from_none(tmp_path):
    (check,) = [rest for name, rest in instructions() if name == "HEALTHCHECK"]
    program = json.loads(check[check.index("[") :])[2]
    with serving(tmp_path / "db") as server:
        here = program.replace("127.0.0.1:8787", f"127.0.0.1:{server.port}")
        assert subprocess.run([sys.executable, "-c", here], check=False, timeout=60).returncode == 0
    gone = subprocess.run([sys.executable, "-c", here], check=False, timeout=60, capture_output=True)
    assert gone.returncode == 1


def test_compose_runs_the_image_and_backups_that_the_command_accepts():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert (DEPLOY / services["scrubjay"]["build"]["context"] / services["scrubjay"]["build"]["dockerfile"]).exists()
    assert services["scrubjay"]["ports"] == ["127.0.0.1:8787:8787"]
    from scrubjay.cli import parser

    arguments = parser().parse_args(services["backup"]["command"])
    assert (arguments.every, arguments.keep, arguments.file) == (3600, 24, "/backups")
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def test_compose_with_postgresql_runs_two_servers_on_one_database():
    services = yaml.safe_load((DEPLOY / "compose-postgres.yaml").read_text())["services"]
    servers = [service for service in services.values() if service["image"] == "scrubjay"]
    assert len({server["environment"]["SCRUBJAY_STORE"] for server in servers}) == 1 < len(servers)
    for server in servers:
        assert {name for name in server["environment"] if name.startswith("SCRUBJAY")} <= {
            setting.variable for setting in SETTINGS.values()
        }
        assert server["read_only"]
        assert server["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in server["ports"])


def test_compose_with_a_cluster_runs_three_nodes_and_two_servers_that_know_all_of_them():
    services = yaml.safe_load((DEPLOY / "compose-cluster.yaml").read_text())["services"]
    nodes = {name: each for name, each in services.items() if each["image"] == "scrubjay-patroni"}
    servers = [each for each in services.values() if each["image"] == "scrubjay"]
    members = [name for name, each in services.items() if "etcd" in each["image"]]
    assert (len(nodes), len(members), len(servers)) == (3, 3, 2)
    for name, node in nodes.items():
        variables = node["environment"]
        assert (variables["PATRONI_NAME"], node["volumes"]) == (name, [f"{name}:/var/lib/postgresql"])
        assert variables["PATRONI_POSTGRESQL_CONNECT_ADDRESS"] == f"{name}:5432"
        assert variables["PATRONI_RESTAPI_CONNECT_ADDRESS"] == f"{name}:8008"
        assert variables["PATRONI_ETCD3_HOSTS"] == ",".join(f"{each}:2379" for each in members)
    for member in members:
        assert services[member]["hostname"] == member
        assert f"{member}=http://{member}:2380" in services[member]["command"][0]
    for server in servers:
        assert urlsplit(server["environment"]["SCRUBJAY_STORE"]).netloc == f"scrubjay@{','.join(nodes)}"
        assert server["read_only"]
        assert server["cap_drop"] == ["ALL"]
    published = [port for each in services.values() for port in each.get("ports", ())]
    assert published == ["127.0.0.1:8787:8787"]
    for build in {(each["build"]["context"], each["build"]["dockerfile"]) for each in (*nodes.values(), *servers)}:
        assert (DEPLOY / build[0] / build[1]).exists()
    for source in re.findall(r"^COPY (?:--\S+ )?(\S+)", (DEPLOY / "Dockerfile.patroni").read_text(), re.MULTILINE):
        assert (DEPLOY / source).exists()


def test_the_settings_of_the_cluster_keep_the_rules_of_patroni():
    """tests/stress/test_failover.py runs a cluster with them."""
    settings = yaml.safe_load((DEPLOY / "patroni.yaml").read_text())["bootstrap"]["dcs"]
    assert settings["loop_wait"] + 2 * settings["retry_timeout"] <= settings["ttl"]
    assert settings["synchronous_mode"] is settings["synchronous_mode_strict"] is True


def test_the_balancer_of_the_cluster_goes_on_with_the_server_that_is_left(tmp_path):
    key = issue_key(tmp_path / "db", "me")
    with serving(tmp_path / "db", "--require-key") as one, serving(tmp_path / "db", "--require-key") as two:
        port = free_port()
        config = (DEPLOY / "Caddyfile.cluster").read_text().replace(":8787 {", f"http://127.0.0.1:{port} {{", 1)
        config = config.replace("one:8787", f"127.0.0.1:{one.port}").replace("two:8787", f"127.0.0.1:{two.port}")
        (tmp_path / "Caddyfile").write_text(f"{{\n\tadmin off\n}}\n{config}")
        command = [needs("caddy"), "run", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"]
        environment = clean_environment(HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path))
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        try:
            give_up_at = time.monotonic() + 60
            while not is_listening(port):
                assert process.poll() is None
                assert time.monotonic() < give_up_at
                time.sleep(0.05)
            # Not strict: a request that was on its way to the server that stops gets a 502, and is sent again.
            with Memory("ns", url=f"http://127.0.0.1:{port}", api_key=key, timeout=60) as memory:
                memory["k"] = 1
                one.stop()
                for n in range(20):
                    memory.append("l", n)
                memory.flush()
                assert memory["l"] == list(range(20))
        finally:
            process.terminate()
            process.wait(timeout=60)


# ------------------------------------------------------------ systemd


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_valid_for_systemd(unit, tmp_path):
    (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/scrubjay/bin/scrubjay", COMMAND))
    command = [needs("systemd-analyze"), "verify", str(tmp_path / unit.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_the_command_of_a_unit_starts_in_its_environment(unit, tmp_path):
    text = unit.read_text().replace("/opt/scrubjay/bin/scrubjay", COMMAND).replace("/var/lib", str(tmp_path))
    variables = dict(line.split("=", 1) for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE))
    assert set(variables) <= {setting.variable for setting in SETTINGS.values()}
    (tmp_path / "scrubjay").mkdir()
    with Memory("ns", path=variables["SCRUBJAY_PATH"]) as memory:
        memory.set("k", 1)
    command = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)[1])
    port = ["--port", "0"] if "serve" in command else []
    process = subprocess.Popen(
        [*command, *port], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=clean_environment(**variables),
    )  # fmt: skip
    try:
        first = process.stdout.readline()
        assert "is serving at http://127.0.0.1" in first or "checked" in first
        if port:
            with urllib.request.urlopen(re.search(r"http://\S+", first)[0] + "/health", timeout=60) as answer:
                assert answer.status == 200
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


# ------------------------------------------------------------ proxies


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60):
        return True
    return False


@contextmanager
def proxied(server, folder: Path, *, location: str = "/", path: str = "") -> Iterator[tuple[str, Path]]:
    """The configuration for nginx in front of a server, on free ports; yields its URL and its certificate.

    `path` is what its proxy_pass has after the port, with which nginx decodes and shortens paths.
    """
    nginx, certificate, port = needs("nginx"), folder / "cert.pem", free_port()
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-out", str(certificate), "-keyout", str(folder / "key.pem")]
    request = [needs("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *files]
    subprocess.run(request, check=True, capture_output=True, timeout=60)
    site = (DEPLOY / "nginx.conf").read_text()
    for pattern, actual in (
        (r"\S+fullchain.pem", str(certificate)),
        (r"\S+privkey.pem", str(folder / "key.pem")),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("listen 80", f"listen 127.0.0.1:{free_port()}"),
        ("127.0.0.1:8787", f"127.0.0.1:{server.port}{path}"),
        ("location / ", f"location {location} "),
    ):
        site, count = re.subn(pattern, actual, site)
        assert count == 1, pattern
    paths = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = f"daemon off; pid {folder}/pid; user root; events {{}} http {{ access_log off; {paths} {site} }}"
    (folder / "nginx.conf").write_text(text if os.geteuid() == 0 else text.replace("user root; ", ""))
    command = [nginx, "-p", str(folder), "-e", str(folder / "log"), "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        give_up_at = time.monotonic() + 60
        while not is_listening(port):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        yield f"https://localhost:{port}{location.rstrip('/')}", certificate
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_a_server_behind_nginx_serves_clients_streams_and_browsers(tmp_path, monkeypatch):
    key = issue_key(tmp_path / "db", "me", "--admin")
    with serving(tmp_path / "db", "--require-key") as server, proxied(server, tmp_path) as (url, certificate):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert requests.get(f"{url}/v1/namespaces", timeout=60).status_code == 401
        with Memory("ns", url=url, api_key=key, timeout=60) as memory:
            changes = memory.watch(timeout=60)
            for name in ("plain", "a/b %2F ü?#", "..", "a/../b", " "):
                memory.set(name, {"key": name})
                assert memory.get(name) == {"key": name}
                assert next(changes).key == name, "the proxy does not hold back the stream"
        with requests.Session() as browser:
            headers = {"Origin": url}
            signed_in = browser.post(
                f"{url}/v1/sign-in", headers={**headers, "Authorization": f"Bearer {key}"}, timeout=60
            )
            assert (signed_in.status_code, "; Secure" in signed_in.headers["Set-Cookie"]) == (204, True)
            item = f"{url}/v1/namespaces/ns/items/browser"
            assert browser.put(item, json={"value": 1}, headers=headers, timeout=60).status_code == 200
            foreign = {"Origin": "https://localhost:1"}
            assert browser.put(item, json={"value": 2}, headers=foreign, timeout=60).status_code == 403
            large = browser.post(
                f"{url}/v1/namespaces/new/import", data=b"x" * 35_000_000, headers=headers, timeout=300
            )
            assert (large.status_code, large.json()["code"]) == (400, "invalid_input"), "it is the server that answers"


HOSTILE_KEYS = ("../../victim/items/k", "../../../../v1/namespaces/victim/items/k", "..", "../../victim", "x//../k")


@pytest.mark.parametrize("location", ["/", "/memory/of/agents/"])
def test_a_proxy_that_changes_paths_cannot_lead_a_key_into_another_namespace(tmp_path, monkeypatch, location):
    db = tmp_path / "db"
    key = issue_key(db, "me", "--admin")
    with Memory("victim", path=db) as victim:
        victim.update({"k": "theirs", "items": "theirs"})
        victim.append("l", "theirs")
    with (
        serving(db, "--require-key") as server,
        proxied(server, tmp_path, location=location, path="/") as (url, certificate),
    ):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        with Memory("attacker", url=url, api_key=key, timeout=60) as memory:
            for name in ("plain", "a/b ü+~%2F?#", " ", ".env", "a../b", "a/..b"):
                memory.set(name, {"key": name})
                assert memory.get(name) == {"key": name}, "a path that says the same is carried out"
                assert name in memory
            for name in HOSTILE_KEYS:
                for call in (
                    lambda name=name: memory.set(name, "mine"),
                    lambda name=name: memory.get(name),
                    lambda name=name: memory.delete(name),
                    lambda name=name: name in memory,
                    lambda name=name: memory.merge(name, {"a": "mine"}),
                    lambda name=name: memory.append(name, "mine"),
                    lambda name=name: memory.tail(name, 1),
                    lambda name=name: memory.pop(name),
                    lambda name=name: memory.incr(name),
                    lambda name=name: memory.touch(name, 1),
                    lambda name=name: memory.forget(name),
                    lambda name=name: memory.forget_session(name),
                    lambda name=name: memory.conversation(key=name),
                ):
                    # nginx itself refuses a path that leads out of its location.
                    with pytest.raises(ScrubjayError, match=r"proxy_pass|not as a Scrubjay server"):
                        call()
        executor = HttpExecutor(memory_settings(url=url, api_key=key, timeout=60))
        for stream in (executor.erase, lambda name, _: executor.export(name, bytes, lambda *_: None)):
            with pytest.raises(InvalidInput, match="proxy_pass"):
                stream("../namespaces/victim", dict)
        executor.close()
    with Memory("victim", path=db) as victim:
        assert dict(victim.items()) == {"items": "theirs", "k": "theirs", "l": ["theirs"]}


def test_the_configuration_for_caddy_is_valid():
    command = [needs("caddy"), "adapt", "--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1:8787" in done.stdout


def test_the_page_shows_the_configurations_that_are_in_deploy():
    page = (ROOT / "docs" / "deployment.md").read_text()
    caddy = (DEPLOY / "Caddyfile").read_text()
    assert caddy[caddy.index("memory.example.org") :].strip() in page


# ------------------------------------------------------------ metrics


def test_the_grafana_dashboard_asks_for_metrics_and_labels_that_the_server_has(tmp_path):
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    with serving(tmp_path / "db") as server:
        urllib.request.urlopen(f"{server.url}/v1/namespaces", timeout=60).close()
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
            metrics = answer.read().decode()
    for query in queries:
        name = re.search(r"scrubjay_\w+", query)[0]
        assert f"\n{name}{{" in metrics, query
        labels = set(re.findall(r"(\w+)=\"", re.search(rf"^{name}{{(.*)}}", metrics, re.MULTILINE)[1]))
        used = set(re.findall(r"(\w+)(?:=~|!=|=)\"", query)) - {"job"}
        grouped = {each.strip() for group in re.findall(r"by \(([^)]*)\)", query) for each in group.split(",")}
        assert used | grouped <= labels, query


def test_the_job_for_prometheus_scrapes_the_port_of_the_server():
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{SETTINGS['port'].default}"]}]
