"""The HTTP server's own log without the words of faults: of a request that is no HTTP they quote its headers."""

from __future__ import annotations

import logging


class _Wordless(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Say the class of an exception and not the exception."""
        if record.exc_info:
            kind = record.exc_info[0] if isinstance(record.exc_info, tuple) else None
            record.msg = f"{record.msg}: {kind.__name__ if kind is not None else 'a fault'}"
            record.exc_info = record.exc_text = None
        return True


server_log = logging.getLogger(__name__)
server_log.addFilter(_Wordless())
