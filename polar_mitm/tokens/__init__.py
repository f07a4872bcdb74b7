"""What token ids look like to a person: the model's vocabulary, where it lies, and text that can be read.

For looking only: nothing here makes an id, and no id, mask or log-probability depends on it.
"""
