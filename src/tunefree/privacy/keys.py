"""Key agreement, encryption and masks, by the `cryptography` package.

X25519 (RFC 7748) agrees on a secret, HKDF-SHA256 (RFC 5869) derives a key for one purpose and
session from it, ChaCha20-Poly1305 (RFC 8439) encrypts, and the ChaCha20 stream of a key is a mask.
Every key encrypts one message or generates one mask, so that nonces can be zero.
"""

import hashlib
from importlib import import_module
from typing import Any

import numpy as np

from ..core.errors import TunefreeError, import_optional
from .quantizer import BITS, UnsignedArray

KEY, TAG, DIGEST = 32, 16, 32  # bytes


class ProtocolError(TunefreeError):
    """A message is invalid or out of turn; no secret was revealed."""


def _primitive(name: str) -> Any:
    module = f"cryptography.hazmat.primitives.{name}"
    return import_optional(module, "Secure aggregation", "cryptography", extra="privacy")


def _private_key(private: bytes) -> Any:
    return _primitive("asymmetric.x25519").X25519PrivateKey.from_private_bytes(private)


def new_key() -> bytes:
    """Return a new private key from the system's random numbers."""
    generate = _primitive("asymmetric.x25519").X25519PrivateKey.generate
    return bytes(generate().private_bytes_raw())


def public_key(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return bytes(_private_key(private).public_key().public_bytes_raw())


def agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Return the key that the owners of two key pairs share for a purpose."""
    mine, hkdf = _private_key(private), _primitive("kdf.hkdf").HKDF
    public_class = _primitive("asymmetric.x25519").X25519PublicKey
    try:
        common = mine.exchange(public_class.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("A public key cannot be used for key agreement.") from None
    info = b"tunefree 1 " + purpose
    return bytes(hkdf(_primitive("hashes").SHA256(), KEY, salt=None, info=info).derive(common))


def check_public(public: bytes) -> None:
    """Refuse a public key with which nobody can agree on a secret (a point of low order)."""
    agree(new_key(), public, b"")


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of parts, each prefixed with its length."""
    h = hashlib.sha256()
    for part in parts:
        h.update(len(part).to_bytes(8, "little") + part)
    return h.digest()


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate a text; a key must not be used twice."""
    return bytes(_primitive("ciphers.aead").ChaCha20Poly1305(key).encrypt(bytes(12), text, b""))


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """Return the text, or None if the key is wrong."""
    cipher = _primitive("ciphers.aead").ChaCha20Poly1305(key)
    try:
        return bytes(cipher.decrypt(bytes(12), sealed, b""))
    except import_module("cryptography.exceptions").InvalidTag:
        return None


def mask(key: bytes, length: int, bits: int) -> UnsignedArray:
    """Return `length` pseudorandom integers modulo 2^bits, a function of the key."""
    ciphers = _primitive("ciphers")
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    kind = BITS[bits]
    return np.frombuffer(stream.update(bytes(length * kind.itemsize)), kind)
