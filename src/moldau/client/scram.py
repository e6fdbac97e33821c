"""SCRAM (RFC 5802, RFC 7677) as a client speaks it: both sides prove that they know the password, neither says it.

    client-first   n,,n=user,r=<our nonce>
    server-first   r=<our nonce><its nonce>,s=<salt>,i=<iterations>
    client-final   c=biws,r=<both nonces>,p=<our proof>
    server-final   v=<its signature>, or e=<error>

No channel binding (`n,,`), since Kafka has none. No SASLprep either: Kafka stores what the password's UTF-8 hashes
to, as it was typed, and a client that normalized it would be refused. No I/O: a generator of messages, which is
sent the answers; what is wrong with an answer is raised.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Generator

from moldau.errors import ConfigError, ErrorCode, KafkaError

# RFC 7677's least, and Kafka's own: with fewer, a listener on the wire could try out passwords.
ITERATIONS_MIN = 4096
# Kafka stores at most 16,384; other brokers may follow today's advice of several 100,000. A million is one
# second of work: no broker, true or false, can keep us busy for longer.
ITERATIONS_MAX = 1_000_000
# The messages of any real broker are below 200 bytes.
MESSAGE_BYTES_MAX = 4096

_NONCE_BYTES = 24  # 192 bits, in printable characters without a comma once they are base64
_SERVER_FIRST = re.compile(
    rb"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/]+={0,2}),i=(?P<iterations>[1-9][0-9]{0,8})(?:,.*)?"
)
_SERVER_FINAL = re.compile(rb"(?:v=(?P<signature>[A-Za-z0-9+/]+={0,2})|e=(?P<error>[\x20-\x2b\x2d-\x7e]+))(?:,.*)?")


def scram(
    hash_name: str, username: str, password: str, client_nonce: str | None = None
) -> Generator[bytes, bytes, None]:
    """The client's messages, each for the server's answer to the one before; it ends when the server is proven."""
    nonce = (client_nonce or b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()).encode()
    first = b"n=" + _sasl_name(username) + b",r=" + nonce
    server_first = yield b"n,," + first
    both_nonces, salt, iterations = _parse_server_first(server_first, nonce)

    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    final = b"c=biws,r=" + both_nonces  # biws: "n,," in base64
    conversation = b",".join((first, server_first, final))
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), conversation, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = yield final + b",p=" + b64encode(proof)

    server_key = hmac.digest(salted, b"Server Key", hash_name)
    _verify(server_final, hmac.digest(server_key, conversation, hash_name))


def _sasl_name(username: str) -> bytes:
    if not username.isascii() or not username.isprintable():
        raise ConfigError(f"user name {username!r}: SCRAM user names must be printable ASCII")
    return username.replace("=", "=3D").replace(",", "=2C").encode()


def _parse_server_first(message: bytes, client_nonce: bytes) -> tuple[bytes, bytes, int]:
    found = _match(_SERVER_FIRST, message, "first")
    nonce, iterations = found["nonce"], int(found["iterations"])
    # Our nonce makes this exchange unlike any recorded one; the server's does the same for the server.
    if not nonce.startswith(client_nonce) or len(nonce) == len(client_nonce):
        raise _refused("the broker's nonce does not continue the client's: a replay, or not a Kafka broker")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise _refused(
            f"the broker asks for {iterations} iterations, but only {ITERATIONS_MIN} to {ITERATIONS_MAX} are safe: "
            "store the user's password again with another number (kafka-configs --entity-type users)"
        )
    return nonce, _decode(found["salt"]), iterations


def _verify(message: bytes, expected: bytes) -> None:
    found = _match(_SERVER_FINAL, message, "final")
    if found["error"] is not None:
        raise _refused(f"the broker returned {found['error'].decode()}")
    if not hmac.compare_digest(_decode(found["signature"]), expected):
        raise _refused("the broker could not prove that it knows the password: it may be an impostor")


def _match(pattern: re.Pattern[bytes], message: bytes, name: str) -> re.Match[bytes]:
    found = pattern.fullmatch(message) if len(message) <= MESSAGE_BYTES_MAX else None
    if found is None:
        raise _refused(f"the broker's {name} message is not a SCRAM message")
    return found


def _decode(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise _refused("the broker's message contains invalid base64") from None


def _refused(why: str) -> KafkaError:
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"SCRAM authentication stopped: {why}")
