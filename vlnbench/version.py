"""The version of vlnbench, apart from the package's face, so that records can name it from any floor."""

__version__ = "0.1.0"
