"""Send webhooks, signed as the Standard Webhooks are (standardwebhooks.com), to receivers that the operator allows."""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
from datetime import datetime
from urllib.parse import SplitResult, urlsplit

from pyreqwest.http import Url

from qualab.endpoints.allowing import AllowedEndpoints, reachable
from qualab.endpoints.transport import Failure, Transport
from qualab.endpoints.urls import DEFAULT_PORTS, port_of
from qualab.errors import EndpointForbidden, InvalidValue, QualabError
from qualab.service.settings import ServiceSettings
from qualab.settings import read_secret

TIMEOUT_S = 10.0
PLAIN_URL = re.compile(r"[!\"$-~]{1,2000}")
"""ASCII without spaces and #."""
SECRET = re.compile(r"(?:whsec_)?([A-Za-z0-9+/]+={0,2})")
SECRET_BYTES = range(24, 65)


class WebhookSender:
    """Sends what is signed; keeps the secret."""

    def __init__(self, settings: ServiceSettings) -> None:
        """Read the secret where webhooks are allowed. Raises InvalidValue, UsageError."""
        self._allowed = AllowedEndpoints(settings.allowed_webhooks, kind="webhook")
        self.is_on = bool(settings.allowed_webhooks)
        self._secret = b""
        if self.is_on:
            path = settings.webhook_secret_file
            match = SECRET.fullmatch(read_secret(path, "webhook secret")) if path else None
            self._secret = base64.b64decode(match[1] + "==") if match else b""
            if len(self._secret) not in SECRET_BYTES:
                raise InvalidValue(
                    "Webhooks are allowed, but no secret signs them",
                    hint="Name its file with --webhook-secret-file: whsec_ and what `openssl rand -base64 32` prints",
                )

    def check(self, url: str) -> tuple[SplitResult, tuple[str, ...]]:
        """Return a URL's parts and addresses. Raises InvalidValue, EndpointForbidden, which name the field."""
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0 and bool(Url(url))
        except ValueError:
            is_url = False
        if not is_url or not PLAIN_URL.fullmatch(url) or "@" in parts.netloc:
            raise InvalidValue.must_be("webhook", "an http or https URL in ASCII, without user name and fragment")
        try:
            return parts, self._allowed.check_host(parts)
        except EndpointForbidden as exc:
            raise EndpointForbidden(exc.message, hint=exc.hint, fields={"webhook": exc.message}) from exc

    async def send(self, url: str, body: bytes, *, message_id: str, now: datetime) -> tuple[int, str]:
        """Post a message; return the status (0 where there is none) and what came of it. Redirects are not followed."""
        sent_at = str(int(now.timestamp()))
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": sent_at,
            "webhook-signature": self.signature(message_id, sent_at, body),
        }
        try:
            parts, addresses = await asyncio.to_thread(self.check, url)
            address = await reachable(addresses, port_of(parts))
            transport = Transport(url, key="", timeout_s=TIMEOUT_S, address=address)
            try:
                exchange = await transport.send("POST", url, body=body, headers=headers)
            finally:
                await transport.close()
        except (QualabError, Failure) as exc:
            return 0, exc.message
        is_redirect = 300 <= exchange.status < 400
        return exchange.status, f"HTTP {exchange.status}{': redirects are not followed' if is_redirect else ''}"

    def signature(self, message_id: str, sent_at: str, body: bytes) -> str:
        """Sign a message: version 1, HMAC-SHA256 of its id, time and body."""
        signed = b".".join((message_id.encode(), sent_at.encode(), body))
        return f"v1,{base64.b64encode(hmac.digest(self._secret, signed, 'sha256')).decode()}"
