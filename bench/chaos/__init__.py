"""Faults against a rollout server and its gateways while sessions run, and a checker of what is left.

`processes` has the server and the gateways, `simulated` what a gateway runs, `relay` the network, `faults` what is done
to them, `trainer` who asks for the sessions, `checker` what must be true in the end.
"""
