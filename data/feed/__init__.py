"""Feeds blocks of a seqio Task or Mixture to the trainer from a child process, which loads TensorFlow."""
