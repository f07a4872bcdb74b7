"""Gateways on a cluster: where they are placed, the actor that keeps one, and Ray."""
