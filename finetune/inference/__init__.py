"""Opens fine-tuned models and answers rows, for `finetune.predict` and `finetune.evaluate`."""
