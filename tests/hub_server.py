"""A stand-in for the Hugging Face Hub on localhost, for tests: model repositories served from folders.

    with HubServer({"owner/name": folder}, gated={"owner/name": "hf_token"}) as server:
        subprocess.run(..., env={**os.environ, "HF_ENDPOINT": server.endpoint, "HF_HOME": str(empty)})

It answers what huggingface_hub and transformers ask when they load a model: repository info, file lists, and files
with the headers and error codes of the real Hub. `server.requests` lists what was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

COMMIT = "1234567890abcdef1234567890abcdef12345678"
LARGE = 10_000  # bytes; larger files are served as the Hub serves LFS files, under their sha256


class HubServer:
    """A context manager around the server; `endpoint` is its address, `gated` the token that a repository wants."""

    def __init__(self, repositories: dict[str, Path], gated: dict[str, str] | None = None) -> None:
        self.repositories, self.gated = repositories, gated or {}
        self.requests: list[str] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/(.*))?)?", path):
            repo, what, revision, inside = found.groups()
            if folder := self._folder(repo, revision or "main"):
                self._tree(folder, inside or "") if what == "tree" else self._info(repo, folder)
        elif found := re.fullmatch(r"/((?:[^/]+/)?[^/]+)/resolve/([^/]+)/(.+)", path):
            repo, revision, name = found.groups()
            if folder := self._folder(repo, revision, files=True):
                self._file(folder / name)
        else:
            self._refuse(404, "", "unknown route")

    def _folder(self, repo: str, revision: str, files: bool = False) -> Path | None:
        """The repository's folder, once it may be read; else the refusal is sent."""
        wanted = self.hub.gated.get(repo)
        authorised = wanted is None or self.headers.get("Authorization") == f"Bearer {wanted}"
        if repo not in self.hub.repositories:
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif files and not authorised:
            self._refuse(401, "GatedRepo", f"Access to model {repo} is restricted")
        elif revision not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return self.hub.repositories[repo]
        return None

    def _info(self, repo: str, folder: Path) -> None:
        siblings = [{"rfilename": name} for name in _names(folder)]
        self._send_json({"id": repo, "modelId": repo, "sha": COMMIT, "tags": [], "siblings": siblings})

    def _tree(self, folder: Path, inside: str) -> None:
        if inside and not (folder / inside).is_dir():
            return self._refuse(404, "EntryNotFound", f"{inside} does not exist")
        names = [name for name in _names(folder) if name.startswith(inside)]
        self._send_json(
            [{"type": "file", "path": name, "size": (folder / name).stat().st_size, "oid": "0" * 40} for name in names]
        )

    def _file(self, path: Path) -> None:
        if not path.is_file():
            return self._refuse(404, "EntryNotFound", f"{path.name} does not exist")
        data = path.read_bytes()
        digest = hashlib.sha256(data) if len(data) > LARGE else hashlib.sha1(data)
        self._send(200, data, {"ETag": f'"{digest.hexdigest()}"', "Accept-Ranges": "bytes"})

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self._send(status, body, {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"X-Repo-Commit": COMMIT, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing on stderr."""


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
