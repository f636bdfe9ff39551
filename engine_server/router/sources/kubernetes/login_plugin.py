"""Tokens of a kubeconfig's login plugin (`exec`), as kubectl uses them for EKS, GKE and AKS.

Kubernetes' own client runs the plugin. It is imported only here, since it takes more memory than the router.
"""

import asyncio
import time
from datetime import datetime
from typing import Any

import aiohttp

# A plugin may ask an identity provider.
PLUGIN_SECONDS = 30.0
# Before a token expires, another is asked for.
MARGIN_SECONDS = 60.0


class LoginError(aiohttp.ClientError):
    """A plugin gave no token; the message says why."""


class LoginPlugin:
    """Runs a plugin when a token is needed and none is known that is valid for a while."""

    def __init__(self, section: dict[str, Any]) -> None:
        """section: `exec` of a kubeconfig's user. Raises ValueError if it cannot be used."""
        from kubernetes.aio.config import ConfigException
        from kubernetes.aio.config.exec_provider import ExecProvider
        from kubernetes.aio.config.kube_config import ConfigNode

        try:
            self._provider = ExecProvider(ConfigNode("exec", section))  # type: ignore[no-untyped-call]
        except ConfigException as error:
            raise ValueError(str(error)) from None
        self._failure = ConfigException
        self._running = asyncio.Lock()
        self._token = ""
        self._expires_at = float("inf")  # seconds since 1970

    async def token(self) -> str:
        """Return a valid token. Raises LoginError."""
        async with self._running:
            if not self._token or time.time() > self._expires_at - MARGIN_SECONDS:
                self._token, self._expires_at = await self._run()
            return self._token

    def forget(self, token: str) -> None:
        """Ask for another token next time: the API server has refused this one."""
        if token == self._token:
            self._token = ""

    async def _run(self) -> tuple[str, float]:
        """Run the plugin; return its token, and when that expires, in seconds since 1970."""
        try:
            async with asyncio.timeout(PLUGIN_SECONDS):
                status = await self._provider.run()  # type: ignore[no-untyped-call]
            token, expires = status["token"], status.get("expirationTimestamp")
            if not (isinstance(token, str) and token.isprintable()):
                raise LoginError("the login plugin gave a token that is no text")
            return token, datetime.fromisoformat(expires).timestamp() if expires else float("inf")
        except TimeoutError:
            raise LoginError(f"the login plugin did not end within {PLUGIN_SECONDS:.0f} s") from None
        except KeyError:
            raise LoginError("the login plugin gave no token; client certificates are not taken") from None
        except (self._failure, OSError, ValueError, TypeError, AttributeError) as error:
            raise LoginError(f"the login plugin failed: {error}") from None
