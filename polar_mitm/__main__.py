"""`python -m polar_mitm` is `polar`."""

from polar_mitm.cli import app

if __name__ == "__main__":
    app(prog_name="polar")
