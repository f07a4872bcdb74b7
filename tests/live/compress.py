"""Gemini CLI in a terminal: it compresses between two prompts of a person, and elsewhere it has one prompt only."""

import asyncio
from pathlib import Path

from polar_mitm.capture.reader import read_calls
from polar_mitm.harnesses import HARNESSES, Assignment
from polar_mitm.harnesses.actions import Shell
from polar_mitm.proxy.scripting import Step
from polar_mitm.rollout.ways_in import access
from polar_mitm.sandboxes import SANDBOXES
from tests.live.polar import Left
from tests.live.terminal import terminal
from tests.proxy.stage import staged

WINDOW = 20_000
"""Tokens. The first prompt with the output of its command fills three quarters of it."""

SUMMARY = """\
<scratchpad>
A list of numbers was printed.
</scratchpad>
<state_snapshot>
The list of numbers was printed. It had 1500 lines.
</state_snapshot>"""

LIMIT_S = 120.0


async def in_a_terminal(engine_url: str, place: Path) -> Left:
    """Its session: a command for a first prompt, a compression, an answer to a second prompt."""
    home, folder = place / "home", place / "folder"
    home.mkdir(parents=True)
    folder.mkdir()
    gemini = HARNESSES["gemini-cli"]
    installed, host = gemini.find(), SANDBOXES["host"]
    async with staged(place / "out", engine_url=engine_url) as on:
        layout = host.layout(
            workspace=folder, home=home, ca=on.proxy.ca, proxy_port=on.proxy.port, base_port=on.proxy.base_url_port
        )
        session = on.open_session(
            identity={"harness": gemini.NAME},
            sampling={"min_tokens": 4, "max_tokens": 256},  # an answer without a word is asked for again
            script=(Step(*gemini.tool_call(Shell("seq 10001 11500"), layout)),),
            summary=SUMMARY,
        )
        start = gemini.prepare(installed, access("base-url", session, layout, WINDOW), layout, Assignment(""))
        for name, text in start.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        quiet = start.argv.index("--output-format")
        command = start.argv[:quiet] + start.argv[quiet + 2 :]
        env = {name: value for name, value in start.env.items() if name != "NO_COLOR"} | {"TERM": "xterm-256color"}

        async def turns(number: int) -> None:
            async with asyncio.timeout(LIMIT_S):
                while [call.origin.kind for call in on.calls(session)].count("turn") < number:  # noqa: ASYNC110
                    await asyncio.sleep(0.5)

        async with terminal(command, env, folder) as screen:
            await screen.shows("Type your message")
            await screen.quiet()
            await screen.enter("Print a list of numbers.")
            await turns(2)
            await screen.quiet()
            await screen.enter("Say how many lines it had.")
            await turns(3)
            await screen.quiet()
        session.log.close("completed")
    folder_of_it = session.log.folder
    return Left(folder_of_it, folder_of_it.load(), list(read_calls(folder_of_it.calls)))
