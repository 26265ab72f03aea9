"""`python -m benchmarks.NAME` runs `lab.speed.NAME`."""

import pathlib

__path__ = [str(pathlib.Path(__file__).resolve().parent.parent / "lab" / "speed")]
