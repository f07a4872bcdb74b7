"""Trajectories as one HTML page: sessions, traces, turns, tokens, forks and the ledger.

The page needs no network and no server: style and script are in it, and its policy lets nothing else run. What others
wrote (models, tools, harnesses) is text in it, never markup. It stays small: of long runs of tokens it shows the
beginning and the end, and of many sessions the first ones, and says what it leaves out.
"""

from polar_mitm.trajectory.page.page import Page

__all__ = ["Page"]
