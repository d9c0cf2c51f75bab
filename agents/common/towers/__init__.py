"""Encoders of images that several models have, or may: what turns frames into features."""
