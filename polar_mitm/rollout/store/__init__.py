"""What the rollout server keeps on disk: tasks, sessions, results, events, callbacks, gateways, and sessions' files.

`writer` is the only way in: operations of `submit`, `dispatch`, `ends`, ... run one after another, many to a
transaction. `reads` is the way out. SQLite by default, PostgreSQL by URL; both behave alike.
"""
