"""A hub's API over HTTP, with one repository's files under several names."""

import http.server
import json
import threading
from contextlib import suppress
from hashlib import sha1, sha256
from typing import Any

COMMIT = "a" * 40
TOKEN = "hf_" + "secret" * 4


class Hub(http.server.ThreadingHTTPServer):
    """A hub in which org/open is public, org/gated needs the token, and org/cut fails once within its weights."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str] = []
        # The commit that each revision has.
        self.commit = COMMIT
        self.cuts = 1
        # The weights whose checksum the hub reports; None for those that it sends.
        self.original_weights: bytes | None = None
        # The size that the hub reports for weights; None for that of what it sends.
        self.reported_size: int | None = None
        # With `stall`, weights are sent half; `stalled` is set then.
        self.stall = False
        self.stalled = threading.Event()
        self.resume = threading.Event()
        self.files = {
            "config.json": b"{}",
            "model.safetensors": b"weights" * 1000,
            "tokenizer.json": b"{}",
            "README.md": b"words",
            "original/consolidated.safetensors": b"again",
            "pytorch_model.bin": b"unsafe",
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        match self.path.partition("?")[0].strip("/").split("/"):
            case ["api", "models", org, name, "revision", revision]:
                if self._admitted(org, name, revision):
                    siblings = [self._listed(path, content) for path, content in self._files(name).items()]
                    answer = {"id": f"{org}/{name}", "sha": self.server.commit, "siblings": siblings}
                    self._send(json.dumps(answer).encode())
            case ["api", "models", _, name, "tree", _]:
                entries = [
                    {
                        "type": "file",
                        "path": path,
                        "size": self._size(path, content),
                        "oid": sha1(content).hexdigest(),
                    }
                    for path, content in self._files(name).items()
                ]
                self._send(json.dumps(entries).encode())
            case [org, name, "resolve", _, *path]:
                if "/".join(path) not in self._files(name):
                    self._refuse(404, "EntryNotFound")
                elif self._admitted(org, name, COMMIT):
                    weights, content = path[-1].startswith("model."), self._files(name)["/".join(path)]
                    size = self._size(path[-1], content) if self.command == "HEAD" else None
                    self._send(content, cut=name == "cut" and weights, stalls=weights, size=size)
            case _:
                self._refuse(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _files(self, name: str) -> dict[str, bytes]:
        if name == "unsafe":
            return {path: it for path, it in self.server.files.items() if not path.endswith(".safetensors")}
        return self.server.files

    def _listed(self, path: str, content: bytes) -> dict[str, Any]:
        size = self._size(path, content)
        entry = {"rfilename": path, "size": size, "blobId": sha1(content).hexdigest()}
        if path.endswith(".safetensors"):
            digest = sha256(self.server.original_weights or content).hexdigest()
            entry["lfs"] = {"sha256": digest, "size": size, "pointerSize": 130}
        return entry

    def _size(self, path: str, content: bytes) -> int:
        is_large = path.endswith((".safetensors", ".gguf")) and self.server.reported_size is not None
        return self.server.reported_size if is_large else len(content)

    def _admitted(self, org: str, name: str, revision: str) -> bool:
        if name == "absent":
            self._refuse(401, "RepoNotFound")
        elif name == "gated" and self.headers["authorization"] != f"Bearer {TOKEN}":
            self._refuse(401, "GatedRepo")
        elif name == "broken":
            self._refuse(500)
        elif revision not in ("main", "v1", COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            return True
        return False

    def _send(self, body: bytes, cut: bool = False, stalls: bool = False, size: int | None = None) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body) if size is None else size))
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("etag", f'"{sha1(body).hexdigest()}"')
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut and self.server.cuts:
            self.server.cuts -= 1
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif stalls and self.server.stall:
            self.wfile.write(body[: len(body) // 2])
            self.server.stalled.set()
            self.server.resume.wait()
            with suppress(OSError):  # the client was killed
                self.wfile.write(body[len(body) // 2 :])
        else:
            self.wfile.write(body)

    def _refuse(self, status: int, code: str = "") -> None:
        self.send_response(status)
        self.send_header("x-error-code", code)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass
