"""Serve a Hugging Face hub with one user, written from the requests that huggingface_hub 1.33 makes."""

import base64
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from hub_store import TOKEN, USER, HubServer, Repo, entry

_LARGE = (".safetensors", ".gguf")


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Serve an empty hub."""
    hub = HubServer()
    # Not http.server's own class, which looks for the name of its address, and may wait for that.
    server = ThreadingTCPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Refused(Exception):
    def __init__(self, status: int, text: str, code: str = "") -> None:
        super().__init__(text)
        self.status, self.text, self.code = status, text, code


Answer = dict[str, Any] | list[Any] | bytes | None
_ROUTES: list[tuple[str, re.Pattern[str], str]] = [
    (method, re.compile(pattern), name)
    for method, pattern, name in (
        ("GET", r"/api/whoami-v2", "whoami"),
        ("GET", r"/api/agent-harnesses", "harnesses"),
        ("POST", r"/api/validate-yaml", "validate"),
        ("POST", r"/api/repos/create", "create"),
        ("GET", r"/api/models/([^/]+/[^/]+)", "info"),
        ("GET", r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", "info"),
        ("GET", r"/api/models/([^/]+/[^/]+)/auth-check(/write)?", "auth_check"),
        ("POST", r"/api/models/([^/]+/[^/]+)/branch/([^/]+)", "branch"),
        ("GET", r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", "tree"),
        ("POST", r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)", "preupload"),
        ("POST", r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", "commit"),
        ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
        ("PUT", r"/upload/([0-9a-f]{64})", "upload"),
        ("POST", r"/verify/([0-9a-f]{64})", "verify"),
        ("HEAD", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
        ("GET", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
    )
]


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one packet: two would wait for each other

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        request = f"{self.command} {path}"
        with self.hub.lock:
            self.hub.requests.append(request)
            self.hub.times.append((request, time.monotonic()))
            self.hub.headers.append(str(self.headers))
        fault = self.hub.fault(request)
        what = None if fault is None else fault.what
        if what == "cut":
            self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 1000))
            return self._close()
        body = self._body()
        if what == "silent":
            time.sleep(3)
            return self._close()
        if isinstance(what, int):
            echo = f"told to answer {self.headers.get('Authorization')} with {what}"
            return self._send(
                what, {"error": echo}, {"X-Error-Message": echo}, retry_after=fault.wait if fault else None
            )
        try:
            answer, headers = self._answer(path, body)
        except _Refused as error:
            return self._send(error.status, {"error": error.text}, {"X-Error-Code": error.code} if error.code else {})
        if what == "lost":
            return self._close()
        self._send(200, answer, headers)

    do_POST = do_PUT = do_HEAD = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _close(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(
        self, status: int, answer: Answer, headers: dict[str, str] | None = None, retry_after: float | None = None
    ) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if retry_after is not None:
            self.send_header("Retry-After", f"{retry_after:g}")
        self.send_header(
            "Content-Type", "application/octet-stream" if isinstance(answer, bytes) else "application/json"
        )
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _answer(self, path: str, body: bytes) -> tuple[Answer, dict[str, str]]:
        for method, pattern, name in _ROUTES:
            if method == self.command and (found := pattern.fullmatch(path)):
                arguments = [None if each is None else unquote(each) for each in found.groups()]
                if name not in ("harnesses", "upload") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    raise _Refused(401, "Invalid username or password.")
                handle: Callable[..., Answer | tuple[Answer, dict[str, str]]] = getattr(self, f"_{name}")
                with self.hub.lock if name != "upload" else threading.Lock():
                    answer = handle(body, *arguments)
                return answer if isinstance(answer, tuple) else (answer, {})
        raise _Refused(404, f"no such page: {self.command} {path}")

    def _repo(self, name: str) -> Repo:
        if name not in self.hub.repos:
            raise _Refused(404, "Repository not found", "RepoNotFound")
        return self.hub.repos[name]

    def _commit_of(self, repo: Repo, revision: str) -> str:
        if (oid := repo.resolved(revision)) is None:
            raise _Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid

    def _require_write(self) -> None:
        if self.hub.read_only:
            raise _Refused(403, "You don't have the rights to write here")

    def _whoami(self, body: bytes) -> Answer:
        return {"type": "user", "name": USER, "orgs": [{"name": "team"}], "auth": {"type": "access_token"}}

    def _harnesses(self, body: bytes) -> Answer:
        return {"standardEnvVars": [], "harnesses": {}}

    def _validate(self, body: bytes) -> Answer:
        content = json.loads(body)["content"]
        if not re.match(r"---\n(.+\n)+---\n", content):
            raise _Refused(400, "no metadata")
        return {"errors": [], "warnings": []}

    def _create(self, body: bytes) -> Answer:
        asked = json.loads(body)
        owner = asked.get("organization") or USER
        self._require_write()
        if owner not in (USER, "team"):
            raise _Refused(403, f"You don't have the rights to create a model under the namespace {owner}")
        name = f"{owner}/{asked['name']}"
        if name in self.hub.repos:
            raise _Refused(409, "You already created this model repo")
        private = asked.get("private", asked.get("visibility") == "private")
        self.hub.make(name, private=private)
        return {"url": f"{self.hub.url}/{name}", "name": name, "id": "1"}

    def _info(self, body: bytes, name: str, revision: str = "main") -> Answer:
        repo = self._repo(name)
        oid = self._commit_of(repo, revision)
        readme = repo.commits[oid][0].get("README.md", (b"", False))[0].decode()
        licence = re.search(r"^license: (.+)$", readme, re.MULTILINE)
        card = {"cardData": {"license": licence[1]}} if licence else {}
        siblings = [{"rfilename": path} for path in repo.commits[oid][0]]
        return {"id": name, "modelId": name, "sha": oid, "private": repo.private, "siblings": siblings, **card}

    def _auth_check(self, body: bytes, name: str, write: str | None) -> Answer:
        self._repo(name)
        if write:
            self._require_write()
        return {}

    def _branch(self, body: bytes, name: str, branch: str) -> Answer:
        repo = self._repo(name)
        self._require_write()
        if branch in repo.branches:
            raise _Refused(409, "Reference already exists")
        start = json.loads(body or b"{}").get("startingPoint", "main")
        repo.branches[branch] = [self._commit_of(repo, start)]
        return {}

    def _tree(self, body: bytes, name: str, revision: str) -> Answer:
        repo = self._repo(name)
        files = repo.commits[self._commit_of(repo, revision)][0]
        assert parse_qs(urlsplit(self.path).query)["recursive"] in (["true"], ["True"])
        return [entry(path, *content) for path, content in files.items()]

    def _preupload(self, body: bytes, name: str, revision: str) -> Answer:
        repo = self._repo(name)
        there = repo.commits[self._commit_of(repo, revision)][0]
        files = []
        for asked in json.loads(body)["files"]:
            mode = "lfs" if asked["path"].endswith(_LARGE) else "regular"
            found = entry(asked["path"], *there[asked["path"]]) if asked["path"] in there else {}
            oid = found.get("lfs", {}).get("oid", found.get("oid"))
            files.append({"path": asked["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": files}

    def _batch(self, body: bytes, name: str) -> Answer:
        self._repo(name)
        asked = json.loads(body)
        assert asked["operation"] == "upload" and asked["hash_algo"] == "sha256"
        objects = []
        for each in asked["objects"]:
            oid = each["oid"]
            actions = {
                "upload": {"href": f"{self.hub.url}/upload/{oid}"},
                "verify": {"href": f"{self.hub.url}/verify/{oid}"},
            }
            objects.append({**each, **({} if oid in self.hub.blobs else {"actions": actions})})
        return {"transfer": "basic", "objects": objects}

    def _upload(self, body: bytes, oid: str) -> Answer:
        time.sleep(self.hub.seconds_per_upload)
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Refused(400, "the content has another hash")
        with self.hub.lock:
            self.hub.blobs[oid] = body
        return {}

    def _verify(self, body: bytes, oid: str) -> Answer:
        if len(self.hub.blobs.get(oid, b"")) != json.loads(body)["size"]:
            raise _Refused(404, "not uploaded")
        return {}

    def _commit(self, body: bytes, name: str, branch: str) -> Answer:
        repo = self._repo(name)
        self._require_write()
        if self.hub.before_commit is not None:
            meanwhile, self.hub.before_commit = self.hub.before_commit, None
            meanwhile()
        lines = [json.loads(line) for line in body.splitlines()]
        [header] = [line["value"] for line in lines if line["key"] == "header"]
        if branch not in repo.branches:
            raise _Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        if header.get("parentCommit") not in (None, repo.branches[branch][-1]):
            raise _Refused(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repo.commits[repo.branches[branch][-1]][0])
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "file":
                    assert value["encoding"] == "base64"
                    files[value["path"]] = base64.b64decode(value["content"]), False
                case "lfsFile":
                    if value["oid"] not in self.hub.blobs:
                        raise _Refused(400, "the content was not uploaded")
                    files[value["path"]] = self.hub.blobs[value["oid"]], True
                case "deletedFile":
                    del files[value["path"]]
                case "header":
                    pass
                case other:
                    raise _Refused(400, f"unknown operation {other}")
        oid = repo.commit(branch, files, header["summary"])
        return {"commitUrl": f"{self.hub.url}/{name}/commit/{oid}", "commitOid": oid, "success": True}

    def _resolve(self, body: bytes, name: str, revision: str, path: str) -> tuple[Answer, dict[str, str]]:
        repo = self._repo(name)
        oid = self._commit_of(repo, revision)
        files = repo.commits[oid][0]
        if path not in files:
            raise _Refused(404, "Entry not found", "EntryNotFound")
        found = entry(path, *files[path])
        etag = found.get("lfs", {}).get("oid", found["oid"])
        return files[path][0], {"X-Repo-Commit": oid, "ETag": f'"{etag}"'}
