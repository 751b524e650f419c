"""Nobody but the page of this server is answered, and no file of this machine is told of."""

import base64
import hashlib
import importlib
import json
import re
import time
from pathlib import Path

import pytest

import traincast
from traincast.serve.endpoints import ENDPOINTS
from traincast.serve.guard import POLICY

pytest.importorskip("litestar", reason="the extra serve is not installed")
uploads = importlib.import_module("traincast.serve.uploads")
PAGE = Path(traincast.__file__).parent / "data" / "serve"
JSON = {"Content-Type": "application/json"}
CANARY = "canary-4711"


def test_it_listens_on_the_loopback_address(server):
    table = Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]
    ours = [
        line.split()[1] for line in table if line.split()[3] == "0A" and line.split()[1].endswith(f":{server.port:04X}")
    ]
    assert ours == [f"0100007F:{server.port:04X}"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1",
        "127.0.0.1.evil.example:{port}",
        "",
        "[::2]:{port}",
        "10.0.0.1:{port}",
    ],
)
def test_another_name_of_this_machine_is_refused(server, host):
    """DNS rebinding: a foreign name that leads here."""
    found = server.ask("GET", "/api/about", headers={"Host": host.format(port=server.port)})
    assert found.status in (400, 421)
    assert CANARY.encode() not in found.body


def test_its_own_names_are_answered(server):
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert server.ask("GET", "/", headers={"Host": f"{host}:{server.port}"}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": ""},
    ],
    ids=str,
)  # fmt: skip
def test_a_request_of_another_site_is_refused(server, headers):
    found = server.ask("POST", "/api/forecast", json.dumps({"job": {"model": "llama3-8b"}}), {**JSON, **headers})
    assert found.status in (403, 415)
    assert found.json()["error"]["kind"] == "refused"


def test_a_shared_link_opens_the_page_and_nothing_else(server):
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert server.ask("GET", "/", headers=visit).status == 200
    assert server.ask("GET", "/api/about", headers=visit).status == 403
    assert server.ask("PUT", "/", headers=visit).status == 403
    for method in ("PUT", "PATCH", "OPTIONS", "TRACE"):
        assert server.ask(method, "/api/forecast").status in (400, 405)


def test_every_answer_forbids_what_the_page_does_not_need(server):
    for path in ("/", "/assets/vendor/d3.min.js", "/api/about", "/nothing"):
        headers = server.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers
    for word in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert word in POLICY
    assert "unsafe" not in POLICY


def test_the_policy_allows_the_style_of_charts_by_its_hash():
    plot = (PAGE / "vendor" / "plot.umd.min.js").read_text()
    begin = plot.index(":where(.${c}) {")
    style = plot[begin : plot.index("`", begin)].replace("${c}", "plot").replace("\\n", "\n")
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in POLICY


