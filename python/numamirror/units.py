"""Units of size: what numbers of bytes are counted in.

Holds constants alone. Used wherever a size is shown.
"""

from __future__ import annotations

GIB = 1 << 30
