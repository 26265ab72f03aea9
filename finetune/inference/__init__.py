"""Opens fine-tuned models and answers rows, for `finetune.predict` and `finetune.evaluate`.

`model` opens a saved model of any kind; `kinds` makes inputs of rows, and answers of outputs.
"""
