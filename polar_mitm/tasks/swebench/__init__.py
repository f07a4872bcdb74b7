"""Rows of SWE-bench data sets as tasks: `rows` reads them, `place` is where one is worked on, `verify` runs its tests.

What a log of tests comes to is for the package `swebench` to say, which lives in an environment of its own: `package`.
"""
