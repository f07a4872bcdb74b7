"""What a session costs the rollout server and its gateways, from a hundred in line to ten thousand.

`run` starts everything and measures one length of the line, `__main__` does several and writes them down, `plot` draws.
"""
