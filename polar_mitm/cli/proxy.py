"""`polar proxy` and `polar web`: the proxy alone, and the same inside mitmweb."""

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.capture.record import Call
from polar_mitm.cli.aside import Aside, AsideHandler
from polar_mitm.cli.log_lines import LogLines, show_log
from polar_mitm.cli.shell import BAD_USAGE, TokensFlag, default_engine_urls, err, out, run_async, tell
from polar_mitm.harnesses.paste import folded, lines_to_paste
from polar_mitm.prompts import Tokens
from polar_mitm.proxy.addons import standalone
from polar_mitm.proxy.lines import call_line
from polar_mitm.proxy.master import EmbeddedProxy, FlowReader

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the proxy; 0 picks a free one.")]
BasePort = Annotated[int, typer.Option("--base-url-port", min=0, max=65535, help="Port that serves as a base URL.")]
EngineUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-url",
        help="vLLM's OpenAI server; may be given several times; $POLAR_ENGINE_URL, else port 8000 here.",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the session's folder.", file_okay=False)]
Host = Annotated[str, typer.Option(help="Address to listen on. Anything but loopback lets others use your engine.")]
Model = Annotated[str, typer.Option(help="Served model name; the engine's first one when empty.")]
Grace = Annotated[float, typer.Option(min=0, help="Seconds a streamed request waits before its headers go out.")]
SessionMb = Annotated[
    int, typer.Option("--session-mb", min=1, help="How large, in MB, calls.jsonl and flows.mitm may each grow.")
]
Keepalive = Annotated[float, typer.Option(min=0.1, help="Longest silence of an open stream, in seconds.")]

LOCAL_ENGINE = "http://127.0.0.1:8000"


def proxy(
    port: Port = 8080,
    base_url_port: BasePort = 8081,
    engine_url: EngineUrls = None,
    out_folder: Out = Path("runs"),
    host: Host = "127.0.0.1",
    model: Model = "",
    grace: Grace = 10,
    keepalive: Keepalive = 10,
    session_mb: SessionMb = 2000,
    tokens: TokensFlag = None,
) -> None:
    """Stand between any harness and the engine; one open session takes every call."""
    _serve(_proxy(port, base_url_port, engine_url, out_folder, host, model, grace, keepalive, session_mb, tokens))


def web(
    port: Port = 8080,
    base_url_port: BasePort = 8081,
    web_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of mitmweb's page.")] = 8082,
    engine_url: EngineUrls = None,
    out_folder: Out = Path("runs"),
    host: Host = "127.0.0.1",
    model: Model = "",
    grace: Grace = 10,
    keepalive: Keepalive = 10,
    session_mb: SessionMb = 2000,
    tokens: TokensFlag = None,
    read: Annotated[Path | None, typer.Option(help="Look at saved flows; nothing listens but the page.")] = None,
) -> None:
    """The same inside mitmweb, or a look at saved flows."""
    if read is None:
        _serve(
            _proxy(
                port, base_url_port, engine_url, out_folder, host, model, grace, keepalive, session_mb, tokens, web_port
            )
        )
    elif read.is_file():
        run_async(lambda: _read(FlowReader(read, web_port)))
    else:
        err.print(f"polar: {read} is no file of flows", style="red", highlight=False)
        raise typer.Exit(BAD_USAGE)


def _proxy(
    port: int,
    base_url_port: int,
    engine_urls: list[str] | None,
    out_folder: Path,
    host: str,
    model: str,
    grace: float,
    keepalive: float,
    session_mb: int,
    tokens: Tokens | None,
    web_port: int | None = None,
) -> EmbeddedProxy:
    """The proxy, and from here on its lines and its log on this terminal."""
    aside = Aside()
    show_log(AsideHandler(aside, LogLines()), quiet=("mitmproxy",))
    return EmbeddedProxy(
        standalone(lambda call, model: aside.do(partial(show_call, call, model))),
        host=host,
        port=port,
        base_url_port=base_url_port,
        web_port=web_port,
        polar_engine_url=",".join(engine_urls or default_engine_urls() or [LOCAL_ENGINE]),
        polar_out=str(out_folder),
        polar_model=model,
        polar_grace=str(grace),
        polar_keepalive=str(keepalive),
        polar_session_mb=str(session_mb),
        polar_tokens=tokens or "",
    )


def show_call(call: Call, model: str) -> None:
    """Print the call on a line of its own: when it ended, then what it was."""
    ended = time.strftime("%H:%M:%S", time.localtime(call.identity.finished_at))
    # One session takes every call here: its name would only make the line too long for a terminal.
    tell(out, f"{ended}  {call_line(call, model, session=False)}", style=_style(call))


def _style(call: Call) -> str | None:
    if call.error:
        return "red"
    if not call.checks.valid:
        return "yellow"
    return None if call.origin.kind == "turn" else "dim"


def _serve(embedded: EmbeddedProxy) -> None:
    run_async(lambda: _until_stopped(embedded), interrupted="stopped; the session is closed")


async def _until_stopped(embedded: EmbeddedProxy) -> None:
    async with embedded:
        base_url, proxy_url = (f"http://127.0.0.1:{port}" for port in (embedded.base_url_port, embedded.port))
        out.print(
            f"proxy     {proxy_url}\nbase URL  {base_url}\nCA        {embedded.ca}", highlight=False, soft_wrap=True
        )
        if embedded.web_port is not None:
            out.print(f"mitmweb   {embedded.web_url}", highlight=False, soft_wrap=True)
        out.print("\nPaste one of these; any API key is accepted:\n")
        for name, line in lines_to_paste(base_url, proxy_url, embedded.ca):
            tell(out, f"{name}\n{folded(line)}\n")
        await embedded.wait()


async def _read(reader: FlowReader) -> None:
    async with reader:
        out.print(f"mitmweb   {reader.web_url}", highlight=False, soft_wrap=True)
        await reader.wait()
