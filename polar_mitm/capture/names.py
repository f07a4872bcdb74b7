"""Ids of sessions and calls: they sort by the time they were made, and are safe in paths, URLs and header values.

The 26 characters are lower-case hex: 48 bits of milliseconds since 1970, then 56 random bits. They are not secrets.
"""

import secrets
import time


def new_session_id() -> str:
    return f"ses_{_stamp()}"


def new_call_id() -> str:
    return f"call_{_stamp()}"


def _stamp() -> str:
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(7)}"
