"""Limits on a response's time and size, and parsing of Retry-After."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from posttrain.base.http import TooLargeError, exchange, retry_after


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("-3", 0.0),
        ("nan", 0.0),
        ("1e400", float("inf")),
        ("soon", 0.0),
        ("", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 0.0),
    ],
)
def test_what_a_server_asks_to_wait(header: str, seconds: float) -> None:
    assert retry_after(httpx.Response(503, headers={"Retry-After": header})) == seconds


def test_a_date_to_wait_for_is_counted_from_now() -> None:
    assert retry_after(httpx.Response(503)) == 0.0
    later = datetime.now(UTC) + timedelta(seconds=90)
    for date in (format_datetime(later, usegmt=True), format_datetime(later.replace(tzinfo=None))):
        assert 85 < retry_after(httpx.Response(503, headers={"Retry-After": date})) <= 90


def asked(seconds: float, max_bytes: int) -> bytes:
    """Request an endless response that sends 1000 bytes every 10 ms."""

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(0.01)
                yield bytes(1000)

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return httpx.Response(200, stream=Endless())

    async def ask() -> bytes:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            limits = {"seconds": seconds, "max_bytes": max_bytes}
            return (await exchange(client, "GET", "http://a", content=None, headers={}, **limits))[1]

    return asyncio.run(ask())


def test_an_answer_without_an_end_is_left_in_time_and_before_it_is_too_large() -> None:
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        asked(seconds=0.1, max_bytes=10**9)
    with pytest.raises(TooLargeError):
        asked(seconds=60.0, max_bytes=5000)
    assert time.monotonic() - begin < 10
