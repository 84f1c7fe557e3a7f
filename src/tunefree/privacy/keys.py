"""Key agreement, encryption and masks, by the `cryptography` package.

X25519 (RFC 7748) agrees on a secret, HKDF-SHA256 (RFC 5869) derives a key for one purpose and
session from it, ChaCha20-Poly1305 (RFC 8439) encrypts, and the ChaCha20 stream of a key is a mask.
Every key encrypts one message or generates one mask, so that nonces can be zero.
"""

import hashlib
import importlib
from typing import Any

import numpy as np

from ..core.errors import ArgumentError, TunefreeError
from .quantizer import BITS, UnsignedArray

KEY, TAG = 32, 16  # bytes
_PRIMITIVES = "cryptography.hazmat.primitives."


class ProtocolError(TunefreeError):
    """A message is invalid or out of turn; no secret was revealed."""


def _primitive(name: str) -> Any:
    """Import a module of `cryptography`, or raise an error that tells how to install it."""
    try:
        return importlib.import_module(_PRIMITIVES + name)
    except ModuleNotFoundError:
        raise ArgumentError(
            "Secure aggregation needs the package cryptography; install it with: "
            "pip install 'tunefree[privacy]'"
        ) from None


def new_key() -> bytes:
    """Return a new private key from the system's random numbers."""
    made: bytes = _primitive("asymmetric.x25519").X25519PrivateKey.generate().private_bytes_raw()
    return made


def public_key(private: bytes) -> bytes:
    """Return the public key of a private one."""
    x25519 = _primitive("asymmetric.x25519")
    made: bytes = (
        x25519.X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    )
    return made


def agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Return the key that the owners of two key pairs share for a purpose."""
    x25519, hashes = _primitive("asymmetric.x25519"), _primitive("hashes")
    mine = x25519.X25519PrivateKey.from_private_bytes(private)
    try:
        common = mine.exchange(x25519.X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("A public key cannot be used for key agreement.") from None
    hkdf = _primitive("kdf.hkdf").HKDF(
        hashes.SHA256(), KEY, salt=None, info=b"tunefree 1 " + purpose
    )
    made: bytes = hkdf.derive(common)
    return made


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of parts, each prefixed with its length."""
    h = hashlib.sha256()
    for part in parts:
        h.update(len(part).to_bytes(8, "little") + part)
    return h.digest()


def seal(key: bytes, text: bytes, associated: bytes) -> bytes:
    """Encrypt and authenticate a text; a key must not be used twice."""
    made: bytes = (
        _primitive("ciphers.aead").ChaCha20Poly1305(key).encrypt(bytes(12), text, associated)
    )
    return made


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes | None:
    """Return the text, or None if the key or the associated data are wrong."""
    wrong = importlib.import_module("cryptography.exceptions").InvalidTag
    try:
        made: bytes = (
            _primitive("ciphers.aead").ChaCha20Poly1305(key).decrypt(bytes(12), sealed, associated)
        )
    except wrong:
        return None
    return made


def mask(key: bytes, length: int, bits: int) -> UnsignedArray:
    """Return `length` pseudorandom integers modulo 2^bits, a function of the key."""
    ciphers = _primitive("ciphers")
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    kind = BITS[bits]
    return np.frombuffer(stream.update(bytes(length * kind.itemsize)), kind)