def test_elsewhere_needs_the_token_that_is_printed(start):
    server = start("--host", "0.0.0.0")  # noqa: S104
    token = re.search(r"token=([\w-]{20,})", server.url)[1]
    assert server.get("/").status == 401
    assert server.get("/api/about").status == 401
    assert server.get(f"/?token={token[:-1]}x").status == 401
    assert server.ask("GET", "/api/about", headers={"Authorization": f"Bearer {token}"}).status == 200
    entered = server.get(f"/?token={token}")
    assert (entered.status, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert server.ask("GET", "/api/about", headers={"Cookie": cookie.partition(";")[0]}).status == 200
    for wrong in ("traincast_token=", "traincast_token=x", "other=1", ";;;"):
        assert server.ask("GET", "/", headers={"Cookie": wrong}).status == 401
    host = {"Host": f"evil.example:{server.port}", "Authorization": f"Bearer {token}"}
    assert server.ask("GET", "/api/about", headers=host).status == 421


@pytest.fixture
def secret(tmp_path):
    """A file that could be read as a model, a cluster, a framework, a job and flags."""
    path = tmp_path / "secret.toml"
    path.write_text(f'base = "llama3-8b"\nname = "{CANARY}"\n[model]\nname = "{CANARY}"\n')
    (tmp_path / "config.json").write_text(json.dumps({"model_type": CANARY, "architectures": [CANARY]}))
    return path


def paths_of(secret):
    return [
        str(secret),
        str(secret.parent),
        f"file://{secret}",
        f"../../../../../../..{secret}",
        "/etc/passwd",
        "/proc/self/environ",
    ]


FIELDS = [
    "model",
    "cluster",
    "framework",
    "recipe",
    "packed_lengths",
    "constants",
    "busbw_bytes_per_s",
    "schedule",
    "pipeline_layout",
]


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_a_job_opens_a_file(server, job, secret, field):
    for path in paths_of(secret):
        found = server.post("forecast", job={**job, field: path})
        assert found.status in (400, 409), (field, path)
        assert CANARY.encode() not in found.body
        assert b"root:" not in found.body


def pasted(path):
    """Texts that name a file in every way that readers know."""
    yield f"traincast predict {path} --model {path} --cluster {path} --constants {path} --gpus 8"
    yield f"traincast predict --like megatron -- @{path}"
    yield f'[model]\nname = "{path}"\n[cluster]\nname = "{path}"\n[software]\nframework = "{path}"\n[batch]\npacked_lengths = "{path}"\n'
    yield f'base = "{path}"\n[model]\nbase = "{path}"\n'
    yield f"#!/bin/bash\nsource {path}\n. {path}\nARGS=$(cat {path})\ntorchrun pretrain_gpt.py $ARGS $(<{path}) --num-layers 8 --hidden-size 64 --load {path} --yaml-cfg {path} --tokenizer-model {path}"
    yield f"torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file {path} --a --b --c"
    yield f"deepspeed train.py --deepspeed --deepspeed_config {path} --train_batch_size 8 --zero_optimization 1"
    yield f"accelerate launch --config_file {path} --num_processes 8 --x --y train.py"
    yield f"python -m MaxText.train {path} base_config={path} --a --b --c"
    yield f"base_config: {path}\nper_device_batch_size: 1\nmodel_name: {path}\n"
    yield f"from megatron.bridge import recipes\nfrom nemo import x\ncfg = open('{path}').read()\nexec(cfg)\nmodel = '{path}'\n"
    yield f"defaults:\n  - {path}\ntrainer:\n  num_nodes: 1\nexp_manager: {{}}\nmodel:\n  micro_batch_size: 1\n  tokenizer: !include {path}\n"
    yield json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 1}, "config": str(path)})
    yield json.dumps({"model_type": "llama", "architectures": ["x"], "auto_map": str(path), "_name_or_path": str(path)})
    yield json.dumps(
        {"fsdp_config": {}, "distributed_type": "FSDP", "deepspeed_config": {"deepspeed_config_file": str(path)}}
    )


def test_no_pasted_text_opens_a_file(server, job, secret):
    for path in (secret, secret.parent / "config.json", "/etc/passwd"):
        for text in pasted(path):
            for name in ("", "x.toml", "x.yaml", "x.py", "x.sh", "x.json"):
                found = server.post("read", text=text, name=name)
                assert found.status in (200, 400, 409), (text, found.body[:300])
                assert CANARY.encode() not in found.body, text
                assert b"root:" not in found.body
            for field in ("model", "cluster", "framework"):
                found = server.post("forecast", job={**job, field: text})
                assert CANARY.encode() not in found.body, (field, text)


def test_files_that_are_brought_open_no_others(server, secret):
    """A result or a description may name files; those of this machine are not opened for it."""
    names = {"inputs": [{"path": str(secret), "format": "aicb", "sha256": "0" * 64, "size_bytes": 3}]}
    texts = [json.dumps({"schema": "traincast.result/1", **names}), *pasted(secret)]
    for text in texts:
        found = server.upload(
            "explain", [("result.json" if "schema" in text else "a.toml", text.encode())], {"cluster": str(secret)}
        )
        *_, (_, told) = server.events(found.json()["task"])
        assert CANARY not in json.dumps(told)


def test_no_path_of_the_server_is_told(server, job):
    home = str(Path.home())
    for found in (
        server.post("explain", example="no such"),
        server.post("read", text="nothing"),
        server.post("forecast", job={**job, "model": "[]\nx = 1"}),
        server.post("forecast", job={**job, "cluster": "gpu = 3\n"}),
        server.post("check", log="no log"),
        server.upload("explain", [("a/b.txt", b"\0")]),
    ):
        told = found.body
        if found.status == 202:
            *_, (_, failed) = server.events(found.json()["task"])
            told = json.dumps(failed).encode()
        assert not re.search(rb"/tmp|/site-packages|/src/traincast|Traceback", told), told
        assert home == "/" or home.encode() not in told


@pytest.mark.parametrize(
    "path",
    ["/assets/../guard.py", "/assets/%2e%2e/%2e%2e/serve/guard.py", "/assets//etc/passwd", "/assets/..%2f..%2fpyproject.toml",
     "/assets/vendor/..%5c..", "/assets/vendor", "/assets/", "/assets/%00", "/../../etc/passwd", "/assets/examples.zip/x"],
)  # fmt: skip
def test_only_files_of_the_page_are_served(server, path):
    found = server.get(path)
    assert found.status in (400, 404)
    assert b"root:" not in found.body


