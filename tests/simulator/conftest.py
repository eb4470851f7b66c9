"""Makes `worlds` importable: under --import-mode=importlib pytest adds no folder to the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
