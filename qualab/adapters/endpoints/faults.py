"""What can go wrong between sending a request and holding its whole answer, said for a person."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from qualab.domain.names import AnswerStatus

FOREIGN = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError)
"""Everything that sending a request may raise because of the server or the way to it."""

FIREWALL = "Check the address, and that no firewall lies between"
PROXY = "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
TLS_ELSEWHERE = "If the server speaks plain HTTP, write http:// instead of https://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An attempt that got no whole answer."""

    status: AnswerStatus
    reason: str
    """What happened, as the end of "could not ...: "."""
    hint: str
    """What to check."""


def fault_of(exc: BaseException) -> Fault:
    """The fault that a foreign exception means. The text is ours: nothing of the request is repeated in it."""
    for kind, status, describe, hint in FAULTS:
        if isinstance(exc, kind):
            return Fault(status=status, reason=describe(exc), hint=hint)
    return Fault(status=AnswerStatus.CONNECTION_ERROR, reason=_os_reason(exc), hint=FIREWALL)


def _certificate(exc: BaseException) -> str:
    problem = getattr(getattr(exc, "certificate_error", None), "verify_message", "") or "it cannot be verified"
    return f"its TLS certificate is not trusted ({problem})"


def _tls(exc: BaseException) -> str:
    os_error = getattr(exc, "os_error", exc)
    return f"TLS failed ({getattr(os_error, 'reason', None) or type(os_error).__name__})"


def _proxy_refusal(exc: BaseException) -> str:
    return f"the proxy refused with status {getattr(exc, 'status', 'unknown')}"


def _os_reason(exc: BaseException) -> str:
    os_error = getattr(exc, "os_error", exc)
    number = getattr(os_error, "errno", None)
    if number == errno.ECONNREFUSED:
        return "the connection was refused, nothing listens there"
    if number in (errno.ECONNRESET, errno.EPIPE):
        return "the connection was reset"
    if isinstance(number, int) and number in errno.errorcode:
        return f"the connection failed ({os.strerror(number)})"
    return f"the connection failed ({type(os_error).__name__})"


def _said(text: str) -> Callable[[BaseException], str]:
    return lambda _: text


Row = tuple[type[BaseException], AnswerStatus, Callable[[BaseException], str], str]

FAULTS: tuple[Row, ...] = (
    (
        aiohttp.ClientConnectorDNSError,
        AnswerStatus.CONNECTION_ERROR,
        _said("its host name cannot be resolved"),
        "Check the spelling of the host name, and this machine's DNS",
    ),
    (
        aiohttp.ClientConnectorCertificateError,
        AnswerStatus.CONNECTION_ERROR,
        _certificate,
        "Set SSL_CERT_FILE to the certificate of the authority that signed it",
    ),
    (aiohttp.ClientSSLError, AnswerStatus.CONNECTION_ERROR, _tls, TLS_ELSEWHERE),
    (aiohttp.ClientProxyConnectionError, AnswerStatus.CONNECTION_ERROR, _said("the proxy cannot be reached"), PROXY),
    (aiohttp.ClientHttpProxyError, AnswerStatus.CONNECTION_ERROR, _proxy_refusal, PROXY),
    (
        aiohttp.ConnectionTimeoutError,
        AnswerStatus.CONNECTION_ERROR,
        _said("no connection was made in the time allowed"),
        FIREWALL,
    ),
    (
        aiohttp.ClientConnectorError,
        AnswerStatus.CONNECTION_ERROR,
        _os_reason,
        "Start the server, or correct host and port",
    ),
    (
        aiohttp.ServerDisconnectedError,
        AnswerStatus.CONNECTION_ERROR,
        _said("the server closed the connection without an answer"),
        "If the server speaks TLS, write https:// instead of http://",
    ),
    (
        aiohttp.ClientPayloadError,
        AnswerStatus.BAD_BODY,
        _said("the body ended early or cannot be decoded"),
        "Look into the server's log",
    ),
    (
        aiohttp.ClientResponseError,
        AnswerStatus.BAD_BODY,
        _said("the answer is not HTTP"),
        "Check the port: another kind of server listens there",
    ),
    (
        HttpProcessingError,
        AnswerStatus.BAD_BODY,
        _said("the body is not valid HTTP"),
        "Look into the server's log",
    ),
    (
        TimeoutError,
        AnswerStatus.TIMEOUT,
        _said("no whole answer came in the time allowed"),
        "Check that the server is alive and not overloaded",
    ),
)
"""First match counts: subclasses stand before their bases."""