@pytest.mark.parametrize(
    "name",
    ["../a", "/etc/a", "a/../../b", "..", "", "a/b/c/d/e/f/g/h/i", "x" * 201, "a\0b", "a\nb", "..\\a", "C:\\..\\a"],
)
def test_a_name_that_leads_elsewhere_is_refused(name):
    with pytest.raises(traincast.ConfigError):
        uploads.safe_name(name)


def test_uploads_are_limited(server):
    assert server.upload("explain", []).status == 400
    deep = "/".join("d" * (uploads.MOST_DEPTH + 1))
    assert server.upload("explain", [(deep, b"x")]).json()["error"]["where"] == "files"
    assert server.upload("explain", [("a", b"x"), ("a", b"y")]).status == 400
    assert server.upload("explain", [("../a", b"x")]).status == 400
    many = server.upload("explain", [(f"f{number}", b"") for number in range(uploads.MOST_FILES + 1)])
    assert (many.status, many.json()["error"]["where"]) == (400, "files")
    assert server.upload("explain", [("a", b"x")], {"words": "y" * 2**21}).status == 400
    cut = server.ask(
        "POST",
        "/api/explain",
        b"--b\r\nnonsense",
        {"Content-Type": "multipart/form-data; boundary=b", "X-Traincast-Tab": "t"},
    )
    assert cut.status == 400


def test_more_bytes_than_are_allowed_are_not_stored(tmp_path, monkeypatch):
    import asyncio

    monkeypatch.setattr(uploads, "MOST_BYTES", 1000)

    async def chunks():
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield b"x" * 100

    with pytest.raises(traincast.ConfigError, match="MB in all"):
        asyncio.run(uploads.stored(chunks(), "b", tmp_path))
    assert sum(each.stat().st_size for each in tmp_path.rglob("a")) <= 1000


def test_json_is_limited_in_size_and_depth(server):
    assert server.ask("POST", "/api/read", json.dumps({"text": "x" * 3 * 2**20}), JSON).status == 413
    for deep in ("[" * 100_000, '{"job":' * 50_000, '{"job": {"tp": ' + "[" * 50_000):
        assert server.ask("POST", "/api/forecast", deep, JSON).status == 400
    assert server.ask("POST", "/api/forecast", b"\xff\xfe", JSON).status == 400
    assert server.ask("POST", "/api/forecast", '{"job": {"tp": 1e999}}', JSON).status == 400
    assert server.get("/").status == 200


def test_a_zip_bomb_does_not_end_the_server(server):
    import gzip

    bomb = gzip.compress(b"[" + b" " * 300 * 2**20)
    begin = time.monotonic()
    list(server.events(server.upload("explain", [("trace.json.gz", bomb)]).json()["task"]))
    assert time.monotonic() - begin < 120
    assert server.get("/api/about").status == 200


MARKUP = "<img src=x onerror=alert(1)>\"'</script><script>alert(1)</script>"


def test_no_name_or_content_becomes_markup(server, job):
    """What a file or a request says comes back as JSON alone, which no browser takes for a page."""
    for found in (
        server.post("forecast", job={**job, "model": MARKUP}),
        server.post("forecast", job={MARKUP: "1"}),
        server.post("read", text=f"--num-layers {MARKUP} --foo 1 --bar 2"),
        server.post("whatif", job=job, expression=MARKUP),
        server.post("nothing" + MARKUP.replace(" ", "%20").replace("<", "%3C"), job=job),
    ):
        assert found.headers["content-type"].startswith("application/json")
        assert found.headers["x-content-type-options"] == "nosniff"
    found = server.upload("explain", [("<img src=x onerror=alert(1)>.txt", MARKUP.encode())])
    told = list(server.events(found.json()["task"]))
    assert told[-1][0] == "failed"


def test_the_page_makes_no_markup_of_what_it_is_told():
    scripts = PAGE.glob("*.js")
    wrong = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|createContextualFragment"
    )
    assert not [(each.name, found[0]) for each in scripts if (found := wrong.search(each.read_text()))]
    page = (PAGE / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"\son\w+=|\sstyle=|javascript:|https?://(?!www\.w3\.org)", page)


def test_a_task_is_known_by_its_id_alone(server):
    assert server.get("/api/tasks/guess/events").status == 404
    assert server.ask("DELETE", "/api/tasks/guess").status == 204
    assert server.error("timeline", 404, task="../../etc")["kind"] == "not_found"
    for name in ENDPOINTS:
        assert server.ask("POST", f"/api/{name}", "nonsense", JSON).status in (400, 404, 405, 202), name
