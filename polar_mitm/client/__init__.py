"""What a trainer imports to talk to a rollout server: `sync.RolloutClient`, `aio.AsyncRolloutClient`, and their models.

It needs pydantic and httpx, and nothing else of polar.
"""
