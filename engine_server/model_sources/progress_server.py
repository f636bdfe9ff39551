"""An HTTP server that reports the progress of a fetch."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from engine_server.contract.base.listening import EVERY_ADDRESS, listen_on
from engine_server.contract.cluster.fetch_container import PROGRESS_PATH
from engine_server.model_sources.progress import Progress

READ_SECONDS = 10


def serve(progress: Progress, port: int) -> ThreadingHTTPServer:
    """Answer requests for the progress on all addresses until the process ends. Raises ListenError."""

    class Answer(BaseHTTPRequestHandler):
        timeout = READ_SECONDS

        def do_GET(self) -> None:
            if self.path != PROGRESS_PATH:
                self.send_error(404)
                return
            body = json.dumps({"done": progress.done, "total": progress.total}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log no requests."""

    listener = listen_on(EVERY_ADDRESS, port)
    server = ThreadingHTTPServer(listener.getsockname(), Answer, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
