"""The shell lines that put each harness behind a polar that runs already."""

from collections.abc import Iterator
from pathlib import Path

from polar_mitm.harnesses.base import PATIENCE_MS

BASE_URL = {
    "claude-code": (
        "ANTHROPIC_BASE_URL={base} ANTHROPIC_API_KEY=polar CLAUDE_STREAM_IDLE_TIMEOUT_MS={patience} claude -p"
    ),
    "codex": (
        "CODEX_API_KEY=polar codex exec --skip-git-repo-check -c openai_base_url='\"{base}/v1\"' -c model='\"local\"'"
    ),
    "qwen-code": (
        "OPENAI_BASE_URL={base}/v1 OPENAI_API_KEY=polar OPENAI_MODEL=local QWEN_STREAM_MAX_LIFETIME_MS={patience} qwen"
    ),
    "gemini-cli": "GOOGLE_GEMINI_BASE_URL={base} GEMINI_API_KEY=polar gemini",
}
PROXY = (
    "ANTHROPIC_API_KEY=polar OPENAI_API_KEY=polar GEMINI_API_KEY=polar "
    "CLAUDE_STREAM_IDLE_TIMEOUT_MS={patience} QWEN_STREAM_MAX_LIFETIME_MS={patience} "
    "HTTPS_PROXY={proxy} NODE_EXTRA_CA_CERTS={ca} SSL_CERT_FILE={ca} CODEX_CA_CERTIFICATE={ca}"
)
"""For any harness at its own host: opencode, pi, and those above. Who is logged in leaves the keys out."""


def lines_to_paste(base_url: str, proxy_url: str, ca: Path) -> Iterator[tuple[str, str]]:
    """The name and the line of each harness with its base URL, then of any through the proxy, base URL untouched."""
    for name, line in BASE_URL.items():
        yield name, line.format(base=base_url, patience=PATIENCE_MS)
    yield "any, through the proxy", PROXY.format(proxy=proxy_url, ca=ca, patience=PATIENCE_MS) + " COMMAND"


def folded(line: str, width: int = 78) -> str:
    """The same for a shell, on lines of at most this width where its words allow."""
    lines, room = [""], width - len("  ") - len(" \\")
    for word in line.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "  " + " \\\n    ".join(lines)
