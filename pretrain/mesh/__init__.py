"""Devices, their order in a mesh, and the sharding of arrays."""
