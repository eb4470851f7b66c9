"""One file per trace format, found by its `FORMAT` (`reading.Format`). Files without one are shared by several."""
