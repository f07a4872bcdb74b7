"""The rollout server: takes task requests, spreads their sessions over gateways, keeps results.

`service` is the whole of it without HTTP; `app` is HTTP. What is on disk is `store`'s; here is what is kept of it in
memory: the line, the gateways, the sessions they have.
"""
