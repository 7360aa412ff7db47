"""Where TFX finds `custom_extractors`: alone, because TFX loads the module anew, and with it everything that it holds."""

from pipeline.evaluation.extractors import custom_extractors

__all__ = ["custom_extractors"]
