"""Paths through a house: what they mean, and ground-truth walks along them."""
