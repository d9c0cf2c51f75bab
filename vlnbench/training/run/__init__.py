"""The folder of a training run: its manifest, log and saved states."""
