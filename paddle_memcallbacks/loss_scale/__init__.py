"""The loss scale: nothing is skipped in silence, and the layer that did it is named."""
