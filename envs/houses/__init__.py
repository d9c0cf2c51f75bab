"""houses: procedural multi-room houses with instructions, in the file formats of R2R-CE, RxR-CE and EnvDrop."""
