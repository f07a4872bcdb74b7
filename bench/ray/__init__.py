"""Gateways on a Ray cluster of four nodes, an actor of which is killed and a node removed: `python -m bench.ray`."""
