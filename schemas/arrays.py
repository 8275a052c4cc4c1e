"""Token arrays as bytes: little-endian int32 ids and float32 log-probs, as Postgres `bytea` holds them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


def pack_ids(ids: Sequence[int] | NDArray[np.int32]) -> bytes:
    """Token ids to bytes, 4 a token.

    Raises:
        OverflowError: an id does not fit into 32 bits.
    """
    array = np.asarray(ids, dtype=np.int64)
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        raise OverflowError(f"token ids {array.min()} to {array.max()} do not fit into 32 bits")
    return array.astype(_INT32).tobytes()


def unpack_ids(data: bytes) -> NDArray[np.int32]:
    """Bytes to token ids, int32 [T]."""
    return np.frombuffer(data, dtype=_INT32).astype(np.int32)


def pack_floats(values: Sequence[float | None] | Sequence[float] | NDArray[np.float32]) -> bytes:
    """Log-probs to bytes, float32, 4 a token; None becomes NaN."""
    return np.asarray(values, dtype=_FLOAT32).tobytes()


def unpack_floats(data: bytes) -> NDArray[np.float32]:
    """Bytes to log-probs, float32 [T]."""
    return np.frombuffer(data, dtype=_FLOAT32).astype(np.float32)
