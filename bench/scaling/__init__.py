"""From measured costs to a thousand, ten thousand and a hundred thousand agents at once.

`costs` reads what was measured, `needs` is the arithmetic, `simulation` holds it against queues in simulated time,
`__main__` writes docs/scaling.md.
"""
