"""Connects the processes of a run on one or several hosts, compares them, and ends them together.

JAX connects the devices. This package reports missing and differing processes, stops all at the same step,
and ends the others if one is lost.
"""
