"""What a person sees of a call in mitmweb and the console: a comment and a mark on its flow."""

from mitmproxy.http import HTTPFlow

from polar_mitm.capture.record import Call


def annotate(flow: HTTPFlow, call: Call) -> None:
    """Write the call onto its flow: metadata for replay, a comment, a mark. To be called before the `response` hook."""
    flow.metadata["polar"] = call.model_dump_json()
    flow.comment = comment(call)
    flow.marked = mark(call)


def comment(call: Call) -> str:
    """One line, the telling part first, for mitmweb's column is narrow: tokens in and out, mean logprob, what came."""
    if call.error:
        return f"{call.error.fault}: {call.error.what}"
    response = call.response
    if not response:
        return call.origin.kind_reason if call.origin.kind == "retry" else "no answer"
    mean = f"{sum(response.logprobs) / len(response.logprobs):.2f}" if response.logprobs else "-"
    came = ", ".join(tool["function"]["name"] for tool in response.tool_calls) or response.finish_reason
    if call.origin.kind != "turn":
        came += f" · {call.origin.kind}"
    return f"{len(call.prompt_ids)}→{len(response.response_ids)} {mean} {came} · {call.identity.session_id}"


def mark(call: Call) -> str:
    """An emoji name: red: failed; yellow: can't be trained on; blue: a scripted turn; green: all is well."""
    if call.error:
        return ":red_circle:"
    if not call.checks.valid:
        return ":yellow_circle:"
    return ":large_blue_circle:" if call.response and call.response.forced else ":green_circle:"
