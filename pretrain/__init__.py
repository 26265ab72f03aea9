"""Pretraining: corruption, objectives, model, step and loop. Never imports TensorFlow."""
