"""Blocks straight from a seqio Task or Mixture, read by a child process: no TensorFlow in the trainer."""
