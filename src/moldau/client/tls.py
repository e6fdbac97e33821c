"""TLS around a socket, and what its failures mean to those who have to mend them.

What no other try will change (a certificate that is not trusted, a key that does not fit) is a `ConfigError`; what
may be the network or a broker on its way up stays an `OSError`, with a word on what else it could be.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from tempfile import TemporaryDirectory

from moldau.client.security import Pem, Security
from moldau.errors import ConfigError

_HOST_MISMATCH = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


def wrap(sock: socket.socket, host: str, port: int, security: Security) -> ssl.SSLSocket:
    context = _context(security)
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except OSError as error:
        refusal = explain(error)
        if refusal is not None:
            raise ConfigError(f"TLS with {host}:{port}: {refusal}") from error
        plain = "SASL_PLAINTEXT" if security.uses_sasl else "PLAINTEXT"
        raise ConnectionError(
            f"TLS handshake failed ({_cause(error)}); if this port does not use TLS, set security.protocol={plain}"
        ) from error


def explain(error: OSError) -> str | None:
    """What to do about a failure that will be the same next time; None for any other."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error)
    reason = getattr(error, "reason", None) or ""
    if not isinstance(error, ssl.SSLError) or "ALERT" not in reason:
        return None
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return (
            f"the broker rejected the client certificate ({_words(reason)}): set ssl.keystore.location to one it "
            "trusts, or ssl.keystore.key and ssl.keystore.certificate.chain"
        )
    return f"the broker rejected the handshake ({_words(reason)}): no TLS version or cipher in common"


def _explain_certificate(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message.rstrip(".")
    if error.verify_code in _HOST_MISMATCH:
        return (
            f"{said}: use a name of the broker's certificate in bootstrap.servers and advertised.listeners, "
            "or set ssl.endpoint.identification.algorithm to an empty value"
        )
    return (
        f"the broker's certificate is not trusted ({said}): set the certificate of its CA with "
        "ssl.truststore.location and ssl.truststore.type=PEM"
    )


def _context(security: Security) -> ssl.SSLContext:
    # Not create_default_context, which is stricter than Java from one Python to the next.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = security.verify_host
    # As in Java, whatever is in the trust store is trusted, be it a root or not.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if security.ca is None:
        context.load_default_certs()
    else:
        _load_trusted(context, security.ca)
    if security.certificate is not None:
        _load_own(context, security, security.certificate)
    return context


def _load_trusted(context: ssl.SSLContext, ca: Pem) -> None:
    try:
        if ca.text is None:
            context.load_verify_locations(cafile=ca.location)
        else:
            context.load_verify_locations(cadata=ca.text.value)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{_named(ca)}: cannot read certificates in PEM format ({_cause(error)})") from error


def _load_own(context: ssl.SSLContext, security: Security, certificate: Pem) -> None:
    def password() -> str:
        # Without this, OpenSSL would ask on the terminal, and wait.
        if security.key_password is None:
            raise ConfigError("the private key is encrypted: set ssl.key.password")
        return security.key_password.value

    key = security.key or certificate
    with TemporaryDirectory(prefix="moldau-tls-") as scratch:  # readable by its owner only
        certificate_file = _file(certificate, Path(scratch) / "certificate.pem")
        key_file = _file(key, Path(scratch) / "key.pem")
        try:
            context.load_cert_chain(certificate_file, key_file, password)
        except OSError as error:
            both = _named(certificate) if key == certificate else f"{_named(certificate)} and {_named(key)}"
            raise ConfigError(
                f"{both}: cannot read a certificate and its private key in PEM format; check the files and "
                f"ssl.key.password ({_cause(error)})"
            ) from error


def _file(pem: Pem, path: Path) -> str:
    """Where the PEM is; its text goes to a file for the moment, which is all that OpenSSL reads keys from."""
    if pem.text is None:
        return pem.location
    path.write_text(pem.text.value)
    return str(path)


def _named(pem: Pem) -> str:
    return f"{pem.property}={pem.location}" if pem.location else pem.property


def _cause(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return _words(error.reason or "PEM lib")
    return getattr(error, "strerror", None) or str(error)


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")
