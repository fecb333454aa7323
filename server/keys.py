"""Who may use the service: bearer keys, compared in a time that tells nothing of them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest

from .errors import ApiError


class Keys:
    """The keys that are accepted; with none, whoever reaches the port may use the service."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(sha256(key.encode()).digest() for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: bytes | None) -> bytes:
        """The digest of the key; empty where none is needed.

        Raises `ApiError` 401 unless the header's value is `Bearer` and one of the keys.

        Digests have one length, and each key is compared: neither the length of a key nor how much
        of it was right, nor which key it was, can be read from the time.
        """
        if not self._digests:
            return b""
        scheme, _, given = (authorization or b"").partition(b" ")
        digest = sha256(given.strip()).digest()
        known = [compare_digest(digest, each) for each in self._digests]
        if scheme.lower() == b"bearer" and any(known):
            return digest
        said = "the API key is wrong" if authorization else "an API key is needed"
        raise ApiError(
            401,
            f"{said}: send the header `Authorization: Bearer KEY`",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
