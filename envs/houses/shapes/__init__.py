"""Solids, textures and the glTF writer; nothing here knows of a house."""
