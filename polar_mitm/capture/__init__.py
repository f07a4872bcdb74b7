"""The call record, its JSONL file and the session log.

Nothing here knows mitmproxy, a provider's form or the engine.
"""
