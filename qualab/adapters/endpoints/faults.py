"""What can go wrong between sending a request and holding its whole answer, said for a person."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyreqwest.exceptions import BodyDecodeError, DecodeError, PyreqwestError, RequestTimeoutError

from qualab.domain.names import AnswerStatus

FIREWALL = "Check the address, and that no firewall lies between"
PROXY = "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
CERTIFICATE = "Set SSL_CERT_FILE to the certificate of the authority that signed it"
TLS_ELSEWHERE = "If the server speaks plain HTTP, write http:// instead of https://"
LOG = "Look into the server's log"

CONNECTING = "client error (connect)"
"""Among the causes of everything that happens before a request is sent."""
ENDED_EARLY = "unexpected (?:eof during chunk|end of file)"
"""Of a chunked or compressed body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An attempt that got no whole answer."""

    status: AnswerStatus
    reason: str
    """What happened, as the end of "could not ...: "."""
    hint: str
    """What to check."""


def fault_of(exc: PyreqwestError, *, proxied: bool) -> Fault:
    """The fault that the client's exception means. The text is ours: nothing of the request is repeated in it."""
    causes = causes_of(exc)
    is_connecting = CONNECTING in causes
    if isinstance(exc, RequestTimeoutError):
        return CONNECT_TIMEOUT if is_connecting else TIMEOUT
    if isinstance(exc, DecodeError):
        return BROKEN_BODY if isinstance(exc, BodyDecodeError) else NOT_HTTP
    said = "; ".join(causes)
    if re.search(ENDED_EARLY, said):
        return BROKEN_BODY
    return _connection_fault(said, is_proxy=proxied and is_connecting)


def causes_of(exc: PyreqwestError) -> Sequence[str]:
    """What lies under an exception, the outermost first, in lower case."""
    details = getattr(exc, "details", None) or {}
    return [cause["message"].lower() for cause in details.get("causes") or ()]


def _broken(reason: str, hint: str) -> Fault:
    return Fault(status=AnswerStatus.CONNECTION_ERROR, reason=reason, hint=hint)


def _connection_fault(said: str, *, is_proxy: bool) -> Fault:
    for pattern, reason, hint in CAUSES:
        if found := re.search(pattern, said):
            return _broken(reason.format(*found.groups()), hint)
    if is_proxy:
        return _broken("the proxy cannot be reached", PROXY)
    number = re.search(r"\(os error (\d+)\)", said)
    if number and int(number[1]) == errno.ECONNREFUSED:
        return REFUSED
    detail = f" ({os.strerror(int(number[1]))})" if number else ""
    return _broken(f"the connection failed{detail}", FIREWALL)


CAUSES = (
    (
        "dns error",
        "its host name cannot be resolved",
        "Check the spelling of the host name, and this machine's DNS",
    ),
    (
        "causedasendentity",
        "its TLS certificate is that of an authority, not of a server",
        "Give the server a certificate of its own: one signed by that authority, or self-signed with CA:FALSE",
    ),
    ("invalid peer certificate: ([a-z ]+)", "its TLS certificate is not trusted ({0})", CERTIFICATE),
    ("tunnel error: proxy authorization required", "the proxy refused with status 407", PROXY),
    ("tunnel error: failed to create underlying connection", "the proxy cannot be reached", PROXY),
    ("tunnel error", "the proxy refused to connect", PROXY),
    ("without sending tls close_notify", "the server closed the connection without an answer", LOG),
    ("corrupt message|invalidcontenttype|fatal alert|tls|peer (?:is )?incompatible", "TLS failed", TLS_ELSEWHERE),
    (
        "connection closed before message completed",
        "the server closed the connection without an answer",
        "If the server speaks TLS, write https:// instead of http://",
    ),
    ("too many open files", "this process may open no more files (ulimit -n)", "Raise it, or lower --concurrency"),
    ("connection reset|broken pipe", "the connection was reset", LOG),
)
"""Pattern among the causes, reason (with what the pattern caught), hint. The first match counts."""

REFUSED = _broken("the connection was refused, nothing listens there", "Start the server, or correct host and port")
CONNECT_TIMEOUT = _broken("no connection was made in the time allowed", FIREWALL)
TIMEOUT = Fault(
    status=AnswerStatus.TIMEOUT,
    reason="no whole answer came in the time allowed",
    hint="Check that the server is alive and not overloaded",
)
BROKEN_BODY = Fault(status=AnswerStatus.BAD_BODY, reason="the body ended early or cannot be decoded", hint=LOG)
NOT_HTTP = Fault(
    status=AnswerStatus.BAD_BODY,
    reason="the answer is not HTTP",
    hint="Check the port: another kind of server listens there",
)
