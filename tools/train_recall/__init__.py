"""Trains the recall model that ships in ``kvply.testing.recall``."""
