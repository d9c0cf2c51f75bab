"""vlnbench: benchmark and evaluation harness for vision-and-language navigation agents."""

__version__ = "0.1.0"
