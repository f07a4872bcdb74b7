"""A gateway: a node that runs sessions for a rollout server. Sandboxes, and the proxy they talk to, in one process."""
