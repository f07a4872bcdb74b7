"""What a trainer imports to talk to a rollout server. It needs pydantic and nothing else of polar."""
