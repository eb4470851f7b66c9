"""From the values of a model configuration to its `Geometry`: one file per family of architectures."""
