"""`engine explain`: the life of one request, told by the server that ran it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import click

from .output import echo, user_errors

EPILOG = """\b
Examples:
  engine explain hello                        # sent with X-Request-Id: hello
  engine explain chatcmpl-3f9c... --url http://127.0.0.1:9000 --every-token

Exit status: 0 told; 1 no answer, or the request is not known there, or no longer; 2 no address of a server.
"""


@click.command(epilog=EPILOG)
@click.argument("request_id", metavar="ID")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--api-key", help="Its key, if it wants one.  [default: $CAMSHAFT_API_KEY]")
@click.option("--every-token", is_flag=True, help="A line for each token, not for each run of tokens.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def explain(request_id: str, url: str, api_key: str | None, every_token: bool, form: str) -> None:
    """Say when request ID arrived, why it waited or was refused, and in which step each of its tokens was computed.

    ID is the `id` of a reply (cmpl-..., chatcmpl-...) or the X-Request-Id of the request.
    """
    told = _ask(url, request_id, api_key or os.environ.get("CAMSHAFT_API_KEY"))
    if form == "json":
        click.echo(json.dumps(told, indent=2))
        return
    try:
        lines = [line for name, life in told["sequences"].items() for line in story(name, life, every_token)]
        lines += refusal(told["id"], told["fault"]) if told.get("fault") else []
    except (LookupError, TypeError, AttributeError, ValueError):
        raise click.ClickException(f"{url}: not an answer of this server") from None
    for line in lines:
        echo(line)


def _ask(url: str, request_id: str, api_key: str | None) -> dict[str, Any]:
    import httpx

    from ..diagnostics.tls import certificate_hint, trusted

    given, url = url, url if "://" in url else f"http://{url}"
    if not re.match(r"https?://[^/]", url):
        raise click.UsageError(f"--url {given}: a server's address is needed, such as http://127.0.0.1:8000")
    headers = httpx.Headers({"Authorization": f"Bearer {api_key}"} if api_key else {}, encoding="utf-8")
    address = f"{url.rstrip('/')}/debug/explain/{quote(os.fsencode(request_id), safe='')}"
    with user_errors():
        certificates = trusted()
    try:
        reply = httpx.get(address, headers=headers, timeout=60, verify=certificates, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        told = certificate_hint(error) or "; is the server running there? (--url)"
        raise click.ClickException(f"{url}: {str(error).rstrip('.')}{told}") from error
    try:
        body = reply.json()
    except ValueError:
        raise click.ClickException(f"{address}: not an answer of this server ({reply.status_code})") from None
    if reply.status_code != 200:
        message = body.get("error", {}).get("message") if isinstance(body, dict) else None
        raise click.ClickException(f"{url}: {message or f'status {reply.status_code}'}")
    return body


def refusal(name: str, fault: dict[str, Any]) -> list[str]:
    """The error that a request was answered with, as /debug/explain tells it."""
    return [f"{name}: answered with an error{_at(fault['at_unix_s'])}: {fault['status']}: {fault['message']}"]


def story(name: str, life: dict[str, Any], every_token: bool = False) -> Iterator[str]:
    """Lines of text for the life of one sequence, as /debug/explain tells it."""
    if "error" in life:
        yield f"{name}: {life['error']}"
        return
    why = f": {life['why']}" if life.get("why") else ""
    reason = f" ({life['finish_reason']}{why})" if life.get("finish_reason") else ""
    yield f"{name}: {life['state']}{reason}"
    yield "  " + ", ".join(_facts(life))
    yield "  " + ", ".join(_times(life))
    if not life.get("complete", True):
        yield "  its first steps have left the server's memory"
    yield ""
    yield f"  {'at ms':>12}  {'step':>7}  what"
    yield f"  {0.0:>12.1f}  {'':>7}  arrived{_clock(life)}"
    for event in _merged(life["events"], every_token):
        yield f"  {event['at_ms']:>12.1f}  {event['step']:>7}  {_what(event)}"
    yield ""


def _facts(life: dict[str, Any]) -> Iterator[str]:
    yield f"prompt of {_counted(life['prompt_tokens'], 'token')} ({life['cached_tokens']} from the prefix cache)"
    yield f"{_counted(life['output_tokens'], 'token')} out"
    if life.get("priority"):
        yield f"priority {life['priority']}"
    if life.get("tenant"):
        yield f"tenant {life['tenant']}"
    yield _counted(life["preemptions"], "eviction")


def _times(life: dict[str, Any]) -> Iterator[str]:
    for key, text in (
        ("queued_ms", "waited {:.1f} ms"),
        ("first_token_ms", "first token after {:.1f} ms"),
        ("finished_ms", "ended after {:.1f} ms"),
    ):
        if life.get(key) is not None:
            yield text.format(life[key])
    if life.get("queued_ms") is None:
        yield "never started" if life.get("finish_reason") else "has not started"


def _clock(life: dict[str, Any]) -> str:
    at_s = life.get("arrived_unix_s")
    return "" if at_s is None else _at(at_s)


def _at(unix_s: float) -> str:
    return time.strftime(" at %Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def _merged(events: list[dict[str, Any]], every_token: bool) -> Iterator[dict[str, Any]]:
    """Tokens of adjacent steps become one event, unless each is wanted."""
    run: dict[str, Any] | None = None
    for event in events:
        if event["event"] != "token" or every_token:
            if run is not None:
                yield run
                run = None
            yield event
        elif run is not None and event["step"] == run["last_step"] + 1:
            run["count"] += event["tokens"]
            run["last_step"] = event["step"]
            run["slowest_ms"] = max(run["slowest_ms"], event["step_ms"])
            run["total_ms"] += event["step_ms"]
        else:
            if run is not None:
                yield run
            run = {**event, "event": "tokens", "count": event["tokens"], "last_step": event["step"]}
            run |= {"slowest_ms": event["step_ms"], "total_ms": event["step_ms"]}
    if run is not None:
        yield run


def _what(event: dict[str, Any]) -> str:
    kind = event["event"]
    if kind == "waited":
        steps = f" ({_counted(event['steps'], 'step')})" if event["steps"] else ""
        return f"waited {event['until_ms'] - event['at_ms']:.1f} ms{steps}: {event['why']}"
    if kind == "evicted":
        return f"evicted, its blocks given to others: {event['why']}"
    if kind == "chunk":
        last = event["start"] + event["tokens"] - 1
        cut = f" (cut to {event['cut_to']})" if event.get("cut_to") else ""
        span = f"tokens {event['start']} to {last}" if event["tokens"] > 1 else f"token {last}"
        return (
            f"prompt {span}{cut}, in a step of {_counted(event['batch_tokens'], 'token')} "
            f"that took {event['step_ms']:.1f} ms{', and gave a token' if event['drew'] else ''}"
        )
    if kind == "token" or (kind == "tokens" and event["step"] == event["last_step"]):
        return f"token, in a step of {_counted(event['batch_tokens'], 'token')} that took {event['step_ms']:.1f} ms"
    if kind == "tokens":
        steps = event["last_step"] - event["step"] + 1
        return (
            f"{_counted(event['count'], 'token')}, one a step up to step {event['last_step']}: "
            f"{event['total_ms'] / steps:.1f} ms a step, {event['slowest_ms']:.1f} the slowest"
        )
    return str(kind)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
