"""The parts of `tests.goldens`: reading the files, comparing, and one check for every kind."""
