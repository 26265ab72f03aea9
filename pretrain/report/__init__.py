"""One page about a run, or about several beside each other, that needs nothing but itself to be read."""
