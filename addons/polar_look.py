"""For saved flows in any mitmproxy tool: the view `Polar tokens`, rewards on comments, `polar.session`, `polar.export`.

mitmproxy -n -r runs/ses_01a22a52e159930b1566fc317e/flows.mitm -s addons/polar_look.py
"""

from polar_mitm.proxy.look import Look

addons = [Look()]
