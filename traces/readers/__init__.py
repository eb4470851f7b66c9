"""One file per trace format. Each has `NAME`, `TITLE`, `sniff(record)` and `read(record)`; `formats.py` lists them."""
