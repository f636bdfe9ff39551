"""A hub with one model for pods that reach no network; it runs in a pod of the cluster.

The first download of the weights stops half-way and is never finished. Each finished download is printed.
"""

import json
import threading
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODEL = Path("/models/smollm2")
WEIGHTS = "model.safetensors"
COMMIT = "c" * 40
stalled = threading.Event()


def digest(path: Path) -> str:
    return (sha256 if path.name == WEIGHTS else sha1)(path.read_bytes()).hexdigest()


FILES = {path.name: (path, digest(path)) for path in MODEL.iterdir() if not path.name.startswith(".")}


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        match self.path.partition("?")[0].strip("/").split("/"):
            case ["api", "models", _, _, "revision", _]:
                self.send_json(
                    {"id": "org/smollm2", "sha": COMMIT, "siblings": [self.listed(n) for n in FILES]}
                )
            case ["api", "models", _, _, "tree", _]:
                listing = [{"type": "file", "path": name, **self.entry(name)} for name in FILES]
                self.send_json([{**entry, "oid": FILES[entry["path"]][1]} for entry in listing])
            case [_, _, "resolve", _, name] if name in FILES:
                self.send_file(name)
            case _:
                self.send_error(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def entry(self, name: str) -> dict[str, object]:
        path, checksum = FILES[name]
        size = path.stat().st_size
        lfs = {"lfs": {"sha256": checksum, "oid": checksum, "size": size, "pointerSize": 130}}
        return {"size": size} | (lfs if name == WEIGHTS else {})

    def listed(self, name: str) -> dict[str, object]:
        return {"rfilename": name, "blobId": FILES[name][1], **self.entry(name)}

    def send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_head(len(body), "listing")
        self.wfile.write(body)

    def send_file(self, name: str) -> None:
        path, checksum = FILES[name]
        size = path.stat().st_size
        self.send_head(size, checksum)
        if self.command == "HEAD":
            return
        with path.open("rb") as file:
            if name == WEIGHTS and not stalled.is_set():
                stalled.set()
                self.wfile.write(file.read(size // 2))
                self.wfile.flush()
                threading.Event().wait()
            while chunk := file.read(1 << 20):
                self.wfile.write(chunk)
        print(f"sent {name}", flush=True)

    def send_head(self, size: int, etag: str) -> None:
        self.send_response(200)
        self.send_header("content-length", str(size))
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("etag", f'"{etag}"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


ThreadingHTTPServer(("", 8000), Answer).serve_forever()
