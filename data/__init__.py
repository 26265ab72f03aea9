"""Text to packed token records. TensorFlow and seqio live only here; nothing here imports JAX."""
