"""Calls of a server's API over HTTP."""

import contextlib
import http.client
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
from waiting import NotYetError

JSON = {"Content-Type": "application/json"}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


class ApiClient:
    """Requests to a port of this machine, each on a connection of its own.

    model: None, or the only model whose metrics are read, where several engines share a process.
    """

    def __init__(self, port: int = 0, model: str | None = None) -> None:
        self.port = port
        self._model = model

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | dict[str, str | None] | None = None,
    ) -> Answer:
        """Send a request, whose body counts as JSON; a header of None is left out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            sent = ({} if data is None else JSON) | (headers or {})
            sent = {name: value for name, value in sent.items() if value is not None}
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def post(self, path: str, body: Any) -> Answer:
        return self.request("POST", path, body)

    def metric(self, name: str) -> float:
        """The sum of a metric's series. `name` may have the labels of one series. Raises NotYetError for no series."""
        lines = self.get("/metrics").body.decode().splitlines()
        found = [line for line in lines if re.match(rf"{re.escape(name)}[ {{]", line) and self._is_ours(line)]
        if not found:
            raise NotYetError(f"there is no metric {name}")
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def _is_ours(self, series: str) -> bool:
        return self._model is None or not re.search(rf'model_name="(?!{re.escape(self._model)}")', series)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    @contextlib.contextmanager
    def probed(self) -> Iterator[None]:
        """Probe /health for as long as the context lasts, and at least once; it must answer 200 each time."""
        statuses: list[int] = []
        end = threading.Event()

        def probe() -> None:
            while not (statuses and end.is_set()):
                statuses.append(self.get("/health").status)

        thread = threading.Thread(target=probe)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
        assert set(statuses) == {200}
