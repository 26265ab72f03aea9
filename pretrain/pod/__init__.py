"""The processes of one run, on one or many hosts: how they meet, agree, and end together.

JAX connects the devices. What it leaves open is here: who is missing, in what processes differ, at which step
all stop, and that none waits for one that is gone.
"""
