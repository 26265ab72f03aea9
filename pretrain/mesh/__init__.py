"""Devices, their order in a mesh, and where each array lies."""
