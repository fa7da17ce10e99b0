"""Whose certificates the clients of servers take."""

from __future__ import annotations

import ssl

from ..core.errors import EvidenceError


def trusted() -> ssl.SSLContext:
    """The usual authorities', or those in the file that $SSL_CERT_FILE names. Raises EvidenceError."""
    import httpx

    try:
        return httpx.create_ssl_context()
    except OSError as error:  # ssl.SSLError is one, too
        raise EvidenceError(f"SSL_CERT_FILE: not a file of certificates: {error}") from error


def certificate_hint(error: Exception) -> str:
    """What to do where a server's certificate is not taken; else empty."""
    return "; SSL_CERT_FILE=FILE trusts a certificate" if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""
