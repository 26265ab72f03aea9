"""What a pretrained encoder has learned, measured on held-out text beside answers that need no learning."""
