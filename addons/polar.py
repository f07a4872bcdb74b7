"""polar-mitm under a plain mitmproxy tool.

    mitmdump -s addons/polar.py --set polar_engine_url=http://127.0.0.1:8000 --set polar_out=runs

`polar proxy` runs the same addons, with bad options refused before anything listens.
"""

from mitmproxy import ctx

# First of all, and without polar's own modules: from here on mitmproxy answers 403 by itself, so that nothing gets out
# should the import below fail, or a later reload of this file be broken.
ctx.options.update(block_list=["|~all|403"], connection_strategy="lazy", rawtcp=False, connect_addr="127.0.0.1")

from polar_mitm.proxy.addons import standalone  # noqa: E402  the fence comes first

addons = standalone()
