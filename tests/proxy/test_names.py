"""The name server of sandboxes that know no network."""

import asyncio
import socket

import pytest
from mitmproxy.dns import DNSMessage, Question
from mitmproxy.net import dns

from polar_mitm.proxy.names import NameServer, answer


def query(name: str, kind: int) -> bytes:
    message = DNSMessage(
        timestamp=0,
        id=7,
        query=True,
        op_code=dns.op_codes.QUERY,
        authoritative_answer=False,
        truncation=False,
        recursion_desired=True,
        recursion_available=False,
        reserved=0,
        response_code=dns.response_codes.NOERROR,
        questions=[Question(name, kind, dns.classes.IN)],
        answers=[],
        authorities=[],
        additionals=[],
    )
    return message.packed


def addresses(reply: bytes | None) -> list[str]:
    assert reply is not None
    message = DNSMessage.unpack(reply)
    assert (message.id, message.query, message.response_code) == (7, False, dns.response_codes.NOERROR)
    return [socket.inet_ntoa(record.data) for record in message.answers]


def test_every_name_has_one_ipv4_address_and_nothing_else() -> None:
    assert addresses(answer(query("api.anthropic.com", dns.types.A))) == ["198.18.0.1"]
    assert addresses(answer(query("no.such.host.invalid", dns.types.A))) == ["198.18.0.1"]
    assert addresses(answer(query("api.anthropic.com", dns.types.AAAA))) == []
    assert addresses(answer(query("api.anthropic.com", dns.types.MX))) == []


@pytest.mark.parametrize("junk", [b"", b"\0", b"x" * 11, b"\xff" * 40])
def test_what_is_no_query_gets_no_answer(junk: bytes) -> None:
    assert answer(junk) is None


def test_a_reply_is_not_answered_again() -> None:
    reply = answer(query("a.example", dns.types.A))
    assert reply is not None
    assert answer(reply) is None


async def test_it_serves_on_a_socket_until_it_is_closed() -> None:
    async with NameServer("ses_names") as names:
        reader, writer = await asyncio.open_unix_connection(names.path)
        writer.write(query("a.example", dns.types.A))
        assert addresses(await reader.read(600)) == ["198.18.0.1"]
        writer.close()
        path = names.path
    assert not path.exists()
