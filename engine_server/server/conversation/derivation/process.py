"""The facts of a chat template from a process of their own, which a template can't keep from ending."""

from __future__ import annotations

import logging
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import msgspec

from engine_server.contract.base.python_module import module_command

if TYPE_CHECKING:
    from engine_server.engine.conversation.chat_template import ChatTemplate
    from engine_server.server.conversation.derivation.facts import TemplateFacts

logger = logging.getLogger(__name__)

MODULE = "engine_server.server.conversation.derivation"
# Of the facts; of known templates they have 2 KB.
MAX_BYTES = 1 << 20
# Fifty times what any known template takes, since replicas would differ by a limit that is met by chance.
CPU_SECONDS = 30
# A last stop for a process that does not run, since its own limit is of CPU time.
MAX_SECONDS = 900.0


class TemplateProcess:
    """A process that finds the facts of one template. Its imports start when this object is created."""

    def __init__(self, cpu_seconds: int = CPU_SECONDS) -> None:
        command = module_command(MODULE, str(cpu_seconds))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def facts(self, template: ChatTemplate) -> TemplateFacts:
        """Return the facts of a template; without any, but with the reason, if the process did not find them."""
        from engine_server.server.conversation.derivation.derive import NotDerived
        from engine_server.server.conversation.derivation.facts import TemplateFacts

        timer = threading.Timer(MAX_SECONDS, self._process.kill)
        timer.start()
        try:
            written = self._answer(msgspec.json.encode(template, enc_hook=str))
            status = self._process.wait()
        finally:
            timer.cancel()
            self.close()
        try:
            return msgspec.json.decode(written, type=TemplateFacts)
        except msgspec.DecodeError:
            reason = f"the process that rendered the chat template ended with status {status}"
        logger.warning("the form of this model's answers is not known: %s", reason)
        return TemplateFacts(form=NotDerived(reason))

    def _answer(self, question: bytes) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError), self._process.stdin as stream:  # it may have ended
            stream.write(question)
        answer = self._process.stdout.read(MAX_BYTES)
        if len(answer) == MAX_BYTES:
            self._process.kill()
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):  # of what was not written
                stream.close()
