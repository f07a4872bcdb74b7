"""Streams that began before the reply was there."""

from polar_mitm.chat import CallError, ChatReply
from polar_mitm.providers.base import Ask, Begun, Provider


def early(provider: Provider, ask: Ask, reply: ChatReply | CallError, keepalives: int) -> bytes:
    """So many keep-alives, then the reply, or the error that came in its place."""
    begun = Begun("b", 1) if isinstance(reply, CallError) else Begun(reply.id, reply.created)
    sent = b"".join(provider.keepalive(ask, begun, nth) for nth in range(keepalives))
    if isinstance(reply, CallError):
        return sent + provider.stream_error(ask, reply, begun, keepalives)
    return sent + b"".join(provider.stream(ask, reply, opened=keepalives))
